#!/usr/bin/env python3
"""Query burst: how long queries take whose heap has outgrown near memory, by how much of their need near has, beside DuckDB spilling to disk.

Tidepool's need of a query is the peak of its heap where near is large enough; tables lie near and are not part of it. A tablespace of a part of the need
comes first in `temp_tablespaces`, and another after it: far memory (paced as the profile says), or a file on disk. DuckDB's `memory_limit` is what its
tables take and as many bytes as Tidepool's near memory has; it spills to the same disk. Each point is the median of `--repeat` runs after one to warm up.

Then the query runs where only a tenth of the need is there, and nothing else: that must be refused with 53200, and leave nothing behind.

Needs a built Tidepool (`cargo build --release`) and bench/requirements.txt.
"""

import argparse
import contextlib
import itertools
import math
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb
import psycopg2
import pyarrow.parquet

from peers import TIDEPOOL, machine, measure, report, results, tidepool, workloads
from peers.workloads import BENCH

BUDGETS = [1.1, 0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01]
# A tablespace of less has no room for a block.
NEAR_BYTES_MIN = 4 << 20
LIMIT_S = 300


def queries(tables):
    """The queries of burst/queries.sql by name."""
    text = (BENCH / "burst" / "queries.sql").read_text()
    text = text.replace("{last_rows}", str(pyarrow.parquet.read_metadata(tables["lineitem"]).num_rows - 10))
    found = re.findall(r"^-- (\w+): .*\n((?:(?!--).*\n)+)", text, flags=re.MULTILINE)
    return {name: sql.strip().rstrip(";") for name, sql in found}


