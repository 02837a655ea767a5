#!/usr/bin/env python3
"""The engine's account of far memory beside an independent witness.

Tidepool runs TPC-H queries under `valgrind --tool=lackey --trace-mem=yes`, which tells every load and store. A cache simulator
that shares no code with the engine (crates/cachesim) follows them, with the same last-level cache that the engine accounts
with, and counts the lines that would have come from, and gone back to, each tablespace's addresses. The table sets that beside
what the engine's own counters claimed. The cache is empty when a query starts.

Needs valgrind and a built Tidepool (`cargo build --release`); about a minute a query at the default size.
"""

import argparse
import datetime
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
F_SETPIPE_SZ = 1031
LINE = 64


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", default=str(ROOT / "target/release/tidepool"))
    parser.add_argument("--cachesim", default=str(ROOT / "target/release/examples/cachesim"))
    parser.add_argument("--sf", type=float, default=0.02)
    parser.add_argument("--cache", type=int, default=512 << 10, help="last-level cache, bytes")
    parser.add_argument("--queries", default="1,3,6,9,13,18")
    parser.add_argument("--out", help="write the table into this Markdown file")
    parser.add_argument("--json", help="write the figures into this file")
    args = parser.parse_args()
    if not Path(args.cachesim).exists():
        subprocess.run(["cargo", "build", "--release", "-p", "tidepool-cachesim", "--example", "cachesim"], cwd=ROOT, check=True)

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        observe = [args.tidepool, "observe", "--data", str(data), "--last-level-cache", str(args.cache)]
        subprocess.run(observe + ["--sf", str(args.sf), "--prepare"], check=True, stderr=subprocess.DEVNULL)
        for query in args.queries.split(","):
            start = time.time()
            account, seen = watch(observe, query, args.cachesim, args.cache, Path(folder))
            rows.append((account["query"], account, seen))
            print(f"{account['query']}: {time.time() - start:.0f} s", file=sys.stderr)
    if args.json:
        figures = [{"query": query, "claimed": account, "seen": seen} for query, account, seen in rows]
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")
    text = table(rows, args)
    if args.out:
        Path(args.out).write_text(text)
    print(text)


def watch(observe, query, cachesim, cache, folder):
    """One query under the witness: the engine's account and what the simulator saw."""
    setup, claims = folder / f"setup{query}", folder / f"claims{query}.json"
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, 1 << 20)
    simulator = subprocess.Popen([cachesim, str(setup), str(cache)], stdin=reading, stdout=subprocess.PIPE, text=True)
    os.close(reading)
    valgrind = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no", f"--log-fd={writing}"]
    command = valgrind + observe + ["--queries", query, "--setup", str(setup), "--json", str(claims)]
    subprocess.run(command, check=True, pass_fds=[writing], stderr=subprocess.DEVNULL)
    os.close(writing)
    seen, _ = simulator.communicate()
    if simulator.returncode != 0:
        sys.exit("the simulator failed")
    return json.loads(claims.read_text())[0], json.loads(seen)[0]


def lines(count):
    return f"{count:,.0f}"


def beside(claimed, seen):
    """Three cells: claimed, seen, and by how much the claim is off."""
    if max(claimed, seen) < 100:
        return f"{lines(claimed)} | {lines(seen)} | –"
    if seen == 0:
        return f"{lines(claimed)} | 0 | –"
    return f"{lines(claimed)} | {lines(seen)} | {100 * (claimed / seen - 1):+.0f} %"


def table(rows, args):
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    text = [
        "# The cost model held to account",
        "",
        f"Written by `bench/hold_to_account.py` on {datetime.date.today()}: TPC-H at scale factor {args.sf:g}, one thread, a "
        f"last-level cache of {args.cache >> 10} KiB. *Claimed* is what the engine's counters say crossed a tablespace's link "
        "(`tidepool.pacing`); *seen* is what a cache simulator outside the engine counted over every load and store of the "
        "process, as valgrind tells them. Cache lines of 64 bytes; the cache is empty when a query starts.",
        "",
        "| query | main, claimed | seen | off | heap read, claimed | seen | off | heap written, claimed | seen | off |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for query, account, seen in rows:
        main = beside(account["main"]["link_bytes_read"] / LINE, seen["main"]["load_misses"])
        read = beside(account["heap"]["link_bytes_read"] / LINE, seen["heap"]["load_misses"])
        written = beside(account["heap"]["link_bytes_written"] / LINE, seen["heap"]["written_back"])
        text.append(f"| {query.upper()} | {main} | {read} | {written} |")
    text += ["", f"Made on {model.split(':')[1].strip()}."]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    main()
