#!/usr/bin/env python3
"""What joins that look their rows up by an index cost where table and index are far: near, and at two profiles.

A table of many rows with a primary key is joined by that key with 1, 100, 1,000 and 10,000 rows of a near one. The same is asked of it once it lies
far, with its index, for each profile. The keys come in no order, so each row is a block of its own. What was looked up, what was charged and for
how long threads stalled for it is what EXPLAIN ANALYZE says of the scan. One key by itself waits for each line that leads to it; what a key of many waits for
is less, as many are looked up at once.

Needs a built Tidepool (`cargo build --release`) and bench/requirements.txt.
"""

import argparse
import re
import statistics
import tempfile
import time
from pathlib import Path

from peers import TIDEPOOL
from peers.report import table
from peers.tidepool import Server, version

ROWS = 3_000_000
OUTER = [1, 100, 1_000, 10_000]
JOIN = "SELECT count(*), sum(b.v) FROM o{outer} a JOIN big b ON b.id = a.id"


def load(cursor):
    cursor.execute("CREATE TABLE big (id int PRIMARY KEY, v bigint, w bigint)")
    cursor.execute(f"INSERT INTO big SELECT i, i::bigint * 7919 % 1000003, i FROM generate_series(1, {ROWS}) g(i)")
    cursor.execute("CALL tidepool.merge('big')")
    for outer in OUTER:
        cursor.execute(f"CREATE TABLE o{outer} AS SELECT (i::bigint * 2654435761 % {ROWS})::int + 1 AS id FROM generate_series(1, {outer}) g(i)")


def move(cursor, tablespace):
    cursor.execute(f"ALTER TABLE big SET TABLESPACE {tablespace}")
    cursor.execute(f"ALTER INDEX big_pkey SET TABLESPACE {tablespace}")


def measure(cursor, outer, repeat):
    """ms that a tenth of the runs take at most, lookups, what was read far, and ms for which threads stalled."""
    sql = JOIN.format(outer=outer)
    cursor.execute(sql)
    answer, times = cursor.fetchone(), []
    for _ in range(repeat):
        start = time.perf_counter()
        cursor.execute(sql)
        times.append((time.perf_counter() - start) * 1e3)
        if cursor.fetchone() != answer:
            raise RuntimeError(f"another answer of {sql}")
    cursor.execute("EXPLAIN ANALYZE " + sql)
    plan = "\n".join(row[0] for row in cursor.fetchall())
    lookups = re.search(r"Index Lookups: ([\d,]+)", plan)
    far = re.search(r"Tablespace far: read ([\d.,]+) (\w+).*?stalled ([\d.,]+) ms", plan)
    return {"ms": statistics.quantiles(times, n=10)[0], "lookups": lookups and lookups[1], "read": far and f"{far[1]} {far[2]}", "stalled": far and float(far[3].replace(",", "")), "plan": plan}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL, help="the program [default: %(default)s]")
    parser.add_argument("--profiles", default="cxl-asic,fpga-prototype", help="[default: %(default)s]")
    parser.add_argument("--data", default=None, help="where data folders are made [default: the system's temporary folder]")
    parser.add_argument("--repeat", type=int, default=41, help="timed runs of each, of which the quickest tenth counts [default: %(default)s]")
    parser.add_argument("--plans", action="store_true", help="print the plans, too")
    args = parser.parse_args()
    rows = []
    for profile in args.profiles.split(","):
        with tempfile.TemporaryDirectory(dir=args.data) as folder:
            server = Server(args.tidepool, Path(folder) / "data", "--near", "2GB", "--far", f"anon:,size=1GB,profile={profile}")
            server.start()
            try:
                cursor = server.connect().cursor()
                load(cursor)
                near = {outer: measure(cursor, outer, args.repeat) for outer in OUTER}
                move(cursor, "far")
                for outer in OUTER:
                    far = measure(cursor, outer, args.repeat)
                    if args.plans:
                        print(f"near\n{near[outer]['plan']}\n{profile}\n{far['plan']}\n")
                    rows.append([f"{profile}, {outer:,}", far["lookups"] or "scan", f"{near[outer]['ms']:.2f}", f"{far['ms']:.2f}", far["read"] or "–",
                                 "–" if far["stalled"] is None else f"{far['stalled']:.3f}",
                                 f"{far['stalled'] / outer * 1e3:.2f}" if far["lookups"] and far["stalled"] is not None else "–"])
            finally:
                server.stop()
    print(f"Tidepool {version(args.tidepool)}; {ROWS:,} rows.\n")
    print("\n".join(table(["profile, rows beside", "lookups", "near, ms", "far, ms", "read far", "stalled, ms", "stalled a key, µs"], rows)))


if __name__ == "__main__":
    main()
