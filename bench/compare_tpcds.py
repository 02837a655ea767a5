#!/usr/bin/env python3
"""The 99 TPC-DS queries in Tidepool and in DuckDB, over the same rows, answer by answer.

Tidepool generates and loads the rows, runs every query and writes its results as CSV and its tables as Parquet. DuckDB reads
those tables, runs the same text, and the results are compared: as multisets (rows that tie in ORDER BY may come in any
order), text and integers exactly, other numbers to 1e-4 or one in a million (the two differ in how many digits a division
keeps). Where a LIMIT cuts through rows that tie, either choice is right: then Tidepool's rows must all be in DuckDB's
result without the LIMIT.
"""

import argparse
import collections
import csv
import datetime
import decimal
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUERIES = ROOT / "crates" / "bench" / "src" / "tpcds" / "queries"
NULL = "\\N"


def is_number(value):
    return isinstance(value, (int, float, decimal.Decimal)) and not isinstance(value, bool)


def as_number(text):
    try:
        return float(text)
    except ValueError:
        return None


def cells_match(ours, theirs):
    if ours == NULL or theirs is None:
        return ours == NULL and theirs is None
    if is_number(theirs):
        value = as_number(ours)
        if value is None:
            return False
        if isinstance(theirs, int):
            return abs(value - theirs) < 1e-4
        return abs(value - float(theirs)) <= max(1e-4, 1e-6 * abs(float(theirs)))
    if isinstance(theirs, bool):
        return ours == ("true" if theirs else "false")
    if isinstance(theirs, (datetime.date, datetime.datetime)):
        return ours == theirs.isoformat()
    return ours.rstrip(" ") == str(theirs).rstrip(" ")


def rounded(value):
    """A key under which equal rows of both sides sort alike."""
    if value == NULL or value is None:
        return (0, "")
    number = float(value) if is_number(value) else as_number(value) if isinstance(value, str) else None
    if number is not None:
        return (1, f"{number:.3g}")
    return (2, str(value).rstrip(" "))


def exact_key(row):
    return tuple(rounded(value) for value in row)


def numeric_key(row):
    return tuple(float(value) if is_number(value) else as_number(value) or 0.0 if isinstance(value, str) and value != NULL else 0.0 for value in row)


def rows_match(ours, theirs):
    return all(cells_match(a, b) for a, b in zip(ours, theirs))


def same(ours, theirs):
    """Equal as multisets."""
    if len(ours) != len(theirs):
        return False
    left = sorted(ours, key=lambda row: (exact_key(row), numeric_key(row)))
    right = sorted(theirs, key=lambda row: (exact_key(row), numeric_key(row)))
    return all(rows_match(a, b) for a, b in zip(left, right)) or contained(ours, theirs)


def contained(ours, theirs):
    """Each of our rows is one of theirs. Looks among rows whose text is the same."""
    text = lambda row: tuple(key[1] for key in exact_key(row) if key[0] == 2)
    rest = collections.defaultdict(list)
    for row in theirs:
        rest[text(row)].append(row)
    for row in ours:
        candidates = rest[text(row)]
        for index, candidate in enumerate(candidates):
            if rows_match(row, candidate):
                candidates.pop(index)
                break
        else:
            return False
    return True


def first_difference(ours, theirs):
    if len(ours) != len(theirs):
        return f"{len(ours)} rows, DuckDB {len(theirs)}"
    for index, (a, b) in enumerate(zip(sorted(ours, key=exact_key), sorted(theirs, key=exact_key))):
        for column, (x, y) in enumerate(zip(a, b)):
            if not cells_match(x, y):
                return f"row {index + 1} column {column + 1}: {x}, DuckDB {y}"
    return "no pairing of rows matches"


