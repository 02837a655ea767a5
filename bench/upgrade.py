#!/usr/bin/env python3
"""What clients notice when a server is replaced by another: Tidepool's upgrade beside a restart of PostgreSQL, bare and behind a PgBouncer that
holds its clients meanwhile, and beside PgBouncer's own replacement (`-R`), in one run on one machine: a section of docs/results/connections.md.

Needs a built Tidepool (`cargo build --release`), PostgreSQL and PgBouncer.
"""

import argparse
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg2

from peers import ROOT, TIDEPOOL, machine, postgresql
from peers.tidepool import free_port, version

PAUSE_S = 0.001
# Between two replacements.
BETWEEN_S = 1.0
HEADING = "## Beside a restart of PostgreSQL, and PgBouncer"


class Tidepool:
    title = "`tidepool upgrade`"

    def __init__(self, args):
        self.binary = str(args.tidepool)
        self.folder = Path(tempfile.mkdtemp(prefix="tidepool-upgrade-", dir="/dev/shm"))
        self.pool = f"file:{self.folder / 'pool'}"
        self.port = free_port()
        subprocess.run([self.binary, "pool", "create", self.pool, "--size", "1GB"], check=True, stdout=subprocess.DEVNULL)
        self.options = ["--pool", self.pool, "--name", "h1", "--near", "256MB", "--far", "pool:", "--listen", f"127.0.0.1:{self.port}",
                        "--connections-max", str(args.idle + args.busy + 50)]
        self.process = self.start("serve", "--role", "primary", *self.options)
        self.said(self.process, "ready")

    def start(self, *arguments):
        return subprocess.Popen([self.binary, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def said(self, process, words):
        for line in process.stdout:
            if words in line:
                return
        raise RuntimeError(f"a server ended without a word of {words}")

    def replace(self):
        url = f"postgresql://tidepool@127.0.0.1:{self.port}/tidepool"
        before, self.process = self.process, self.start("upgrade", url, *self.options)
        self.said(self.process, "has taken over")
        before.wait()

    def connect(self):
        return psycopg2.connect(host="127.0.0.1", port=self.port, user="tidepool", dbname="tidepool")

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        shutil.rmtree(self.folder)


class Restart:
    title = "PostgreSQL: `pg_ctl restart -m fast`"

    def __init__(self, args):
        postgresql.SETTINGS["max_connections"] = str(args.idle + args.busy + 50)
        self.server = postgresql.Server()

    def replace(self):
        self.restart()

    def restart(self):
        server = self.server
        data = str(server.folder / "data")
        # With the options that it was started with.
        subprocess.run([*server.prefix, str(server.bin / "pg_ctl"), "restart", "-m", "fast", "-w", "-s", "-D", data], check=True, stdout=subprocess.DEVNULL)
        server.pid = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])

    def connect(self):
        return psycopg2.connect(host="127.0.0.1", port=self.server.port, user="postgres", dbname="postgres")

    def close(self):
        os.kill(self.server.pid, signal.SIGINT)
        while Path(f"/proc/{self.server.pid}").exists() and (self.server.folder / "data" / "postmaster.pid").exists():
            time.sleep(0.05)
        self.server.log.close()
        shutil.rmtree(self.server.folder, ignore_errors=True)


class Pooled(Restart):
    """PgBouncer before PostgreSQL, with pools by transaction."""

    title = "PostgreSQL behind PgBouncer: `PAUSE`, restart, `RESUME`"

    def __init__(self, args):
        super().__init__(args)
        self.port, self.folder = free_port(), self.server.folder
        (self.folder / "users").write_text('"postgres" ""\n')
        self.settings = self.folder / "pgbouncer.ini"
        self.settings.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={self.server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"unix_socket_dir = {self.folder}\nauth_type = trust\nauth_file = {self.folder / 'users'}\nadmin_users = postgres\npool_mode = transaction\n"
            f"default_pool_size = {args.busy}\nmax_client_conn = {args.idle + args.busy + 50}\nlogfile = {self.folder / 'pgbouncer.log'}\n"
            f"pidfile = {self.folder / 'pgbouncer.pid'}\nignore_startup_parameters = extra_float_digits\n")
        self.settings.chmod(0o644)
        self.pooler()

    def pooler(self, *options):
        """Starts one, and returns once it serves."""
        pid = self.folder / "pgbouncer.pid"
        before = pid.read_text() if pid.exists() else ""
        # A change of users may lower the limit of descriptors again.
        limit = f"ulimit -n {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} && exec \"$@\""
        subprocess.run([*self.server.prefix, "sh", "-c", limit, "sh", "pgbouncer", "-q", "-d", *options, str(self.settings)], check=True)
        while not pid.exists() or pid.read_text() in ("", before):
            time.sleep(0.001)

    def admin(self, command):
        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="pgbouncer")
        connection.autocommit = True
        connection.cursor().execute(command)
        connection.close()

    def replace(self):
        self.admin("PAUSE")
        self.restart()
        self.admin("RESUME")

    def connect(self):
        return psycopg2.connect(host="127.0.0.1", port=self.port, user="postgres", dbname="postgres")

    def close(self):
        os.kill(int((self.folder / "pgbouncer.pid").read_text()), signal.SIGTERM)
        super().close()


class Pooler(Pooled):
    title = "PgBouncer before PostgreSQL, which stays: `pgbouncer -R`"

    def replace(self):
        self.pooler("-R")


