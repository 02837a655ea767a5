#!/usr/bin/env python3
"""Small statements of ordinary applications beside PostgreSQL: docs/results/latency.md.

One client sends statements that touch few rows, of the kinds that applications and their mapping layers write, by each of the protocols of pgbench
(simple: the values stand in the text; extended: parsed anew each time, with parameters; prepared). Of each kind and protocol: the median time from the
client's request to the end of the answer, at both servers, in turns. Before anything is timed both servers answer each kind with the same rows, or change
as many, for many values of its parameters. Kinds are direct (the statement goes to its rows by keys, or has none to go to, without a plan of operators) or planned.

Needs a built Tidepool (`cargo build --release`), PostgreSQL with pgbench, and psycopg2. With `--before BINARY` an older Tidepool takes its turns, too.
"""

import argparse
import math
import random
import re
import statistics
import sys
import tempfile
from pathlib import Path

from oltp import Tidepool, connect, pgbench
from peers import ROOT, TIDEPOOL, machine, postgresql
from peers.report import bold, table

MODES = ["simple", "extended", "prepared"]
CUSTOMERS, ORDERS, LINES = 1_000, 10_000, 30_000

TABLES = f"""
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, region int NOT NULL, balance numeric(12,2) NOT NULL);
CREATE TABLE purchase (id int PRIMARY KEY, customer int NOT NULL REFERENCES customer, placed timestamp NOT NULL, state text NOT NULL, total numeric(12,2) NOT NULL);
CREATE TABLE line (purchase int NOT NULL, position int NOT NULL, product int NOT NULL, quantity int NOT NULL, price numeric(10,2) NOT NULL, PRIMARY KEY (purchase, position));
CREATE TABLE counted (id int PRIMARY KEY, customer int NOT NULL, hits int NOT NULL);
INSERT INTO customer SELECT i, 'customer ' || i, i % 10, (i * 37 % 100000) / 100.0 FROM generate_series(1, {CUSTOMERS}) AS g(i);
INSERT INTO purchase SELECT i, i * 7 % {CUSTOMERS} + 1, timestamp '2026-01-01' + i * interval '13 minutes', (ARRAY['open', 'paid', 'sent'])[i % 3 + 1], (i * 91 % 1000000) / 100.0
    FROM generate_series(1, {ORDERS}) AS g(i);
INSERT INTO line SELECT i / 3 + 1, i % 3, i * 17 % 500, i % 9 + 1, (i * 53 % 100000) / 100.0 FROM generate_series(0, {LINES} - 1) AS g(i);
INSERT INTO counted SELECT i, i * 7 % {CUSTOMERS} + 1, 0 FROM generate_series(1, {ORDERS}) AS g(i);
CREATE INDEX ON purchase (customer, placed);
CREATE INDEX ON line (product);
CREATE INDEX ON counted (customer);
"""

