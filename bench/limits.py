#!/usr/bin/env python3
"""How long a query goes on after it was cancelled, and how much it takes beyond its memory budget.

Each query of TPC-H and of burst/queries.sql, and some that a batch of rows keeps busy for long, is run and cancelled at moments spread over its run time;
measured is the time from the cancel to the error at the client, over PostgreSQL's protocol.

Then those of them that end by themselves run with budgets (`tidepool.statement_memory`) of parts of what they need. The most that each held at any time is held against its
budget, whether it ran or was refused.

Needs a built Tidepool (`cargo build --release`) and bench/requirements.txt.
"""

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path

import psycopg2

import burst
from peers import TIDEPOOL, machine, report, tidepool, workloads

LIMIT_S = 0.1
OVERDRAFT_LIMIT = 0.01
BUDGETS = [0.9, 0.7, 0.5, 0.3, 0.1, 0.03]
# The least budget that is looked at: below it a batch of rows is more than a hundredth.
BUDGET_BYTES_MIN = 64 << 20
# By what is long about them. Some would run for hours.
LONG = {
    "cross join": "SELECT count(*) FROM orders a, orders b WHERE a.o_totalprice + b.o_totalprice < 0",
    "cross join of texts": "SELECT count(*) FROM orders a, orders b WHERE a.o_comment || b.o_comment LIKE '%zebra%quartz%'",
    "rows of one key": "SELECT count(*), sum(a.l_quantity * b.l_quantity) FROM lineitem a JOIN lineitem b ON a.l_linenumber = b.l_linenumber",
    "rows of one key, grouped": "SELECT a.l_orderkey, b.l_orderkey, count(*) FROM lineitem a JOIN lineitem b ON a.l_linenumber = b.l_linenumber GROUP BY 1, 2",
    "regular expression": "SELECT count(*) FROM lineitem WHERE l_comment ~ '(a|e|i|o|u){2,}.*(s|t)+.*[^a-z]{3,}$'",
    "recursion": "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000000) SELECT max(n) FROM numbers",
    "series": "SELECT count(*) FROM generate_series(1, 100000000000) AS series(n) WHERE n % 7 = 8",
    "window over everything": "SELECT max(total) FROM (SELECT sum(l_quantity) OVER (ORDER BY l_comment, l_orderkey, l_linenumber) AS total FROM lineitem) AS totals",
    "moving frame": "SELECT sum(most) FROM (SELECT max(l_extendedprice) OVER (ORDER BY l_shipdate, l_orderkey, l_linenumber ROWS BETWEEN 100000 PRECEDING AND CURRENT ROW) AS most FROM lineitem) AS frames",
    "sort of texts": "SELECT l_comment FROM lineitem ORDER BY l_comment DESC, l_orderkey OFFSET 5000000",
    "distinct in groups": "SELECT l_returnflag, count(DISTINCT l_comment), count(DISTINCT l_extendedprice) FROM lineitem GROUP BY l_returnflag",
    "a text of every row": "SELECT length(string_agg(l_comment, ',' ORDER BY l_comment)) FROM lineitem",
    # What it takes after the cancel is the client's: it receives what is on its way, and lets go of all the rows that it has.
    "all rows to the client": "SELECT * FROM lineitem",
    "insert": "INSERT INTO copy SELECT * FROM lineitem",
    "update": "UPDATE orders SET o_totalprice = o_totalprice + 1",
    "correlated": "SELECT count(*) FROM orders o WHERE o_totalprice > (SELECT avg(p.o_totalprice) FROM orders p WHERE p.o_totalprice < o.o_totalprice)",
}


def latencies(server, sql, fractions, limit_s):
    """Seconds from cancel to error by moment of the cancel; a query that is over before counts for nothing."""
    connection = server.connect()
    cursor = connection.cursor()
    cursor.execute(f"SET statement_timeout = '{int(limit_s * 1000)}ms'")
    start = time.perf_counter()
    try:
        cursor.execute(sql)
    except psycopg2.errors.QueryCanceled:
        pass
    whole = time.perf_counter() - start
    found = [whole - limit_s] if whole > limit_s else []
    cursor.execute("SET statement_timeout = 0")
    for fraction in fractions:
        cancelled = [None]

        def cancel():
            cancelled[0] = time.perf_counter()
            connection.cancel()

        timer = threading.Timer(whole * fraction, cancel)
        timer.start()
        try:
            cursor.execute(sql)
        except psycopg2.errors.QueryCanceled:
            found.append(time.perf_counter() - cancelled[0])
        timer.join()
        try:
            # One that comes after the end is the next statement's.
            cursor.execute("SELECT 1")
        except psycopg2.errors.QueryCanceled:
            pass
    connection.close()
    return whole, found


