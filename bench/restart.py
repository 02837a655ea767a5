#!/usr/bin/env python3
"""How long a killed database takes to answer again: Tidepool, DuckDB and PostgreSQL over the same TPC-H rows.

Each is loaded, makes a checkpoint, and is killed (SIGKILL) while it does nothing. Then the time counts from its new start
to its answers. Tidepool does so twice: with main in memory that outlives the process (tier 1: a file on tmpfs stands for
persistent memory or a CXL device that stays powered), and with that memory lost, from the files of its data folder (tier
2). What lies in files is read with the page cache warm, and, with --cold, dropped (needs root). DuckDB has no server: the
time is that of `connect` in a fresh process, its Python and libraries loaded already.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import TIDEPOOL, workloads
from peers.tidepool import Server, columns, free_port

QUERIES = workloads.tpch_queries()
KEYS = {
    "region": "r_regionkey",
    "nation": "n_nationkey",
    "supplier": "s_suppkey",
    "customer": "c_custkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey, ps_suppkey",
    "orders": "o_orderkey",
    "lineitem": "l_orderkey, l_linenumber",
}
STEPS = [
    ("ready", "SELECT 1"),
    ("count", "SELECT count(*) FROM lineitem"),
    ("point", "SELECT o_totalprice FROM orders WHERE o_orderkey = 7"),
    ("q6", QUERIES["q6"]),
    ("q1", QUERIES["q1"]),
    ("q6 again", QUERIES["q6"]),
]


def definition(table, parquet, keyed):
    key = f", PRIMARY KEY ({KEYS[table]})" if keyed else ""
    return f"CREATE TABLE {table} ({columns(parquet)}{key})"


def drop_caches():
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def connected(connect):
    while True:
        connection = connect()
        if connection is not None:
            return connection


def steps(start, connect):
    """Seconds since `start`: of the first answer, and of each after it by itself."""
    connection = connected(connect)
    cursor = connection.cursor()
    times, before = {}, start
    for name, sql in STEPS:
        cursor.execute(sql)
        cursor.fetchall()
        now = time.perf_counter()
        times[name] = now - before
        before = now
    connection.close()
    return times


class Tidepool:
    """`tier`: 1 keeps the memory of `far`, 2 loses it."""

    def __init__(self, args, folder, memory, tier):
        self.args, self.folder, self.tier, self.keys = args, folder, tier, args.keys
        self.device = memory / "far"
        self.server = Server(args.tidepool, folder / "data", "--far", f"file:{self.device},size={args.memory}")

    def start(self):
        self.server.start()

    def connect(self):
        return self.server.connect()

    def load(self, tables):
        self.start()
        connection = connected(self.connect)
        cursor = connection.cursor()
        for table, parquet in tables.items():
            cursor.execute(definition(table, parquet, self.keys) + " TABLESPACE far")
            cursor.execute(f"COPY {table} FROM '{parquet}' (FORMAT parquet)")
        cursor.execute("CHECKPOINT")
        connection.close()

    def kill(self):
        self.server.process.send_signal(signal.SIGKILL)
        self.server.process.wait()
        if self.tier == 2:
            self.device.unlink()

    def run(self):
        """From a killed one to answers, killed again."""
        start = time.perf_counter()
        self.start()
        return steps(start, self.connect)

    def after(self):
        if self.tier == 1:
            connection = self.connect()
            connection.cursor().execute("CHECKPOINT")
            connection.close()
        self.kill()

    def bytes(self):
        return sum(file.stat().st_size for file in (self.folder / "data").rglob("*") if file.is_file())


class Postgresql:
    def __init__(self, args, folder, _memory, _tier=None):
        self.args, self.folder, self.keys = args, folder, args.keys
        self.port = free_port()
        binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        self.bin = Path(shutil.which("postgres") or (binaries[-1] / "postgres" if binaries else sys.exit("postgres is not installed"))).resolve().parent
        self.prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self.process = None

    def start(self):
        command = [self.bin / "postgres", "-D", self.folder / "pg", "-p", str(self.port), "-k", str(self.folder), "-c", f"shared_buffers={self.args.shared_buffers}", "-c", "max_wal_size=8GB", "-c", "logging_collector=off"]
        self.process = subprocess.Popen(self.prefix + [str(one) for one in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def connect(self):
        import psycopg2
        try:
            connection = psycopg2.connect(host=str(self.folder), port=self.port, user="postgres", dbname="postgres")
        except psycopg2.OperationalError:
            time.sleep(0.002)
            return None
        connection.autocommit = True
        return connection

    def load(self, tables):
        if self.prefix:
            shutil.chown(self.folder, "postgres")
            for parent in list(self.folder.parents)[:-1]:
                parent.chmod(parent.stat().st_mode | 0o011)
        subprocess.run(self.prefix + [str(self.bin / "initdb"), "-D", str(self.folder / "pg"), "-A", "trust"], check=True, stdout=subprocess.DEVNULL)
        self.start()
        connection = connected(self.connect)
        cursor = connection.cursor()
        for table, parquet in tables.items():
            cursor.execute(definition(table, parquet, False))
            with open(parquet.with_suffix(".csv")) as rows:
                cursor.copy_expert(f"COPY {table} FROM STDIN (FORMAT csv)", rows)
            if self.keys:
                cursor.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({KEYS[table]})")
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("CHECKPOINT")
        connection.close()

    def kill(self):
        postmaster = (self.folder / "pg" / "postmaster.pid").read_text().split()[0]
        subprocess.run(["pkill", "-KILL", "-P", postmaster])
        subprocess.run(["kill", "-KILL", postmaster], check=True)
        self.process.wait()
        # What shared memory a killed one left is in the way of the next.
        time.sleep(0.5)

    def run(self):
        start = time.perf_counter()
        self.start()
        return steps(start, self.connect)

    def after(self):
        self.kill()

    def bytes(self):
        return sum(file.stat().st_size for file in (self.folder / "pg").rglob("*") if file.is_file())


class Duckdb:
    def __init__(self, args, folder, _memory, _tier=None):
        self.args, self.folder = args, folder
        self.file = folder / "tpch.duckdb"

    def load(self, tables):
        import duckdb
        connection = duckdb.connect(str(self.file))
        for table, parquet in tables.items():
            connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{parquet}')")
            if self.args.keys:
                connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY ({KEYS[table]})")
        connection.execute("CHECKPOINT")
        connection.close()

    def kill(self):
        pass

    def run(self):
        command = [sys.executable, __file__, "--worker", str(self.file)]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def after(self):
        pass

    def bytes(self):
        return self.file.stat().st_size


ENGINES = {
    "tier 1": ("Tidepool, main found in memory", lambda *args: Tidepool(*args, 1)),
    "tier 2": ("Tidepool, from files", lambda *args: Tidepool(*args, 2)),
    "duckdb": ("DuckDB", Duckdb),
    "postgresql": ("PostgreSQL", Postgresql),
}


def worker(file):
    import duckdb
    duckdb.connect(":memory:").execute("SELECT 1").fetchall()
    start = time.perf_counter()
    print(json.dumps(steps(start, lambda: duckdb.connect(file))))


def tables_of(args):
    """Parquet files by table, with CSV beside them for PostgreSQL."""
    tables = workloads.tpch(args.data, args.sf, args.tidepool).tables
    if "postgresql" in args.engines:
        import duckdb
        for parquet in tables.values():
            if not parquet.with_suffix(".csv").exists():
                duckdb.sql(f"COPY (SELECT * FROM read_parquet('{parquet}')) TO '{parquet.with_suffix('.csv')}' (FORMAT csv, HEADER false)")
    return tables


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", default=TIDEPOOL)
    parser.add_argument("--sf", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", action="store_true", help="with the primary keys of TPC-H")
    parser.add_argument("--cold", action="store_true", help="also with the page cache dropped before each start")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--memory", default="8GB", help="size of far")
    parser.add_argument("--shared-buffers", default="4GB")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tidepool-compare")
    parser.add_argument("--json", type=Path, help="write everything measured")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(args.worker)
    tables = tables_of(args)
    measured = {}
    for engine in args.engines.split(","):
        title, make = ENGINES[engine]
        folder = Path(tempfile.mkdtemp(prefix="tidepool-restart-"))
        memory = Path(tempfile.mkdtemp(prefix="tidepool-restart-", dir="/dev/shm"))
        try:
            one = make(args, folder, memory)
            start = time.perf_counter()
            one.load(tables)
            print(f"{title}: loaded in {time.perf_counter() - start:.1f} s, {one.bytes() / 2**20:.0f} MB in files", file=sys.stderr)
            one.kill()
            for cold in [False, True] if args.cold and engine != "tier 1" else [False]:
                runs = []
                for _ in range(args.rounds):
                    if cold:
                        drop_caches()
                    runs.append(one.run())
                    one.after()
                measured[title + (", cold" if cold else "")] = runs
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(memory, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(measured, indent=1))
    print(f"TPC-H SF {args.sf:g}{' with primary keys' if args.keys else ''}, medians of {args.rounds} restarts after SIGKILL, seconds: the first answer, then each statement by itself.\n")
    print("| | " + " | ".join(name for name, _ in STEPS) + " |")
    print("|---|" + "---:|" * len(STEPS))
    for title, runs in measured.items():
        cells = [f"{statistics.median(run[name] for run in runs):.3f}" for name, _ in STEPS]
        print(f"| {title} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