# Kind, whether it goes to its rows without a plan, and the statement. `:c` is a customer, `:p` a purchase, `:q` a product, `:s` a state.
KINDS = [
    ("row by key", True, "SELECT * FROM purchase WHERE id = :p"),
    ("page of an index", True, "SELECT id, placed, total FROM purchase WHERE customer = :c ORDER BY placed LIMIT 10"),
    ("join of three by key", True,
     "SELECT c.name, p.placed, l.product, l.quantity FROM purchase p JOIN customer c ON c.id = p.customer JOIN line l ON l.purchase = p.id WHERE p.id = :p ORDER BY l.position"),
    ("left join, grouped", False,
     "SELECT p.id, p.total, count(l.position) AS lines, sum(l.quantity * l.price) AS worth FROM purchase p LEFT JOIN line l ON l.purchase = p.id WHERE p.customer = :c GROUP BY p.id, p.total ORDER BY p.id"),
    ("EXISTS", False, "SELECT c.id, c.name FROM customer c WHERE c.id = :c AND EXISTS (SELECT 1 FROM purchase p WHERE p.customer = c.id)"),
    ("NOT EXISTS", False,
     "SELECT p.id FROM purchase p WHERE p.customer = :c AND NOT EXISTS (SELECT 1 FROM line l WHERE l.purchase = p.id AND l.quantity > 8) ORDER BY p.id"),
    ("WITH", False,
     "WITH mine AS (SELECT id, total FROM purchase WHERE customer = :c) SELECT count(*), sum(mine.total), max(l.price) FROM mine JOIN line l ON l.purchase = mine.id"),
    ("first rows of a key", True, "SELECT id, customer, total FROM purchase ORDER BY id LIMIT 10"),
    ("rows after a key", True, "SELECT id, customer, total FROM purchase WHERE id > :p ORDER BY id LIMIT 10"),
    ("last rows of a key", True, "SELECT id, placed, total FROM purchase WHERE customer = :c ORDER BY placed DESC LIMIT 5"),
    ("scalar subquery", False,
     "SELECT c.id, c.name, (SELECT count(*) FROM purchase p WHERE p.customer = c.id) AS purchases FROM customer c WHERE c.id = :c"),
    ("LATERAL", False,
     "SELECT p.id, first.product FROM purchase p, LATERAL (SELECT l.product FROM line l WHERE l.purchase = p.id ORDER BY l.price DESC, l.position LIMIT 1) AS first WHERE p.customer = :c ORDER BY p.id"),
    ("IN a list", True, "SELECT p.state, count(*), sum(p.total) FROM purchase p WHERE p.customer IN (:c, :d, :e, 5, 8, 13) GROUP BY p.state ORDER BY p.state"),
    ("IN a subquery", False,
     "SELECT id, name FROM customer WHERE id IN (SELECT p.customer FROM purchase p JOIN line l ON l.purchase = p.id WHERE l.product = :q) ORDER BY id"),
    ("group a small table", False, "SELECT region, count(*), sum(balance) FROM customer GROUP BY region ORDER BY region"),
    ("count of two conditions", True, "SELECT count(*) FROM purchase WHERE customer = :c AND state = :s"),
    ("window", False, "SELECT id, total, row_number() OVER (ORDER BY total DESC, id) AS place FROM purchase WHERE customer = :c ORDER BY place"),
    ("UNION ALL", False, "SELECT id, total FROM purchase WHERE customer = :c UNION ALL SELECT id, balance FROM customer WHERE id = :c ORDER BY 1"),
    ("DISTINCT", False, "SELECT DISTINCT l.product FROM purchase p JOIN line l ON l.purchase = p.id WHERE p.customer = :c ORDER BY l.product"),
    ("UPDATE by a subquery", False, "UPDATE counted SET hits = hits + 1 WHERE id IN (SELECT id FROM purchase WHERE customer = :c AND total > 50)"),
    ("one value", True, "SELECT 1"),
]
VARIABLES = {"c": CUSTOMERS, "d": CUSTOMERS, "e": CUSTOMERS, "p": ORDERS, "q": 499}
STATES = ["'open'", "'paid'", "'sent'"]
# Of the median, for kinds that are planned.
TARGET = 1.0


def script(sql):
    """A pgbench script. Without a variable for texts, which pgbench has not, the state is written out."""
    lines = [f"\\set {name} random(1, {most})" for name, most in VARIABLES.items() if f":{name}" in sql]
    return "\n".join([*lines, sql.replace(":s", STATES[1]) + ";"]) + "\n"


def instance(sql, numbers):
    of = lambda match: STATES[numbers.randrange(3)] if match[1] == "s" else str(numbers.randint(1, VARIABLES[match[1]]))
    return re.sub(r"(?<!:):([a-z])\b", of, sql)


def check_answers(servers, kinds):
    """Whether all servers give the same rows, or change as many, for many values."""
    cursors = [connect(server) for server in servers]
    numbers = random.Random(7)
    for kind, _, sql in kinds:
        for _ in range(25):
            statement = instance(sql, numbers)
            answers = []
            for cursor in cursors:
                cursor.execute(statement)
                answers.append(cursor.fetchall() if cursor.description else cursor.rowcount)
            if any(answer != answers[0] for answer in answers):
                sys.exit(f"{kind}: the answers differ to {statement}: {answers}")


