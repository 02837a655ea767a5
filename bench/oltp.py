#!/usr/bin/env python3
"""Transactions over the wire beside PostgreSQL: docs/results/oltp.md.

pgbench's scripts against Tidepool and PostgreSQL, each with its own data folder on the same disk and commits that wait for it, in turns: a round runs
every script on one, then on the other. Of each run: transactions a second, the 99th percentile of their latency, and the processor time that the
server took for one. Where there is go-tpc (https://github.com/pingcap/go-tpc, built with `go build ./cmd/go-tpc`), its TPC-C, too, whose own check of the
database has to be clean afterwards (PostgreSQL's, if it ends within two minutes). `copy`: rows a second of COPY FROM STDIN. Ratios are of the medians over all rounds. The report begins with what
falls short of its target.

By TCP, or with --local by a socket in the file system, which both servers have.

The clients run on the servers' processors. How far a server could get that took no time at all is in the report, too: all processors over what the
client takes for a transaction.

Needs a built Tidepool (`cargo build --release`), PostgreSQL with pgbench, and psycopg2.
"""

import argparse
import io
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import ROOT, TIDEPOOL, machine, postgresql, tidepool
from peers.report import bold, table

SCRIPTS = {"select-only": "select-only", "simple-update": "simple-update", "TPC-B": "tpcb-like"}
MODES = ["prepared", "extended", "simple"]
THROUGHPUT, LATENCY, CPU, COPY = "transactions a second ÷ PostgreSQL's", "p99 latency ÷ PostgreSQL's", "server CPU a transaction ÷ PostgreSQL's", "rows a second ÷ PostgreSQL's"
CHECK_SECONDS = 120
TARGETS = [
    ("simple-update", THROUGHPUT, 3.0, True),
    ("TPC-B", THROUGHPUT, 3.0, True),
    ("simple-update", LATENCY, 1.0, False),
    ("TPC-B", LATENCY, 1.0, False),
    ("select-only", CPU, 0.5, False),
    ("TPC-C", THROUGHPUT, 3.0, True),
    ("TPC-C", LATENCY, 1.0, False),
]


class Tidepool:
    user, database, title = "tidepool", "tidepool", "Tidepool"

    def __init__(self, binary, folder):
        self.folder = Path(tempfile.mkdtemp(prefix="tidepool-", dir=folder))
        self.sockets = self.folder
        self.server = tidepool.Server(binary, self.folder / "data", "--socket-directory", str(self.sockets))
        self.server.start()
        self.server.connect().close()
        self.port, self.pid = self.server.port, self.server.process.pid
        self.version = tidepool.version(binary)

    def cpu_seconds(self):
        return postgresql.cpu_seconds(self.pid)

    def stop(self):
        self.server.stop()
        shutil.rmtree(self.folder)


def url(server, local=False):
    if local:
        return f"postgresql://{server.user}@/{server.database}?host={server.sockets}&port={server.port}"
    return f"postgresql://{server.user}@127.0.0.1:{server.port}/{server.database}"


