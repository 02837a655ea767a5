#!/usr/bin/env python3
"""The engine's account of far memory beside an independent witness.

Tidepool runs TPC-H queries under `valgrind --tool=lackey --trace-mem=yes`, which tells every load and store. A cache simulator
that shares no code with the engine (crates/cachesim) follows them, with the same last-level cache that the engine accounts
with, and counts the lines that would have come from, and gone back to, each tablespace's addresses. The table sets that beside
what the engine's own counters claimed. The cache is empty when a query starts.

The witness follows a query once, with caches of all sizes at the same time. What the engine claims depends on the cache that it is
told of, so it runs the query again for each size, by itself: that takes a second. `--seen` takes what the witness saw from an
earlier run's `--json`, to see what a change of the engine's account claims for the same queries.

Needs valgrind and a built Tidepool (`cargo build --release`); a minute or two a query at scale factor 0.02.
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
    parser.add_argument("--sf", default="0.02,0.05", help="scale factors")
    parser.add_argument("--cache", default="512,4096", help="last-level caches, KiB")
    parser.add_argument("--queries", default="1,3,6,9,13,18")
    parser.add_argument("--datafusion", action="store_true", help="by DataFusion's operators instead of the engine's")
    parser.add_argument("--seen", help="take what the witness saw from this file, which --json wrote")
    parser.add_argument("--out", help="write the table into this Markdown file")
    parser.add_argument("--json", help="write the figures into this file")
    args = parser.parse_args()
    if not args.seen and not Path(args.cachesim).exists():
        subprocess.run(["cargo", "build", "--release", "-p", "tidepool-cachesim", "--example", "cachesim"], cwd=ROOT, check=True)

    caches = [int(size) << 10 for size in args.cache.split(",")]
    before = {key(row): row["seen"] for row in json.loads(Path(args.seen).read_text())} if args.seen else {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for sf in args.sf.split(","):
            data = Path(folder) / f"data{sf}"
            observe = [args.tidepool, "observe", "--data", str(data)] + ["--datafusion"] * args.datafusion
            subprocess.run(observe + ["--sf", sf, "--prepare"], check=True, stderr=subprocess.DEVNULL)
            for query in args.queries.split(","):
                start = time.time()
                made = [{"sf": sf, "query": query, "cache": cache} for cache in caches]
                missing = [row["cache"] for row in made if key(row) not in before]
                seen = watch(observe, query, args.cachesim, missing, Path(folder)) if missing else {}
                for row in made:
                    row["claimed"] = claim(observe, query, row["cache"], Path(folder))
                    row["seen"] = before[key(row)] if key(row) in before else seen[row["cache"]]
                rows += made
                print(f"scale factor {sf}, Q{query}: {time.time() - start:.0f} s", file=sys.stderr)
                if args.json:
                    Path(args.json).write_text(json.dumps(rows, indent=2) + "\n")
    text = report(rows, bool(args.seen))
    if args.out:
        Path(args.out).write_text(text)
    print(text)


def key(row):
    return row["sf"], row["query"], row["cache"]


def claim(observe, query, cache, folder):
    """The engine's account of one query with a cache of that many bytes."""
    claims = folder / "claims.json"
    command = observe + ["--last-level-cache", str(cache), "--queries", query, "--json", str(claims)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return json.loads(claims.read_text())[0]


def watch(observe, query, cachesim, caches, folder):
    """What the simulator saw of one query, by cache."""
    setup = folder / "setup"
    for left in (setup, folder / "setup.seen"):
        left.unlink(missing_ok=True)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, 1 << 20)
    sizes = [str(cache) for cache in caches]
    simulator = subprocess.Popen([cachesim, str(setup)] + sizes, stdin=reading, stdout=subprocess.PIPE, text=True)
    os.close(reading)
    valgrind = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--basic-counts=no", f"--log-fd={writing}"]
    command = valgrind + observe + ["--queries", query, "--setup", str(setup), "--json", os.devnull]
    subprocess.run(command, check=True, pass_fds=[writing], stderr=subprocess.DEVNULL)
    os.close(writing)
    seen, _ = simulator.communicate()
    if simulator.returncode != 0:
        sys.exit("the simulator failed")
    return {one["last_level_cache_bytes"]: one["intervals"][0] for one in json.loads(seen)}


def lines(count):
    return f"{count:,.0f}"


# Fewer lines than this are 64 KB: whatever the account says of them, a query's time does not depend on it.
FEW = 1000


def beside(claimed, seen):
    """Three cells: claimed, seen, and by how much the claim is off."""
    if max(claimed, seen) < FEW or seen == 0:
        return f"{lines(claimed)} | {lines(seen)} | –"
    return f"{lines(claimed)} | {lines(seen)} | {100 * (claimed / seen - 1):+.0f} %"


def report(rows, earlier):
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    text = [
        "# The cost model held to account",
        "",
        f"Written by `bench/hold_to_account.py` on {datetime.date.today()}{', the witness on an earlier day' if earlier else ''}: TPC-H, "
        "one thread. *Claimed* is what the engine's counters say crossed a tablespace's link (`tidepool.pacing`); *seen* is what a "
        "cache simulator outside the engine counted over every load and store of the process, as valgrind tells them. Cache lines "
        f"of 64 bytes; the cache is empty when a query starts. No percentage where both are below {FEW:,} lines.",
    ]
    for sf, cache in dict.fromkeys((row["sf"], row["cache"]) for row in rows):
        text += [
            "",
            f"Scale factor {sf}, a last-level cache of {cache >> 10:,} KiB:",
            "",
            "| query | main, claimed | seen | off | heap read, claimed | seen | off | heap written, claimed | seen | off |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for row in rows:
            if (row["sf"], row["cache"]) != (sf, cache):
                continue
            claimed, seen = row["claimed"], row["seen"]
            main = beside(claimed["main"]["link_bytes_read"] / LINE, seen["main"]["load_misses"])
            read = beside(claimed["heap"]["link_bytes_read"] / LINE, seen["heap"]["load_misses"])
            written = beside(claimed["heap"]["link_bytes_written"] / LINE, seen["heap"]["written_back"])
            text.append(f"| Q{row['query']} | {main} | {read} | {written} |")
    text += ["", f"Made on {model.split(':')[1].strip()}."]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    main()
