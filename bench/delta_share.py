#!/usr/bin/env python3
"""What delta costs scans: queries over one table, by the part of its rows that is in delta.

A table is loaded into main. Then more and more of its rows are updated, scattered over all of it, while nothing merges: each
updated row is dead in main and has a version in delta. At the end delta is merged, and the queries run once more. Beside it
DuckDB runs the same queries over the same rows after the same updates: it keeps versions, too.

Needs a built Tidepool (`cargo build --release`) and bench/requirements.txt.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from peers import TIDEPOOL
from peers.tidepool import Server

QUERIES = {
    "filter and sum": "SELECT sum(price * discount) FROM t WHERE day BETWEEN DATE '2024-03-01' AND DATE '2024-05-31' AND discount < 5",
    "group": "SELECT k, count(*), sum(price), avg(discount) FROM t GROUP BY k ORDER BY k",
    "group by text": "SELECT note, count(*), sum(price) FROM t GROUP BY note ORDER BY note",
    "text": "SELECT count(*) FROM t WHERE note LIKE '%77%'",
    "count": "SELECT count(*) FROM t",
}
ROWS = "SELECT i AS id, i % 100 AS k, DATE '2024-01-01' + (i::bigint * 7919 % 366)::int AS day, (i::bigint * 31 % 100000) / 100.0 AS price, i % 11 AS discount, 'note ' || (i % 1000) AS note FROM {series}"
COLUMNS = "id bigint, k int, day date, price numeric(15,2), discount int, note text"


class Tidepool:
    def __init__(self, args, folder):
        self.server = Server(args.tidepool, folder / "data", "--near", args.near, "--far", args.far)
        self.server.start()
        self.cursor = self.server.connect().cursor()
        self.run(f"CREATE TABLE t ({COLUMNS}) TABLESPACE {args.tablespace} WITH (merge = never)")
        self.run("INSERT INTO t " + ROWS.format(series=f"generate_series(1, {args.rows}) AS g(i)"))
        self.merge()

    def run(self, sql):
        self.cursor.execute(sql)
        return self.cursor.fetchall() if self.cursor.description else None

    def merge(self):
        self.run("CALL tidepool.merge('t')")

    def close(self):
        self.server.stop()


class Duckdb:
    def __init__(self, args, _folder):
        import duckdb
        self.connection = duckdb.connect(":memory:")
        self.run(f"CREATE TABLE t ({COLUMNS})")
        self.run("INSERT INTO t " + ROWS.format(series=f"range(1, {args.rows} + 1) AS g(i)"))

    def run(self, sql):
        return self.connection.execute(sql).fetchall()

    def merge(self):
        self.run("CHECKPOINT")

    def close(self):
        self.connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", default=TIDEPOOL)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--shares", default="0,0.1,1,5,10,25,50", help="percent of the rows, ascending")
    parser.add_argument("--one-by-one", action="store_true", help="a thousandth of the rows at a time")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--near", default="6GB")
    parser.add_argument("--far", default="anon:,size=2GB", help="LOCATION,size=SIZE,profile=NAME")
    parser.add_argument("--tablespace", default="near", help="of the table")
    parser.add_argument("--engines", default="tidepool,duckdb")
    args = parser.parse_args()
    shares = [float(share) for share in args.shares.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        engines = {name: {"tidepool": Tidepool, "duckdb": Duckdb}[name](args, Path(folder)) for name in args.engines.split(",")}
        measured = {}
        answers = {}
        done = 0
        for share in [*shares, None]:
            for name, engine in engines.items():
                if share is None:
                    engine.merge()
                else:
                    # Thousandths of the rows, in each thousand of ids the same: scattered, and none twice.
                    upto = round(share * 10)
                    if upto > done and args.one_by_one:
                        # Neighbours' versions lie far from one another, as those of rows that are changed at random.
                        for thousandth in range(done, upto):
                            engine.run(f"UPDATE t SET price = price + 1 WHERE id % 1000 = {thousandth * 617 % 1000}")
                    elif upto > done:
                        engine.run(f"UPDATE t SET price = price + 1 WHERE id % 1000 >= {done} AND id % 1000 < {upto}")
            done = round(share * 10) if share is not None else done
            # In turns, so that noise is everybody's.
            times = {(name, query): [] for name in engines for query in QUERIES}
            for _ in range(args.repeat + 1):
                for query, sql in QUERIES.items():
                    for name, engine in engines.items():
                        start = time.perf_counter()
                        rows = engine.run(sql)
                        times[name, query].append(time.perf_counter() - start)
                        rows = [[value if isinstance(value, str) else str(round(float(value), 4)) for value in row] for row in rows]
                        if answers.setdefault((share, query), rows) != rows:
                            raise SystemExit(f"{query} at {share} %: the engines' answers differ")
            for key, all in times.items():
                measured[share, *key] = statistics.median(all[1:]) * 1000
        for engine in engines.values():
            engine.close()
    print(f"{args.rows} rows in {args.tablespace}; milliseconds, medians of {args.repeat}\n")
    print("| in delta | " + " | ".join(f"{query}, {name}" for query in QUERIES for name in engines) + " |")
    print("| ---: |" + " ---: |" * len(QUERIES) * len(engines))
    for share in [*shares, None]:
        cells = [f"{measured[share, name, query]:.1f}" for query in QUERIES for name in engines]
        print(f"| {'merged' if share is None else f'{share:g} %'} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
