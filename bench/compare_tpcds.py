#!/usr/bin/env python3
"""The answers of the 99 TPC-DS queries in Tidepool and in DuckDB, over the same rows: docs/results/tpcds.md.

Compared as `bench/peers/results.py` says, which `bench/compare.py` does, too; here with a verdict on each query.
"""

import argparse
import collections
import functools
import sys
import tempfile
import time
from pathlib import Path

from peers import ROOT, TIDEPOOL, machine, measure, report, tidepool, workloads


def verdict(comparison, query):
    """(verdict, rows, detail)"""
    ours, theirs = comparison.rows("tidepool", query), comparison.rows("duckdb", query)
    if ours is None:
        return "error", "–", comparison.error("tidepool", query)
    if theirs is None:
        return "DuckDB cannot run it", f"{len(ours)}", comparison.error("duckdb", query)
    for pair in (("tidepool", query), ("duckdb", query)):
        if pair in comparison.differences:
            return "differ", f"{len(ours)}", comparison.differences[pair]
    return "agree", f"{len(ours)}", ""


def written(args, comparison):
    verdicts = {query: verdict(comparison, query) for query in comparison.workload.queries}
    counts = collections.Counter(one for one, _, _ in verdicts.values())
    empty = [query.upper() for query, (one, rows, _) in verdicts.items() if one == "agree" and rows == "0"]
    rows = [[query.upper(), one, count, *(report.milliseconds(comparison.median_ms(engine, query)) for engine in ("tidepool", "duckdb")), report.cell(detail)]
            for query, (one, count, detail) in verdicts.items()]
    lines = [
        f"# TPC-DS beside DuckDB, scale factor {args.sf:g}",
        "",
        f"Written by `bench/compare_tpcds.py` on {time.strftime('%Y-%m-%d', time.gmtime())}: the queries in Tidepool and DuckDB over the same rows, "
        "with PostgreSQL's rules for integer division and the order of NULLs in both. " + ", ".join(f"**{count} {one}**" for one, count in counts.most_common()) + ".",
        "",
        "Results are compared as multisets, numbers to 1e-4 or one in a million. Where a LIMIT cuts through rows that tie, each of Tidepool's rows must be in "
        "DuckDB's result without the LIMIT." + (f" These agree on an empty result, which proves less: {', '.join(empty)}." if empty else ""),
        "",
        f"The tables are {report.megabytes(comparison.middle('tidepool', 'stored_bytes'))} in main. Times are single runs after one to warm up, on {machine.describe()}, "
        f"{args.threads} threads: a hint, not a comparison.",
        "",
        *report.table(["query", "answer", "rows", "Tidepool, ms", "DuckDB, ms", ""], rows),
    ]
    return "\n".join(lines).rstrip("\n") + "\n", counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--sf", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--queries", default="1-99")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tidepool-compare", help="folder for generated rows")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/tpcds.md")
    args = parser.parse_args()
    workload = workloads.tpcds(args.data, args.sf, args.tidepool).only(args.queries)
    comparison = measure.compare(workload, 1, {
        "tidepool": functools.partial(tidepool.bench, args.tidepool, "tpcds", args.sf, args.threads, 1, queries=args.queries),
        "duckdb": functools.partial(measure.worker, "duckdb", args.threads, args.tidepool, workload, repeat=1),
    })
    text, counts = written(args, comparison)
    args.out.write_text(text)
    print(", ".join(f"{count} {one}" for one, count in counts.most_common()))
    sys.exit(0 if set(counts) == {"agree"} else 1)


if __name__ == "__main__":
    main()