def pgbench(server, *arguments, cwd=None, local=False):
    program = shutil.which("pgbench") or str(postgresql.folder_of_programs() / "pgbench")
    run = subprocess.run([program, *arguments, url(server, local)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode or "ERROR" in run.stderr:
        raise RuntimeError(f"pgbench {' '.join(arguments)} fails at {server.title}: {run.stderr[-2000:]}")
    return run.stdout


def client_seconds():
    """User and system time of the clients that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(server, script, mode, args):
    """Transactions a second, p99 in ms, and server's and client's CPU in µs a transaction."""
    with tempfile.TemporaryDirectory() as folder:
        before, client = server.cpu_seconds(), client_seconds()
        told = pgbench(server, "-n", "-b", SCRIPTS[script], "-M", mode, "-c", str(args.clients), "-j", str(args.threads), "-T", str(args.seconds),
                       "-l", "--sampling-rate", "0.1", cwd=folder, local=args.local)
        cpu, client = server.cpu_seconds() - before, client_seconds() - client
        count = int(next(line for line in told.splitlines() if "actually processed" in line).split(":")[1].split("/")[0])
        tps = float(next(line for line in told.splitlines() if line.startswith("tps")).split()[2])
        latencies = sorted(int(line.split()[2]) for log in Path(folder).iterdir() for line in log.read_text().splitlines())
    return {"tps": tps, "p99": latencies[int(len(latencies) * 0.99)] / 1e3, "p50": latencies[len(latencies) // 2] / 1e3, "cpu": cpu / count * 1e6, "client": client / count * 1e6}


def go_tpc(server, verb, warehouses, threads, args, *more, seconds=None):
    """What go-tpc says; it tells a failure in what it prints, not in its exit status alone. `TimeoutExpired` after so many seconds."""
    parameters = "sslmode=disable" + (f"&host={server.sockets}" if args.local else "")
    command = [args.go_tpc, "tpcc", verb, "-d", "postgres", "-H", "127.0.0.1", "-P", str(server.port), "-U", server.user, "-D", server.database,
               "--conn-params", parameters, "--warehouses", str(warehouses), "-T", str(threads), *more]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
    # Of a run, what its time cut off has failed, too.
    if run.returncode or "panic" in run.stdout or verb != "run" and "failed" in run.stdout:
        raise RuntimeError(f"go-tpc {verb} fails at {server.title}: {run.stdout[-2000:]}")
    return run.stdout


def measure_tpcc(server, warehouses, args):
    """As `measure`, of go-tpc's mix; p99 is that of New-Order."""
    before, client = server.cpu_seconds(), client_seconds()
    told = go_tpc(server, "run", warehouses, args.clients, args, "--time", f"{args.tpcc_seconds}s")
    cpu, client = server.cpu_seconds() - before, client_seconds() - client
    of = {name: (int(count), float(tpm), float(p50), float(p99)) for name, count, tpm, p50, p99 in re.findall(
        r"\[Summary\] (\w+)\s+- .*?Count: (\d+), TPM: ([\d.]+),.*?50th\(ms\): ([\d.]+).*?99th\(ms\): ([\d.]+)", told)}
    done = {name: figures for name, figures in of.items() if not name.endswith("_ERR")}
    # Transactions that the end of the time cuts off are told as failed: one a client at most.
    errors = sum(figures[0] for name, figures in of.items() if name.endswith("_ERR"))
    if not done or errors > args.clients:
        raise RuntimeError(f"go-tpc run fails at {server.title}: {told[-2000:]}")
    count = sum(figures[0] for figures in done.values())
    _, _, p50, p99 = done["NEW_ORDER"]
    return {"tps": sum(figures[1] for figures in done.values()) / 60, "p99": p99, "p50": p50, "cpu": cpu / count * 1e6, "client": client / count * 1e6}


def check_tpcc(server, warehouses, args):
    """Whether go-tpc's check of its conditions came to an end: it is clean, or this fails. PostgreSQL chooses plans for them, some times, that take hours."""
    connect(server).execute("ANALYZE")
    try:
        go_tpc(server, "check", warehouses, 1, args, seconds=CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        if server.title == Tidepool.title:
            raise
        stop = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        connect(server).execute(stop)
        return False
    return True


def connect(server):
    import psycopg2
    connection = psycopg2.connect(url(server))
    connection.autocommit = True
    return connection.cursor()


def copy(server, args, with_key):
    """Rows a second of COPY FROM STDIN, of rows as pgbench's accounts are."""
    cursor = connect(server)
    cursor.execute("DROP TABLE IF EXISTS copied")
    cursor.execute(f"CREATE TABLE copied (aid int {'PRIMARY KEY' if with_key else 'NOT NULL'}, bid int, abalance int, filler char(84))")
    rows = io.StringIO("".join(f"{row}\t{row // 100000 + 1}\t0\t{row * 7919 % 1000003}\n" for row in range(args.copy_rows)))
    start = time.perf_counter()
    cursor.copy_expert("COPY copied FROM STDIN", rows)
    return args.copy_rows / (time.perf_counter() - start)


def sums_agree(server):
    cursor = connect(server)
    cursor.execute("SELECT (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT coalesce(sum(delta), 0) FROM pgbench_history)")
    return cursor.fetchone()[0] == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--data", type=Path, help="where data folders go")
    parser.add_argument("--scale", type=int, default=10)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2, help="of pgbench")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", default="prepared,extended,simple")
    parser.add_argument("--scripts", default=",".join(SCRIPTS))
    parser.add_argument("--go-tpc", default=shutil.which("go-tpc"), help="go-tpc's program; its TPC-C is left out where there is none")
    parser.add_argument("--warehouses", default="1,4", help="of go-tpc's TPC-C")
    parser.add_argument("--tpcc-seconds", type=int, default=15)
    parser.add_argument("--local", action="store_true", help="connect by local sockets")
    parser.add_argument("--copy-rows", type=int, default=1_000_000)
    parser.add_argument("--only", choices=["tidepool", "postgresql"], help="one of the two, no report")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/oltp.md")
    args = parser.parse_args()
    modes, scripts = [mode for mode in args.modes.split(",") if mode], [script for script in args.scripts.split(",") if script]
    warehouses = [int(count) for count in args.warehouses.split(",") if count] if args.go_tpc else []

    servers = []
    if args.only != "postgresql":
        servers.append(Tidepool(args.tidepool, args.data))
    if args.only != "tidepool":
        servers.append(postgresql.Server(args.data))
    measured = {server.title: {} for server in servers}
    unchecked = set()
    try:
        for server in servers:
            if scripts and modes:
                pgbench(server, "-i", "-q", "-s", str(args.scale))
        for number in range(args.rounds):
            for server in servers if number % 2 == 0 else servers[::-1]:
                for script in scripts:
                    for mode in modes:
                        one = measure(server, script, mode, args)
                        measured[server.title].setdefault((script, mode), []).append(one)
                        print(f"round {number + 1}: {server.title:10} {script:13} {mode:8} {one['tps']:8,.0f} tps, p50 {one['p50']:.2f} ms, p99 {one['p99']:.2f} ms, {one['cpu']:.1f} µs CPU", flush=True)
                for count in warehouses:
                    # Loaded anew: what a run adds grows what the next one reads.
                    go_tpc(server, "prepare", count, 2, args)
                    # Not left to autovacuum's chance.
                    connect(server).execute("ANALYZE")
                    one = measure_tpcc(server, count, args)
                    if not check_tpcc(server, count, args):
                        unchecked.add(warehouses_of(count))
                    go_tpc(server, "cleanup", count, 1, args)
                    measured[server.title].setdefault(("TPC-C", warehouses_of(count)), []).append(one)
                    print(f"round {number + 1}: {server.title:10} TPC-C, {warehouses_of(count)}: {one['tps']:,.0f} tps, p50 {one['p50']:.2f} ms, p99 {one['p99']:.2f} ms, {one['cpu']:.1f} µs CPU", flush=True)
                for with_key in (False, True) if args.copy_rows else ():
                    rows = copy(server, args, with_key)
                    measured[server.title].setdefault(("copy", with_key), []).append(rows)
                    print(f"round {number + 1}: {server.title:10} COPY {'with a key' if with_key else 'without'} {rows:,.0f} rows/s", flush=True)
        agree = {server.title: sums_agree(server) for server in servers if scripts and modes}
        versions = {server.title: server.version for server in servers}
    finally:
        for server in servers:
            server.stop()
    if not all(agree.values()):
        sys.exit(f"sums do not agree: {agree}")
    if args.only:
        return
    write(args, [(script, mode) for script in scripts for mode in modes] + [("TPC-C", warehouses_of(count)) for count in warehouses], measured, versions, unchecked)


def warehouses_of(count):
    return f"{count} warehouse{'s' if count > 1 else ''}"


def middle(measured, title, key, figure):
    return statistics.median(one[figure] for one in measured[title][key])


def write(args, keys, measured, versions, unchecked):
    ours, theirs = "Tidepool", "PostgreSQL"
    figures = {}
    rows = []
    bounds = []
    for key in keys:
        script, mode = key
        of = {title: {figure: middle(measured, title, key, figure) for figure in ("tps", "p99", "cpu", "client")} for title in (ours, theirs)}
        ratios = {THROUGHPUT: of[ours]["tps"] / of[theirs]["tps"], LATENCY: of[ours]["p99"] / of[theirs]["p99"], CPU: of[ours]["cpu"] / of[theirs]["cpu"]}
        figures.update({(script, mode, name): value for name, value in ratios.items()})
        rows.append([f"{script}, {mode}", *(f"{of[title]['tps']:,.0f}" for title in (ours, theirs)), bold(f"{ratios[THROUGHPUT]:.2f}"),
                     *(f"{of[title]['p99']:.2f}" for title in (ours, theirs)), bold(f"{ratios[LATENCY]:.2f}"),
                     *(f"{of[title]['cpu']:.1f}" for title in (ours, theirs)), bold(f"{ratios[CPU]:.2f}")])
        most = os.cpu_count() * 1e6 / of[ours]["client"]
        figures[script, mode, "bound"] = most / of[theirs]["tps"]
        bounds.append([f"{script}, {mode}", *(f"{of[title]['client']:.1f}" for title in (ours, theirs)), f"{most:,.0f}", bold(f"{most / of[theirs]['tps']:.2f}")])
    short = []
    for script, figure, bound, at_least in TARGETS:
        for _, mode in [key for key in keys if key[0] == script]:
            value = figures[script, mode, figure]
            if value < bound if at_least else value > bound:
                most = f" (a server that took no time at all would have {figures[script, mode, 'bound']:.2f} on these processors)" if figure == THROUGHPUT else ""
                short.append(f"* {script}, {mode}: {figure} is {value:.2f}; the target is {bound:g} at {'least' if at_least else 'most'}{most}.")
    copies = []
    for with_key in (False, True):
        key = ("copy", with_key)
        if key in measured[ours]:
            mine, other = (statistics.median(measured[title][key]) for title in (ours, theirs))
            copies.append([f"COPY FROM STDIN, {'with a primary key' if with_key else 'no index'}", f"{mine:,.0f}", f"{other:,.0f}", bold(f"{mine / other:.2f}")])
            if mine / other < 3:
                short.append(f"* COPY FROM STDIN, {'with a primary key' if with_key else 'no index'}: {COPY} is {mine / other:.2f}; the target is 3 at least.")
    tpcc = ""
    if any(script == "TPC-C" for script, _ in keys):
        tpcc = (f" TPC-C is go-tpc's mix, unmodified, {args.clients} threads without think times, {args.tpcc_seconds} s a run, loaded anew for each; its p99 is New-Order's. "
                "All of go-tpc's consistency conditions held after every run, on both"
                + (f", but that PostgreSQL's check did not end in {CHECK_SECONDS} s with {' and '.join(sorted(unchecked))}." if unchecked else "."))
    lines = [
        "# Transactions over the wire, beside PostgreSQL",
        "",
        f"Written by `bench/oltp.py`. {machine.describe()}. Tidepool {versions[ours]}, PostgreSQL {versions[theirs]} "
        f"({', '.join(f'{name} = {value}' for name, value in postgresql.SETTINGS.items() if name in ('shared_buffers', 'max_wal_size', 'checkpoint_timeout'))}); data folders on the same "
        f"disk, commits wait for it. pgbench at scale {args.scale}, {args.clients} clients on {args.threads} threads, on the same processors as the servers, {'by local sockets' if args.local else 'by TCP'}; {args.rounds} rounds of {args.seconds} s, in turns. Medians.",
        "",
        "## What falls short",
        "",
        *(short or ["Nothing."]),
        "",
        "## Transactions",
        "",
        "CPU is the server's user and system time, µs a transaction; p99 is in ms." + tpcc,
        "",
        *table(["", "Tidepool, tps", "PostgreSQL, tps", "÷", "Tidepool, p99", "PostgreSQL, p99", "÷", "Tidepool, CPU", "PostgreSQL, CPU", "÷"], rows),
        "## What the clients take",
        "",
        f"User and system time of pgbench and go-tpc, µs a transaction. Most: the transactions a second for which the {os.cpu_count()} processors would do nothing else, and their "
        "ratio to PostgreSQL's above. No server reaches more beside its client.",
        "",
        *table(["", "beside Tidepool", "beside PostgreSQL", "most, tps", "÷"], bounds),
        "## COPY",
        "",
        f"{args.copy_rows:,} rows like pgbench's accounts, rows a second.",
        "",
        *table(["", "Tidepool", "PostgreSQL", "÷"], copies),
    ]
    args.output.write_text("\n".join(lines).rstrip() + "\n")
    print("\n".join(short) or "nothing falls short")


if __name__ == "__main__":
    main()