def cancels(engine, chosen, options):
    """(longest, name, seconds it runs, cancels) of each query, the longest first."""
    fractions = [(number + 0.5) / options.moments for number in range(options.moments)]
    rows = []
    for name, sql in chosen.items():
        whole, found = latencies(engine.server, sql, fractions, options.limit)
        print(f"{name}: {whole:.2f} s, cancelled {len(found)} times, at most {max(found, default=0) * 1e3:.0f} ms", file=sys.stderr, flush=True)
        rows.append((max(found, default=0), name, whole, len(found)))
    return sorted(rows, reverse=True)


def heap_peak(cursor, sql):
    """The bytes of heap of the last run of a query."""
    cursor.execute("SELECT heap_bytes_peak FROM tidepool.queries WHERE query = %s ORDER BY id DESC LIMIT 1", [sql])
    return int(cursor.fetchone()[0])


def overdrafts(engine, chosen, options):
    """(share of the budget that was taken beyond it, name, need, budget, whether it ran) of each query and budget, the largest share first."""
    connection = engine.server.connect()
    cursor = connection.cursor()
    rows = []
    for name, sql in chosen.items():
        cursor.execute(f"SET statement_timeout = '{int(options.limit * 1000)}ms'; SET tidepool.statement_memory = 0")
        try:
            cursor.execute(sql)
        except psycopg2.errors.QueryCanceled:
            continue
        need = heap_peak(cursor, sql)
        cursor.execute("SET statement_timeout = 0")
        for budget in [int(need * part) for part in BUDGETS if need * part >= BUDGET_BYTES_MIN]:
            cursor.execute(f"SET tidepool.statement_memory = '{budget}B'")
            try:
                cursor.execute(sql)
                ran = True
            except psycopg2.errors.OutOfMemory:
                ran = False
            beyond = max(0, heap_peak(cursor, sql) - budget)
            rows.append((beyond / budget, name, need, budget, ran))
            print(f"{name}: needs {need >> 20} MB, budget {budget >> 20} MB, {'ran' if ran else 'refused'}, {beyond / budget:.2%} beyond", file=sys.stderr, flush=True)
    connection.close()
    return sorted(rows, reverse=True)


def cancels_text(rows):
    cells = [[name, f"{whole:.2f}", str(count), f"{worst * 1e3:.0f}"] for worst, name, whole, count in rows]
    return report.table(["query", "runs, s", "cancels", "longest, ms"], cells)


def overdrafts_text(rows):
    cells = [[name, report.megabytes(need), report.megabytes(budget), "ran" if ran else "refused", f"{share:.2%}"] for share, name, need, budget, ran in rows]
    return report.table(["query", "needs", "budget", "", "beyond it"], cells)


def measured(options, parts):
    """What each of these functions of an engine, queries and options finds."""
    workload = workloads.tpch(options.data, options.sf, options.tidepool)
    chosen = {name: sql for name, sql in (workload.queries | burst.queries(workload.tables) | LONG).items() if not options.queries or options.queries in name}
    engine = tidepool.Engine(options.threads, options.tidepool)
    try:
        for name, parquet in workload.tables.items():
            engine.load(name, parquet)
        engine.loader.execute("CREATE TABLE copy AS SELECT * FROM lineitem LIMIT 0")
        return [part(engine, chosen, options) for part in parts]
    finally:
        engine.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--sf", type=float, default=1.0, help="TPC-H's scale factor [1]")
    parser.add_argument("--queries", help="those with this in their names")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--moments", type=int, default=8, help="cancels of each query")
    parser.add_argument("--limit", type=float, default=3.0, help="seconds that a query runs for at most [3]")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tidepool-compare", help="folder for generated rows")
    options = parser.parse_args()
    late, beyond = measured(options, [cancels, overdrafts])
    print("\n".join([machine.describe(), "", *cancels_text(late), "", *overdrafts_text(beyond)]))
    sys.exit(1 if late[0][0] > LIMIT_S or beyond and beyond[0][0] > OVERDRAFT_LIMIT else 0)


if __name__ == "__main__":
    main()
