#!/usr/bin/env python3
"""TPC-C in Tidepool (embedded) and Silo, by turns: docs/results/tpcc.md.

Silo is the authors' code (github.com/stephentu/silo with masstree), built with `MYSQL=0 MODE=perf make dbtest`; --silo is its
`out-perf.masstree/benchmarks/dbtest`. Both run terminals without think time, as many as warehouses, for the same seconds. Silo reads what its
own code of TPC-C does: no OL_DIST_INFO, stock without its texts, no rollbacks. Both take their memory from the system before the terminals begin, as
much as each other: Silo by --numa-memory, Tidepool by `populate`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import ROOT, TIDEPOOL, machine

# Name, mix of Tidepool, mix of Silo, (threads, warehouses), durable.
RUNS = [
    (f"{title}, {threads} thread{'s' if threads > 1 else ''}", mix, silo, threads, durable)
    for durable in (False, True)
    for title, mix, silo in (
        ("durable full mix" if durable else "full mix", "standard", "45,43,4,4,4"),
        ("durable NewOrder and Payment" if durable else "NewOrder and Payment", "neworder-payment", "50,50,0,0,0"),
    )
    for threads in (1, 2)
    if not (durable and mix == "neworder-payment")
]
GOAL = 1.5


def memory(threads):
    """That is taken beforehand, GB."""
    return 2 * threads


def tidepool(args, mix, threads, durable):
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        command = [args.tidepool, "bench", "tpcc", "--warehouses", threads, "--threads", threads, "--seconds", args.seconds, "--mix", mix, "--json", Path(folder) / "result.json"]
        if durable:
            command += ["--durable", Path(folder) / "data"]
        environment = {**os.environ, "TIDEPOOL_NEAR": f"populate={memory(threads)}GB"}
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment)
        if done.returncode != 0:
            sys.exit(f"{done.stdout}\n{done.stderr}")
        return json.loads((Path(folder) / "result.json").read_text())


def silo(args, mix, threads, durable):
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        command = [args.silo, "--bench", "tpcc", "--db-type", "ndb-proto2", "--num-threads", threads, "--scale-factor", threads]
        command += ["--runtime", args.seconds, "--numa-memory", f"{memory(threads)}G", "--parallel-loading", "--bench-opts", f"--workload-mix={mix}"]
        if durable:
            command += ["--logfile", Path(folder) / "log", "--assignment", ",".join(str(thread) for thread in range(threads))]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        # The last line: throughput, that of what is persistent, latencies in ms, aborts.
        numbers = [float(word) for word in done.stdout.split()[-5:]]
        if done.returncode != 0 or len(numbers) != 5:
            sys.exit(f"{done.stdout}\n{done.stderr}")
        return {"per_second": numbers[1], "persisted_ms": numbers[3]}


def middle(results, *path):
    def value(result):
        for key in path:
            result = result[key]
        return result

    return statistics.median(value(result) for result in results)


def written(args, measured):
    rows = []
    for name, ours, theirs, durable in measured:
        us, them = middle(ours, "run", "per_second"), middle(theirs, "per_second")
        p99 = f"{middle(ours, 'run', 'acknowledged_p99_us') / 1000:.1f}" if durable else "–"
        rows.append((us / them, f"| {name} | {us:,.0f} | {them:,.0f} | {us / them:.2f} | {p99} | {middle(ours, 'run', 'retries'):,.0f} |"))
    short = [row for row in sorted(rows) if row[0] < GOAL]
    met = [row for row in sorted(rows) if row[0] >= GOAL]
    kinds = measured[0][1][0]["run"]["kinds"]
    first = measured[0][1][0]
    breaches = [breach for _, ours, _, _ in measured for result in ours for breach in result["breaches"]]
    lines = [
        "# TPC-C beside Silo",
        "",
        f"Written by `bench/tpcc.py` on {time.strftime('%Y-%m-%d', time.gmtime())}. Transactions a second, medians of {args.rounds} runs of {args.seconds} s each, in which the two take turns. "
        "As many warehouses as threads; terminals have no think time. Tidepool at `SERIALIZABLE` with reads over versions, its tables whole; Silo's own TPC-C leaves out "
        "texts of districts in order lines, the texts of stock, and rollbacks. Both have taken 2 GB for each thread from the system beforehand.",
        "",
        f"Machine: {machine.describe()}.",
        "",
        f"The goal is {GOAL} times Silo. It is missed in {len(short)} of {len(rows)}; those come first.",
        "",
        "| | Tidepool | Silo | ratio | durable after, p99 ms | retries |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(row[1] for row in short + met),
        "",
        *(["The consistency conditions of clause 3.3.2 held after every run."] if not breaches else ["**Conditions that did not hold:**", *breaches]),
        "",
        "Of the first configuration, microseconds from a transaction's begin to its commit:",
        "",
        "| | a second | mean | p50 | p99 |",
        "| --- | ---: | ---: | ---: | ---: |",
        *(f"| {kind['kind']} | {kind['per_second']:,.0f} | {kind['mean_us']:.1f} | {kind['p50_us']:.1f} | {kind['p99_us']:.1f} |" for kind in kinds if kind["count"]),
        "",
        "| table | bytes a row | | index | bytes a key |",
        "| --- | ---: | --- | --- | ---: |",
        *(
            f"| {table['name']} | {table['bytes_per_row']:.0f} | | {index['name']} | {index['bytes_per_key']:.0f} |"
            for table, index in zip(first["tables"] + [{"name": "", "bytes_per_row": 0}], first["indexes"])
        ),
        "",
    ]
    return "\n".join(lines), short, breaches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--silo", type=Path, required=True, help="Silo's dbtest")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="names that contain this")
    parser.add_argument("--folder", type=Path, help="for logs: on the disk that is to be measured")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/tpcc.md")
    args = parser.parse_args()
    measured = []
    for name, mix, mix_of_silo, threads, durable in RUNS:
        if args.only and args.only not in name:
            continue
        ours, theirs = [], []
        for _ in range(args.rounds):
            theirs.append(silo(args, mix_of_silo, threads, durable))
            ours.append(tidepool(args, mix, threads, durable))
        measured.append((name, ours, theirs, durable))
        print(f"{name}: {middle(ours, 'run', 'per_second'):,.0f} beside {middle(theirs, 'per_second'):,.0f}", file=sys.stderr)
    text, short, breaches = written(args, measured)
    args.out.write_text(text)
    print(text)
    sys.exit(1 if breaches else 0)


if __name__ == "__main__":
    main()