def read_results(path):
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    return rows[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", default=str(ROOT / "target" / "release" / "tidepool"))
    parser.add_argument("--sf", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--queries", default="1-99")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "tidepool-tpcds", help="folder for rows and results")
    parser.add_argument("--compare-only", action="store_true", help="use the rows and results that are in --work")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "tpcds.md")
    args = parser.parse_args()
    import duckdb

    data, results, summary = args.work / "data", args.work / "results", args.work / "result.json"
    if not args.compare_only:
        args.work.mkdir(parents=True, exist_ok=True)
        subprocess.run([args.tidepool, "bench", "tpcds", "--sf", str(args.sf), "--threads", str(args.threads), "--repeat", "1", "--queries", args.queries,
                        "--export", str(data), "--results", str(results), "--json", str(summary)], stdout=subprocess.DEVNULL)
    tidepool = json.loads(summary.read_text())
    connection = duckdb.connect(":memory:")
    # PostgreSQL's rules, which Tidepool follows: integers divide to integers, NULLs sort as if larger than any value.
    connection.execute(f"SET threads = {args.threads}; SET integer_division = true; SET default_null_order = 'nulls_last_on_asc_first_on_desc'")
    for path in sorted(data.glob("*.parquet")):
        connection.execute(f"CREATE TABLE {path.stem} AS SELECT * FROM read_parquet('{path}')")

    rows = []
    for query in tidepool["placements"][0]["queries"]:
        name = query["name"]
        text = (QUERIES / f"{name}.sql").read_text().strip().rstrip(";")
        ours_ms = query["median_ms"]
        theirs_ms, verdict, detail = None, "", ""
        try:
            start = time.perf_counter()
            theirs = connection.execute(text).fetchall()
            theirs_ms = (time.perf_counter() - start) * 1e3
        except Exception as error:
            theirs, detail = None, "DuckDB: " + str(error).split("\n")[0]
        if query["answer"] == "error":
            verdict, detail = "error", query["answer_detail"]
        elif theirs is None:
            verdict = "DuckDB cannot run it"
        else:
            ours = read_results(results / f"{name}.csv")
            if same(ours, theirs):
                verdict = "agree"
            else:
                detail = first_difference(ours, theirs)
                verdict = "differ"
                unlimited = re.sub(r"\blimit\s+\d+\s*$", "", text, flags=re.IGNORECASE)
                if unlimited != text and len(ours) == len(theirs) and contained(ours, connection.execute(unlimited).fetchall()):
                    verdict, detail = "agree", "LIMIT cuts through ties; every row is in DuckDB's full result"
        rows.append((name, verdict, query["rows"], ours_ms, theirs_ms, detail))
        print(f"{name}: {verdict} {detail}", file=sys.stderr)

    counts = collections.Counter(row[1] for row in rows)
    agree = [row for row in rows if row[1] == "agree"]
    empty = [row[0].upper() for row in agree if row[2] == 0]
    machine = tidepool["machine"]
    lines = [
        f"# TPC-DS beside DuckDB, scale factor {args.sf:g}",
        "",
        f"Written by `bench/compare_tpcds.py` on {time.strftime('%Y-%m-%d', time.gmtime())}: the 99 queries in Tidepool {tidepool['tidepool_version']} and DuckDB "
        f"{duckdb.__version__} over the same rows, with PostgreSQL's rules for integer division and the order of NULLs in both. "
        + ", ".join(f"**{count} {verdict}**" for verdict, count in counts.most_common()) + ".",
        "",
        "Results are compared as multisets, text and integers exactly, other numbers to 1e-4 or one in a million. Where a LIMIT cuts through rows that tie, "
        "each of Tidepool's rows must be in DuckDB's result without the LIMIT."
        + (f" These agree on an empty result, which proves less: {', '.join(empty)}." if empty else ""),
        "",
        f"Loading {tidepool['load']['rows']:,} rows took {tidepool['load']['seconds']:.0f} s; they are {tidepool['load']['raw_bytes'] / 2**20:,.0f} MB as Arrow and "
        f"{tidepool['load']['encoded_bytes'] / 2**20:,.0f} MB in main. Times are single runs after a warm-up (DuckDB: one run) on {machine['cpu']}, {args.threads} threads: a hint, not a comparison.",
        "",
        "| query | answer | rows | Tidepool, ms | DuckDB, ms | |",
        "|---|---|---:|---:|---:|---|",
    ]
    number = lambda value: "–" if value is None else f"{value:.0f}"
    for name, verdict, count, ours_ms, theirs_ms, detail in rows:
        detail = " ".join(detail.split()).replace("|", "\\|")
        lines.append(f"| {name.upper()} | {verdict} | {count} | {number(ours_ms)} | {number(theirs_ms)} | {detail[:240]} |")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    sys.exit(0 if len(agree) == len(rows) else 1)


if __name__ == "__main__":
    main()
