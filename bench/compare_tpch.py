#!/usr/bin/env python3
"""TPC-H in Tidepool, plain DataFusion, DuckDB and Hyper, with what each takes of memory: docs/results/tpch.md.

Measured as `bench/compare.py` does. Plain DataFusion is the release that Tidepool uses, by itself over uncompressed Arrow tables.
"""

import argparse
import functools
import platform
import sys
import tempfile
import time
from pathlib import Path

from peers import ROOT, TIDEPOOL, machine, measure, report, tidepool, workloads


def written(args, comparison):
    mean = {engine: comparison.geometric_mean(engine) for engine in comparison.measured}
    smaller = comparison.middle("plain-datafusion", "stored_bytes") / comparison.middle("tidepool", "stored_bytes")
    version = {engine: comparison.measured[engine][0].get("version", "") for engine in ("tidepool", "duckdb", "hyper")}
    lines = [
        f"# TPC-H beside other databases, scale factor {args.sf:g}",
        "",
        f"Written by `bench/compare_tpch.py` on {time.strftime('%Y-%m-%d', time.gmtime())}. Milliseconds, median of {args.rounds * args.repeat} runs "
        f"({args.rounds} rounds in which the engines take turns, each in a fresh process), {args.threads} threads, everything in memory, the same rows. "
        "A ratio is Tidepool's time by the other's.",
        "",
        f"Machine: {machine.describe()}. Python {platform.python_version()}. Tidepool {version['tidepool']}, DuckDB {version['duckdb']}, Hyper {version['hyper']}.",
        "",
        *report.comparison_table(comparison),
        "Tidepool and DataFusion generate their rows while they load, DuckDB and Hyper read them from Parquet, so load times cannot be held against "
        "each other. DataFusion is the release that Tidepool uses, by itself over uncompressed Arrow tables (`--engine plain-datafusion`). Hyper keeps "
        "its tables in a file, here on tmpfs, whose pages do not all count as its process's.",
        "",
        *(report.faults(comparison) or ["All gave the same answers."]),
        "",
        f"Tidepool takes {mean['tidepool'] / mean['plain-datafusion']:.2f} times plain DataFusion's geometric mean, with tables {smaller:.1f} times smaller.",
        "",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--sf", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each query in a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--queries", default="1-22")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tidepool-compare", help="folder for generated rows")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/tpch.md")
    args = parser.parse_args()
    workload = workloads.tpch(args.data, args.sf, args.tidepool).only(args.queries)
    bench = functools.partial(tidepool.bench, args.tidepool, "tpch", args.sf, args.threads, args.repeat, queries=args.queries)
    measures = {"tidepool": bench, "plain-datafusion": functools.partial(bench, operators="plain-datafusion")}
    for peer in ("duckdb", "hyper"):
        measures[peer] = functools.partial(measure.worker, peer, args.threads, args.tidepool, workload, repeat=args.repeat)
    comparison = measure.compare(workload, args.rounds, measures)
    text = written(args, comparison)
    args.out.write_text(text)
    print(text)
    sys.exit(1 if report.faults(comparison) else 0)


if __name__ == "__main__":
    main()