class Tidepool:
    """A server with the tables near, a far tablespace and one on disk."""
    OVERFLOWS = {"far": "burst_far", "disk": "burst_disk"}

    def __init__(self, options, tables, folder):
        self.engine = tidepool.Engine(options.threads, options.tidepool)
        for name, parquet in tables.items():
            self.engine.load(name, parquet)
        self.cursor = self.engine.server.connect().cursor()
        self.cursor.execute(f"SET statement_timeout = '{LIMIT_S}s'")
        size = f"size = '{options.room}'"
        self.cursor.execute(f"CREATE TABLESPACE burst_far LOCATION 'anon:' WITH ({size}, profile = '{options.profile}')")
        self.cursor.execute(f"CREATE TABLESPACE burst_disk LOCATION 'file:{folder / 'heap'}' WITH ({size})")
        self.cursor.execute(f"CREATE TABLESPACE burst_ample LOCATION 'anon:' WITH ({size})")

    def timed(self, sql):
        start = time.perf_counter()
        self.cursor.execute(sql)
        rows = self.cursor.fetchall()
        return time.perf_counter() - start, results.canonical_rows(rows)

    def need(self, sql):
        """The most bytes of heap that it has at any time, where there is room for all, and its rows."""
        self.cursor.execute("SET temp_tablespaces = burst_ample")
        _, rows = self.timed(sql)
        self.cursor.execute("SELECT heap_bytes_peak FROM tidepool.queries WHERE query = %s ORDER BY id DESC LIMIT 1", [sql])
        return int(self.cursor.fetchone()[0]), rows

    @contextlib.contextmanager
    def near(self, size):
        self.cursor.execute(f"CREATE TABLESPACE burst_near LOCATION 'anon:' WITH (size = '{max(size, NEAR_BYTES_MIN)}B')")
        try:
            yield
        finally:
            self.cursor.execute("SET temp_tablespaces = burst_ample")
            self.cursor.execute("DROP TABLESPACE burst_near")

    def curve(self, sql, need, overflow, repeat):
        """Seconds by budget, medians, and the rows of the last."""
        def point(budget):
            with self.near(int(need * budget)):
                self.cursor.execute(f"SET temp_tablespaces = burst_near, {self.OVERFLOWS[overflow]}")
                return median(self.timed, sql, repeat)

        return [attempt(point, budget) for budget in BUDGETS]

    def refused(self, sql, need):
        """What is said where there is a tenth of the need and nothing else, and the bytes that are left behind."""
        with self.near(need // 10):
            self.cursor.execute("SET temp_tablespaces = burst_near")
            try:
                self.timed(sql)
                code = "it ran"
            except psycopg2.Error as error:
                code = error.pgcode
            self.cursor.execute("SELECT sum(bytes) FROM tidepool.memory WHERE tablespace = 'burst_near' AND purpose = 'heap'")
            left = int(self.cursor.fetchone()[0] or 0)
        return code, left

    def close(self):
        self.engine.close()


class DuckDB:
    def __init__(self, options, tables, folder):
        self.database = duckdb.connect(":memory:")
        self.database.execute(f"SET threads = {options.threads}; SET temp_directory = '{folder / 'duckdb'}'; SET preserve_insertion_order = false")
        for name, parquet in tables.items():
            self.database.execute(f"CREATE TABLE {name} AS SELECT * FROM read_parquet('{parquet}')")
        self.tables_bytes = self.database.execute("SELECT sum(memory_usage_bytes)::bigint FROM duckdb_memory()").fetchone()[0]
        self.folder = folder

    def timed(self, sql):
        start = time.perf_counter()
        rows = self.database.execute(sql).fetchall()
        return time.perf_counter() - start, results.canonical_rows(rows)

    def curve(self, sql, need, _overflow, repeat):
        def point(budget):
            self.database.execute(f"SET memory_limit = '{self.tables_bytes + int(need * budget)}B'")
            return median(self.timed, sql, repeat)

        try:
            return [attempt(point, budget) for budget in BUDGETS]
        finally:
            self.database.execute("RESET memory_limit")

    def close(self):
        self.database.close()


def median(timed, sql, repeat):
    """Seconds, and the rows of the last run. The first run takes pages that nobody has touched."""
    runs = [timed(sql) for _ in range(repeat + 1)][1:]
    return statistics.median(seconds for seconds, _ in runs), runs[-1][1]


def attempt(point, budget):
    """What a point of a curve gives: seconds, and rows or an error."""
    try:
        seconds, rows = point(budget)
        return {"budget": budget, "s": seconds, "rows": rows, "error": None}
    except (psycopg2.Error, duckdb.Error) as error:
        return {"budget": budget, "s": math.nan, "rows": None, "error": report.cell(str(error))[:200]}


def measured(options, chosen, tables, folder):
    """For each query its need, rows, the curves by engine and where it overflows to, and what came where there was no room."""
    found = {}
    engine = Tidepool(options, tables, folder)
    try:
        for name, sql in chosen.items():
            measure.say(f"Burst, {name}: Tidepool")
            need, rows = engine.need(sql)
            curves = {("tidepool", overflow): engine.curve(sql, need, overflow, options.repeat) for overflow in engine.OVERFLOWS}
            found[name] = {"need": need, "rows": rows, "curves": curves, "refused": engine.refused(sql, need)}
    finally:
        engine.close()
    engine = DuckDB(options, tables, folder)
    try:
        for name, sql in chosen.items():
            measure.say(f"Burst, {name}: DuckDB")
            found[name]["curves"]["duckdb", "disk"] = engine.curve(sql, found[name]["need"], "disk", options.repeat)
    finally:
        engine.close()
    return found


CURVES = [("tidepool", "far", "Tidepool, far"), ("tidepool", "disk", "Tidepool, disk"), ("duckdb", "disk", "DuckDB, disk")]


def steps(curve):
    """How many times as long as the point before each point takes."""
    return [after["s"] / before["s"] for before, after in itertools.pairwise(curve)]


def faults(found):
    lines = []
    for name, one in found.items():
        for engine, overflow, title in CURVES:
            for point in one["curves"][engine, overflow]:
                if point["error"]:
                    lines.append(f"* burst, {name} at {point['budget']:.0%} of its need fails in {title}: {point['error']}")
                elif not results.same(point["rows"], one["rows"]):
                    lines.append(f"* burst, {name} at {point['budget']:.0%} of its need, {title}: another answer")
        code, left = one["refused"]
        if code != "53200" or left:
            lines.append(f"* burst, {name} without enough room: {code} in place of 53200, {left} bytes left behind")
    return lines


def text(options, found):
    lines = [f"Seconds by the part of a query's need of heap that near memory has, medians of {options.repeat}. *far* is paced as {options.profile}; disk is a file, which the "
             "system's page cache stands before, for both. DuckDB's limit is its tables and as many bytes.", ""]
    for name, one in found.items():
        rows = []
        for index, budget in enumerate(BUDGETS):
            points = [one["curves"][engine, overflow][index] for engine, overflow, _ in CURVES]
            rows.append([f"{budget:.0%}", *("failed" if point["error"] else f"{point['s']:.2f}" for point in points)])
        last = [one["curves"][engine, overflow] for engine, overflow, _ in CURVES]
        rows.append(["last ÷ first", *(report.times(curve[-1]["s"] / curve[0]["s"]) for curve in last)])
        rows.append(["largest step", *(report.times(max(steps(curve))) for curve in last)])
        lines += [f"**{name}**, which needs {one['need'] / 2**20:,.0f} MB:", "", *report.table(["near", *(title for _, _, title in CURVES)], rows)]
    return lines


def run(options, folder):
    tables = workloads.tpch(options.data, options.sf, options.tidepool).tables
    chosen = {name: sql for name, sql in queries(tables).items() if not options.queries or name in options.queries}
    return measured(options, chosen, {"lineitem": tables["lineitem"]}, Path(folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--sf", type=float, default=1.0, help="TPC-H's scale factor [1]")
    parser.add_argument("--queries", type=lambda names: names.split(","), help="some of them, by name")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="runs at each point")
    parser.add_argument("--profile", default="fpga-prototype", help="of far memory [fpga-prototype]")
    parser.add_argument("--room", default="4GB", help="size of far memory and of the file on disk [4GB]")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tidepool-compare", help="folder for generated rows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidepool-burst-") as folder:
        found = run(options, folder)
    print("\n".join([f"{machine.describe()}", "", *text(options, found), *faults(found)]))
    sys.exit(1 if faults(found) else 0)


if __name__ == "__main__":
    main()