class Busy(threading.Thread):
    """Changes its own row again and again, and comes back where its connection ends."""

    def __init__(self, server, row):
        super().__init__(daemon=True)
        self.server, self.row, self.connection = server, row, None
        self.acknowledged = self.ended = self.failed = 0
        self.longest_ms = 0.0
        self.stopping = False
        self.error = None

    def change(self):
        if self.connection is None:
            self.connection = self.server.connect()
            self.connection.autocommit = True
        self.connection.cursor().execute("UPDATE counted SET count = count + 1 WHERE id = %s", (self.row,))

    def run(self):
        try:
            while not self.stopping:
                start = time.perf_counter()
                while True:
                    try:
                        self.change()
                        break
                    except (psycopg2.OperationalError, psycopg2.InterfaceError):
                        if self.connection is None:
                            time.sleep(PAUSE_S)
                        elif self.connection.closed:
                            self.ended += 1
                            self.connection = None
                        else:
                            self.failed += 1
                self.longest_ms = max(self.longest_ms, 1000 * (time.perf_counter() - start))
                self.acknowledged += 1
                time.sleep(PAUSE_S)
        except Exception as error:
            self.error = error


def measure(kind, args):
    server = kind(args)
    try:
        with server.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("CREATE TABLE counted (id int PRIMARY KEY, count bigint)")
            cursor.execute("INSERT INTO counted SELECT g, 0 FROM generate_series(1, %s) g", (args.busy,))
        connection.close()
        idle = []
        for _ in range(args.idle):
            connection = server.connect()
            connection.autocommit = True
            idle.append(connection)
        busy = [Busy(server, row + 1) for row in range(args.busy)]
        for client in busy:
            client.start()
        longest = []
        for _ in range(args.times):
            time.sleep(BETWEEN_S)
            for client in busy:
                client.longest_ms = 0.0
            server.replace()
            # A statement that was under way has ended by then.
            time.sleep(BETWEEN_S)
            longest.append(max(client.longest_ms for client in busy))
        for client in busy:
            client.stopping = True
        for client in busy:
            client.join()
            if client.error is not None:
                raise client.error
        ended = sum(client.ended for client in busy)
        for connection in idle:
            try:
                connection.cursor().execute("SELECT 1")
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                ended += 1
        with server.connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT sum(count) FROM counted")
            there = int(cursor.fetchone()[0])
        connection.close()
        acknowledged = sum(client.acknowledged for client in busy)
        failed = sum(client.failed for client in busy)
        # A statement whose connection ended may have been committed all the same.
        wrong = not acknowledged <= there <= acknowledged + ended + failed
        return {"longest": longest, "ended": ended, "failed": failed, "acknowledged": acknowledged, "wrong": wrong}
    finally:
        server.close()


def written(args, runs):
    pooler = subprocess.run(["pgbouncer", "--version"], stdout=subprocess.PIPE, text=True).stdout.split("\n")[0]
    lines = [
        HEADING,
        "",
        f"Written by `bench/upgrade.py` on {time.strftime('%Y-%m-%d', time.gmtime())}. {machine.describe()}; servers and clients share it. Tidepool "
        f"{version(args.tidepool)}, PostgreSQL {args.version}, {pooler}. {args.idle:,} idle clients, and {args.busy} (threads of one Python process) that update a "
        f"row each, with {1000 * PAUSE_S:.0f} ms between two statements. Each server is replaced {args.times} times; the time is the longest that any busy client had to wait "
        "for a statement, the coming back of those whose connection ended included.",
        "",
        "|  | longest statement, ms: median | longest | connections ended | acknowledged |",
        "|---|---:|---:|---:|---:|",
    ]
    for title, run in runs:
        lines.append(f"| {title} | {statistics.median(run['longest']):.1f} | {max(run['longest']):.1f} | {run['ended']:,} | {run['acknowledged']:,} |")
    lines += ["", "`pgbouncer -R` replaces the pooler alone. Behind a pooler by transaction, sessions have no settings, prepared statements or cursors of their own, "
              "which go over with Tidepool's.", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=16)
    parser.add_argument("--only", help="those whose title has these words")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/connections.md")
    args = parser.parse_args()
    # Each client is a descriptor, of servers too.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    args.version = subprocess.run([str(postgresql.folder_of_programs() / "postgres"), "--version"], stdout=subprocess.PIPE, text=True).stdout.split()[2]
    runs = []
    for kind in (Tidepool, Restart, Pooled, Pooler):
        if args.only and args.only not in kind.title:
            continue
        run = measure(kind, args)
        print(f"{kind.title}: median {statistics.median(run['longest']):.1f} ms, longest {max(run['longest']):.1f}, {run['ended']} ended, "
              f"{run['failed']} failed, {run['acknowledged']} acknowledged{', WRONG' if run['wrong'] else ''}", flush=True)
        runs.append((kind.title, run))
    if not args.only:
        page = args.out.read_text()
        before = page.split(HEADING)[0].rstrip()
        after = re.search(r"\n## (?!Beside a restart).*", page.split(HEADING)[1], re.S) if HEADING in page else None
        args.out.write_text(before + "\n\n" + written(args, runs) + (after.group(0) if after else ""))
    if any(run["wrong"] for _, run in runs):
        sys.exit(1)


if __name__ == "__main__":
    main()
