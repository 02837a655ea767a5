"""Tidepool: as a server, over PostgreSQL's protocol, or within `tidepool bench`."""

import csv
import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pyarrow.parquet
import pyarrow.types

from peers import MEASUREMENT_LIMIT_S, machine, results


def version(binary):
    return subprocess.run([str(binary), "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip().removeprefix("tidepool ")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """`tidepool serve` on a port of its own; `options` are its command line's."""

    def __init__(self, binary, data, *options):
        self.port = free_port()
        self.command = [str(binary), "serve", "--listen", f"127.0.0.1:{self.port}", "--data", str(data), "--log-level", "warn", *options]
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)

    def connect(self):
        """A psycopg2 connection that commits each statement, once the server listens."""
        import psycopg2
        while True:
            try:
                connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="tidepool", dbname="tidepool")
            except psycopg2.OperationalError:
                if self.process.poll() is not None:
                    raise
                time.sleep(0.002)
            else:
                connection.autocommit = True
                return connection

    def stop(self):
        self.process.terminate()
        self.process.wait()


def sql_type(arrow):
    """PostgreSQL's name of an Arrow type."""
    types = pyarrow.types
    if types.is_decimal(arrow):
        return f"numeric({arrow.precision}, {arrow.scale})"
    for is_of, name in [(types.is_int16, "smallint"), (types.is_int32, "integer"), (types.is_int64, "bigint"), (types.is_float64, "double precision"),
                        (types.is_boolean, "boolean"), (types.is_date32, "date"), (types.is_timestamp, "timestamp")]:
        if is_of(arrow):
            return name
    if types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow):
        return "text"
    raise ValueError(f"no SQL type for {arrow}")


def columns(parquet):
    """The columns of a Parquet file, as CREATE TABLE wants them."""
    return ", ".join(f"{field.name} {sql_type(field.type)}" for field in pyarrow.parquet.read_schema(parquet))


class Connection:
    def __init__(self, connection):
        self.cursor = connection.cursor()

    def run(self, sql):
        return len(self.rows(sql))

    def rows(self, sql):
        self.cursor.execute(sql)
        return self.cursor.fetchall()


class Engine:
    """A server with an empty data folder. Results come over the wire as text, and are parsed by psycopg2."""

    def __init__(self, threads, binary):
        self.folder = Path(tempfile.mkdtemp(prefix="tidepool-server-"))
        self.server = Server(binary, self.folder / "data", "--threads", str(threads))
        self.server.start()
        self.loader = self.server.connect().cursor()
        self.version = version(binary)

    def load(self, table, parquet):
        self.loader.execute(f"CREATE TABLE {table} ({columns(parquet)})")
        self.loader.execute(f"COPY {table} FROM '{parquet}' (FORMAT parquet)")
        # As `tidepool bench` does. What does not fill a row group would be merged half a minute later, in the midst of the queries.
        self.loader.execute(f"CALL tidepool.merge('{table}')")

    def connect(self):
        return Connection(self.server.connect())

    def stored_bytes(self):
        self.loader.execute("SELECT sum(bytes) FROM tidepool.memory WHERE purpose = 'main'")
        return int(self.loader.fetchone()[0])

    def resident_bytes(self):
        return machine.resident_bytes(self.server.process.pid)

    def close(self):
        self.server.stop()
        shutil.rmtree(self.folder)


def bench(binary, benchmark, sf, threads, repeat, operators="tidepool", queries=None):
    """One measurement by `tidepool bench`, which generates, loads and runs within one process."""
    with tempfile.TemporaryDirectory(prefix="tidepool-bench-") as folder:
        summary = Path(folder) / "result.json"
        command = [str(binary), "bench", benchmark, "--sf", f"{sf:g}", "--threads", str(threads), "--repeat", str(repeat), "--engine", operators,
                   "--json", str(summary), "--results", folder]
        if queries:
            command += ["--queries", queries]
        # It ends with 1 where an answer is wrong or a query fails, too; then there is a summary, which says so.
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=MEASUREMENT_LIMIT_S, check=False)
        if not summary.exists():
            raise RuntimeError(f"it ended with {ended.returncode}: {' '.join(ended.stderr.split())[-300:]}")
        result = json.loads(summary.read_text())
        return {
            "version": result["tidepool_version"],
            "load_s": result["load"]["seconds"],
            "stored_bytes": result["load"]["encoded_bytes"],
            "resident_bytes": result["load"]["process_resident_bytes"],
            "queries": {query["name"]: bench_query(query, Path(folder)) for query in result["placements"][0]["queries"]},
        }


def placements(binary, sf, threads, repeat, profiles, streams):
    """What `tidepool bench tpch` says of tables and query heap near and far."""
    with tempfile.TemporaryDirectory(prefix="tidepool-bench-") as folder:
        summary = Path(folder) / "result.json"
        command = [str(binary), "bench", "tpch", "--sf", f"{sf:g}", "--threads", str(threads), "--repeat", str(repeat), "--placement", "all",
                   "--profile", ",".join(profiles), "--streams", str(streams), "--json", str(summary)]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=MEASUREMENT_LIMIT_S, check=False)
        return json.loads(summary.read_text())["placements"]


def bench_query(query, folder):
    """What `worker.timed` says of a query, of what `tidepool bench` says."""
    answer = query["answer"]
    if answer["answer"] in ("error", "wrong"):
        return {"runs_ms": [], "rows": [], "error": f"{answer['answer']}: {answer['answer_detail']}"}
    with open(folder / f"{query['name']}.csv", newline="") as file:
        rows = [[None if cell == results.CSV_NULL else cell for cell in row] for row in list(csv.reader(file))[1:]]
    return {"runs_ms": query["runs_ms"], "rows": rows, "error": None}


def export(binary, benchmark, sf, folder):
    """The rows of a benchmark that `tidepool bench` generates, as Parquet files."""
    subprocess.run([str(binary), "bench", benchmark, "--sf", f"{sf:g}", "--queries", "1", "--repeat", "0", "--export", str(folder)],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
