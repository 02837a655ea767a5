#!/usr/bin/env python3
"""TPC-H in Tidepool, plain DataFusion, DuckDB and Hyper: same rows, same machine, in memory, by turns.

Each round starts every engine once in a process of its own, loads, warms up and times every query; the next round does
so again, so that a slow moment of the machine does not fall on one engine alone. Medians are over all rounds.
Tidepool checks its answers against the published ones; the others' row counts are checked against Tidepool's.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUERIES = ROOT / "crates" / "bench" / "src" / "tpch" / "queries"
TABLES = ["lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region"]
ENGINES = ["tidepool", "plain-datafusion", "duckdb", "hyper"]
TITLES = {"tidepool": "Tidepool", "plain-datafusion": "DataFusion", "duckdb": "DuckDB", "hyper": "Hyper"}


def resident_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def query_text(number):
    return (QUERIES / f"q{number}.sql").read_text().strip().rstrip(";")


def timed(queries, repeat, run):
    """`run(sql)` returns the number of rows."""
    runs, rows = {}, {}
    for number in queries:
        sql = query_text(number)
        name = f"q{number}"
        rows[name] = run(sql)
        runs[name] = []
        for _ in range(repeat):
            start = time.perf_counter()
            run(sql)
            runs[name].append((time.perf_counter() - start) * 1e3)
    return runs, rows


def duckdb_worker(data, queries, repeat, threads):
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(f"SET threads = {threads}")
    start = time.perf_counter()
    for table in TABLES:
        connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{data / (table + '.parquet')}')")
    load_s = time.perf_counter() - start
    held = connection.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchall()[0][0]
    memory = resident_bytes(os.getpid())
    runs, rows = timed(queries, repeat, lambda sql: connection.sql(sql).to_arrow_table().num_rows)
    return {"version": duckdb.__version__, "load_s": load_s, "data_bytes": held, "resident_bytes": memory, "runs": runs, "rows": rows}


def hyper_worker(data, queries, repeat, threads):
    import tableauhyperapi
    from tableauhyperapi import Connection, CreateMode, HyperProcess, Telemetry

    # Hyper keeps its database in a file: in memory means a file on tmpfs.
    folder = Path(tempfile.mkdtemp(prefix="tidepool-hyper-", dir="/dev/shm"))
    database = folder / "tpch.hyper"
    parameters = {"log_config": "", "max_query_threads": str(threads)}
    try:
        process = HyperProcess(Telemetry.DO_NOT_SEND_USAGE_DATA_TO_TABLEAU, parameters=parameters)
    except Exception:
        del parameters["max_query_threads"]
        process = HyperProcess(Telemetry.DO_NOT_SEND_USAGE_DATA_TO_TABLEAU, parameters=parameters)
    with process:
        with Connection(process.endpoint, str(database), CreateMode.CREATE_AND_REPLACE) as connection:
            start = time.perf_counter()
            for table in TABLES:
                path = str(data / (table + ".parquet")).replace("'", "''")
                connection.execute_command(f"CREATE TABLE {table} AS (SELECT * FROM external('{path}'))")
            load_s = time.perf_counter() - start
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            memory = sum(resident_bytes(pid) for pid in children)

            def run(sql):
                rows = 0
                with connection.execute_query(sql) as result:
                    while result.next_row():
                        rows += 1
                return rows

            runs, rows = timed(queries, repeat, run)
        size = database.stat().st_size
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return {"version": tableauhyperapi.__version__, "load_s": load_s, "data_bytes": size, "resident_bytes": memory, "runs": runs, "rows": rows}


def tidepool(args, engine):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [args.tidepool, "bench", "tpch", "--sf", str(args.sf), "--threads", str(args.threads), "--repeat", str(args.repeat),
                   "--engine", engine, "--json", out.name, "--queries", args.queries]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result = json.load(open(out.name))
    placement = result["placements"][0]
    return {
        "version": result["tidepool_version"],
        "load_s": result["load"]["seconds"],
        "data_bytes": result["load"]["encoded_bytes"],
        "resident_bytes": result["load"]["process_resident_bytes"],
        "runs": {query["name"]: query["runs_ms"] for query in placement["queries"]},
        "rows": {query["name"]: query["rows"] for query in placement["queries"]},
        "machine": result["machine"],
    }


def measure(args, engine):
    if engine in ("tidepool", "plain-datafusion"):
        return tidepool(args, engine)
    command = [sys.executable, __file__, "--worker", engine, "--data", str(args.data), "--threads", str(args.threads),
               "--repeat", str(args.repeat), "--queries", args.queries]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def numbers(text):
    selected = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        selected.extend(range(int(first), int(last or first) + 1))
    return selected


def megabytes(size):
    return f"{size / 2**20:,.0f} MB"


def report(args, measured):
    names = [f"q{number}" for number in numbers(args.queries)]
    medians = {
        engine: {name: statistics.median([ms for one in rounds for ms in one["runs"][name]]) for name in names}
        for engine, rounds in measured.items()
    }
    machine = measured["tidepool"][0]["machine"]
    engines = list(measured)
    lines = [
        f"# TPC-H beside other databases, scale factor {args.sf:g}",
        "",
        f"Written by `bench/compare_tpch.py` on {time.strftime('%Y-%m-%d', time.gmtime())}. Milliseconds, median of {args.rounds * args.repeat} runs "
        f"({args.rounds} rounds in which the engines take turns, each in a fresh process), {args.threads} threads, everything in memory, the same rows.",
        "",
        f"Machine: {machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_bytes'] / 2**30:.0f} GB, Linux {machine['kernel']}, "
        f"transparent huge pages {machine['transparent_huge_pages']}. Python {platform.python_version()}.",
        "",
        "| | " + " | ".join(f"{TITLES[engine]} {measured[engine][0]['version'] if engine not in ('plain-datafusion',) else '(as in Tidepool)'}" for engine in engines) + " |",
        "|---|" + "---:|" * len(engines),
    ]
    for name in names:
        best = min(medians[engine][name] for engine in engines)
        cells = [f"**{medians[engine][name]:.1f}**" if medians[engine][name] == best else f"{medians[engine][name]:.1f}" for engine in engines]
        lines.append(f"| {name.upper()} | " + " | ".join(cells) + " |")
    geometric = {engine: math.exp(statistics.fmean(math.log(ms) for ms in medians[engine].values())) for engine in engines}
    total = {engine: sum(medians[engine].values()) for engine in engines}
    middle = lambda engine, key: statistics.median(one[key] for one in measured[engine])
    lines += [
        "| **geometric mean** | " + " | ".join(f"**{geometric[engine]:.1f}**" for engine in engines) + " |",
        "| sum | " + " | ".join(f"{total[engine]:.0f}" for engine in engines) + " |",
        "| tables after load | " + " | ".join(megabytes(middle(engine, "data_bytes")) for engine in engines) + " |",
        "| process after load | " + " | ".join(megabytes(middle(engine, "resident_bytes")) for engine in engines) + " |",
        "| load, s | " + " | ".join(f"{middle(engine, 'load_s'):.1f}" for engine in engines) + " |",
        "",
        "Tidepool and DataFusion generate their rows while they load, DuckDB and Hyper read them from Parquet, so load times cannot be held against "
        "each other. DataFusion is the release that Tidepool uses, by itself over uncompressed Arrow tables (`--engine plain-datafusion`). Hyper keeps "
        "its tables in a file, here on tmpfs, whose pages do not all count as its process's. Tidepool's answers were checked against the published ones; "
        + ("every engine returned the same number of rows." if not args.row_differences else "row counts differ: " + "; ".join(args.row_differences) + "."),
        "",
        f"Tidepool takes {geometric['tidepool'] / geometric['plain-datafusion']:.2f} times plain DataFusion's geometric mean, with tables "
        f"{middle('plain-datafusion', 'data_bytes') / middle('tidepool', 'data_bytes'):.1f} times smaller." if "plain-datafusion" in engines else "",
        "",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", default=str(ROOT / "target" / "release" / "tidepool"))
    parser.add_argument("--sf", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each query in a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--queries", default="1-22")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tidepool-tpch")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tpch.md")
    parser.add_argument("--json", type=Path, help="write everything measured")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()

    if args.worker:
        worker = {"duckdb": duckdb_worker, "hyper": hyper_worker}[args.worker]
        print(json.dumps(worker(args.data, numbers(args.queries), args.repeat, args.threads)))
        return

    args.data = args.data / f"sf{args.sf:g}"
    if not all((args.data / f"{table}.parquet").exists() for table in TABLES):
        print(f"exporting rows to {args.data}", file=sys.stderr)
        subprocess.run([args.tidepool, "bench", "tpch", "--sf", str(args.sf), "--queries", "1", "--repeat", "0", "--export", str(args.data)],
                       check=True, stdout=subprocess.DEVNULL)
    measured = {}
    for number in range(args.rounds):
        for engine in args.engines.split(","):
            print(f"round {number + 1} of {args.rounds}: {TITLES[engine]}", file=sys.stderr)
            measured.setdefault(engine, []).append(measure(args, engine))
    args.row_differences = []
    for engine, rounds in measured.items():
        for name, rows in rounds[0]["rows"].items():
            if rows != measured["tidepool"][0]["rows"][name]:
                args.row_differences.append(f"{TITLES[engine]} {name.upper()} {rows}")
    if args.json:
        args.json.write_text(json.dumps(measured, indent=1))
    text = report(args, measured)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