def measure(server, sql, mode, seconds):
    """The median, and the 99th percentile, in µs."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.sql"
        file.write_text(script(sql))
        pgbench(server, "-n", "-f", str(file), "-M", mode, "-c", "1", "-j", "1", "-T", str(seconds), "-l", "--log-prefix", "latencies", cwd=folder)
        latencies = sorted(int(line.split()[2]) for log in Path(folder).glob("latencies*") for line in log.read_text().splitlines())
    return {"p50": latencies[len(latencies) // 2], "p99": latencies[int(len(latencies) * 0.99)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--before", type=Path, help="an older Tidepool that takes its turns, too")
    parser.add_argument("--data", type=Path, help="where data folders go")
    parser.add_argument("--seconds", type=int, default=2, help="of each kind, protocol and server in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--kinds", default="", help="a regular expression that kinds match")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/latency.md")
    args = parser.parse_args()
    modes = args.modes.split(",")
    kinds = [kind for kind in KINDS if re.search(args.kinds, kind[0])]
    servers = [Tidepool(args.tidepool, args.data)]
    if args.before:
        servers.append(Tidepool(args.before, args.data))
        servers[-1].title = "before"
    servers.append(postgresql.Server(args.data))
    measured = {}
    try:
        for server in servers:
            cursor = connect(server)
            for statement in TABLES.split(";\n"):
                if statement.strip():
                    cursor.execute(statement)
            cursor.execute("VACUUM ANALYZE" if server.title == "PostgreSQL" else "ANALYZE")
        check_answers(servers, kinds)
        for number in range(args.rounds):
            for kind, _, sql in kinds:
                for mode in modes:
                    for server in servers if number % 2 == 0 else servers[::-1]:
                        one = measure(server, sql, mode, args.seconds)
                        measured.setdefault((kind, mode, server.title), []).append(one)
                    told = ", ".join(f"{server.title} {measured[kind, mode, server.title][-1]['p50']} µs" for server in servers)
                    print(f"round {number + 1}: {kind}, {mode}: {told}", flush=True)
        versions = {server.title: server.version for server in servers}
    finally:
        for server in servers:
            server.stop()
    write(args, kinds, modes, measured, versions, [server.title for server in servers])


def write(args, kinds, modes, measured, versions, titles):
    middle = lambda kind, mode, title: statistics.median(one["p50"] for one in measured[kind, mode, title])
    ours, theirs = "Tidepool", "PostgreSQL"
    rows, short, ratios, gains = [], [], {}, {}
    for kind, is_direct, _ in kinds:
        row = [kind + (" (direct)" if is_direct else "")]
        for mode in modes:
            mine, other = middle(kind, mode, ours), middle(kind, mode, theirs)
            ratio = mine / other
            ratios.setdefault((mode, is_direct), []).append(ratio)
            row += [f"{mine:,.0f}", f"{other:,.0f}", bold(f"{ratio:.2f}")]
            if "before" in titles:
                gain = middle(kind, mode, "before") / mine
                gains.setdefault((mode, is_direct), []).append(gain)
                row += [f"{gain:.1f}"]
            if ratio > TARGET and not is_direct:
                short.append(f"* {kind}, {mode}: {ratio:.2f} times PostgreSQL's.")
        rows.append(row)
    mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
    lines = [
        "# Small statements, beside PostgreSQL",
        "",
        f"Written by `bench/latency.py`. {machine.describe()}. Tidepool {versions[ours]}, PostgreSQL {versions[theirs]}. Tables of {CUSTOMERS:,}, {ORDERS:,} and "
        f"{LINES:,} rows with their indexes; one client (pgbench) on the servers' processors, by TCP; {args.rounds} rounds of {args.seconds} s for each kind and protocol, in "
        "turns. Medians of the time that the client sees, in µs; the answers are the same. The statements are in the script."
        + (" Gain: the older Tidepool's time over this one's." if "before" in titles else ""),
        "",
        "## What is slower than PostgreSQL",
        "",
        *(short or ["Nothing."]),
        "",
        "## Times",
        "",
        "Kinds that are not direct go by a plan of operators.",
        "",
        *table(["", *(head for mode in modes for head in ([f"{mode}: Tidepool", "PostgreSQL", "÷"] + (["gain"] if "before" in titles else [])))], rows),
        *(f"Geometric mean of the ratios, {mode}, {'direct' if is_direct else 'planned'}: {mean(values):.2f}."
          + (f" Gain over the older one: {mean(gains[mode, is_direct]):.1f}." if gains else "") + "\n" for (mode, is_direct), values in ratios.items()),
    ]
    args.output.write_text("\n".join(lines).rstrip() + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
