#!/usr/bin/env python3
"""Random queries over random tables, by three ways to answer them: the engine, DataFusion's operators (`SET tidepool.engine`), DuckDB.

Tables of every usual type, with skew, NULLs and extreme values; one is empty, and of the others some rows are merged, some in delta and some
changed since; some have a primary key. Queries are made of what the three mean the same by: no division of integers, no text of floats. Rows are compared without
their order, floats to ten digits. Windows and grouping sets are among them. An error of one that another has not is a difference, too.
Joins by skewed keys can make tens of millions of rows of three thousand: a query with more than a million in its result is counted as large
and left out. DataFusion's windows take quadratic time, so one that takes longer than `--seconds` in its operators, or that finds no memory
there or in the engine, is large, too, and is compared with whoever answers.

Needs a built Tidepool (`cargo build --release`) and bench/requirements.txt. `--seed` and `--queries` say which; a difference is printed with
the seed that makes it.
"""

import argparse
import datetime
import decimal
import random
import sys
import tempfile
import uuid

from peers import TIDEPOOL
from peers.tidepool import Server

WORDS = ["", "a", "b", "ab", "abc", "Zebra", "über", "naïve", "long text that does not fit into twelve bytes", "long text that does not end alike", "%", "_", "x_y", "special requests", "日本"]
TYPES = ["int", "bigint", "smallint", "numeric(12,2)", "real", "double precision", "text", "date", "timestamp", "timestamptz", "interval", "boolean", "uuid", "bytea"]
NUMBERS = ("int", "bigint", "smallint", "numeric(12,2)", "double precision")
EXACT = ("int", "bigint", "smallint", "numeric(12,2)")
# By two values everything meets everything, and floats that are sums are alike only nearly.
UNJOINED = ("boolean", "real", "double precision")
# PostgreSQL 15 has no least and no greatest of these.
UNMEASURED = ("boolean", "uuid", "bytea")
# What the error of a large query says, and rows that a result may have.
LARGE = ("statement timeout", "out of memory")
ROWS_MAX = 1_000_000


class Maker:
    """Tables and queries from one seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.tables = {}
        for number in range(4):
            columns = [(f"c{number}_{place}", self.random.choice(TYPES)) for place in range(self.random.randint(2, 6))]
            # Something to join by.
            columns.insert(0, (f"k{number}", self.random.choice(["int", "bigint", "int", "text"]) if self.random.random() < 0.2 else "int"))
            if self.random.random() < 0.5:
                columns.append((f"id{number}", "int"))
            self.tables[f"t{number}"] = columns

    def value(self, of, spread):
        r = self.random
        if r.random() < 0.08:
            return None
        number = int(r.paretovariate(1.2)) if r.random() < 0.3 else r.randint(-spread, spread)
        number = max(min(number, 30_000), -30_000)
        if of in ("int", "bigint", "smallint"):
            if r.random() < 0.01:
                return r.choice({"int": [2**31 - 1, -(2**31)], "bigint": [2**62, -(2**62)], "smallint": [32767, -32768]}[of])
            return number
        if of.startswith("numeric"):
            return decimal.Decimal(number * 7) / 100 if r.random() < 0.99 else decimal.Decimal("9999999999.99")
        if of in ("real", "double precision"):
            return number / 8
        if of == "text":
            return r.choice(WORDS) if r.random() < 0.7 else f"word {number}"
        if of == "bytea":
            return r.choice(["", "a", "ab", "b", "bytes that do not fit into twelve", f"bytes {number}"]).encode()
        if of == "uuid":
            return str(uuid.UUID(int=(number % 50) << r.choice([0, 64, 120])))
        if of == "interval":
            # Of one length, some, and of other parts.
            return r.choice([f"{number % 5} months {number % 7} days", f"{number % 40} days", f"{24 * (number % 40)} hours", f"{number} minutes {number % 7} microseconds", f"{number % 3} months {-number % 50} days"])
        if of == "boolean":
            return r.random() < 0.4
        if of == "date":
            return datetime.date(2024, 1, 1) + datetime.timedelta(days=number % 20_000 - 10_000)
        zone = datetime.timezone.utc if of == "timestamptz" else None
        return datetime.datetime(2024, 1, 1, tzinfo=zone) + datetime.timedelta(seconds=number * 977, microseconds=number % 7)

    def rows(self, table, count):
        spread = self.random.choice([3, 20, 300, 20_000])
        value = lambda row, name, of: row if name.startswith("id") else self.value(of, spread)  # noqa: E731
        return [tuple(value(row, name, of) for name, of in self.tables[table]) for row in range(count)]

    def literal(self, of):
        value = None
        while value is None:
            value = self.value(of, 50)
        if of in ("int", "bigint", "smallint"):
            return str(max(min(value, 30_000), -30_000))
        if of.startswith("numeric"):
            return f"{value:.2f}"
        if of in ("real", "double precision"):
            return f"({value!r}::{of})"
        if of == "text":
            return "'" + value + "'"
        if of == "boolean":
            return str(value).lower()
        if of == "date":
            return f"DATE '{value}'"
        if of == "bytea":
            return f"'{value.decode()}'::bytea"
        if of in ("uuid", "interval"):
            return f"'{value}'::{of}"
        return f"{of.upper()} '{value}'"

    def column(self, scope, of):
        fitting = [name for name, known in scope if known == of]
        return self.random.choice(fitting) if fitting else None

    def expression(self, scope, of, depth):
        r = self.random
        leaf = self.column(scope, of)
        if depth == 0 or r.random() < 0.3:
            return leaf if leaf and r.random() < 0.8 else self.literal(of)
        kind = r.randrange(5)
        if kind == 0:
            otherwise = f" ELSE {self.expression(scope, of, depth - 1)}" if r.random() < 0.7 else ""
            return f"CASE WHEN {self.condition(scope, depth - 1)} THEN {self.expression(scope, of, depth - 1)}{otherwise} END"
        if kind == 1 and of != "boolean" and r.random() < 0.4:
            function = "nullif" if of in UNMEASURED else r.choice(["nullif", "greatest", "least"])
            return f"{function}({self.expression(scope, of, depth - 1)}, {self.expression(scope, of, 0)})"
        if kind == 1:
            return f"coalesce({self.expression(scope, of, depth - 1)}, {self.expression(scope, of, 0)})"
        if of in ("int", "bigint") and kind == 2:
            date = self.column(scope, "date")
            if date and of == "int":
                return f"extract({r.choice(['year', 'month', 'day', 'quarter'])} FROM {date})::int"
            return f"({self.expression(scope, 'smallint', 0)} {r.choice('+-*')} {self.expression(scope, 'smallint', 0)}::int)::{of}"
        if of == "numeric(12,2)" and kind == 2:
            return f"({self.expression(scope, of, 0)} {r.choice('+-')} {self.expression(scope, of, 0)})"
        if of in ("timestamp", "timestamptz") and kind == 2:
            return f"({self.expression(scope, of, 0)} {r.choice('+-')} {self.expression(scope, 'interval', 0)})"
        if of == "interval" and kind == 2:
            moment = r.choice(["timestamp", "timestamptz"])
            return f"({self.expression(scope, moment, 0)} - {self.expression(scope, moment, 0)})"
        if of == "double precision" and kind == 2:
            return f"({self.expression(scope, of, 0)} {r.choice('+-*')} {self.expression(scope, of, depth - 1)})"
        if of == "text" and kind in (2, 3):
            inner = self.expression(scope, "text", depth - 1)
            return r.choice([f"substring({inner} FROM {r.randint(1, 5)} FOR {r.randint(0, 6)})", f"upper({inner})", f"({inner} || {self.expression(scope, 'text', 0)})"])
        if of == "boolean":
            return "(" + self.condition(scope, depth - 1) + ")"
        return leaf or self.literal(of)

    def condition(self, scope, depth):
        r = self.random
        if depth > 0 and r.random() < 0.35:
            return f"({self.condition(scope, depth - 1)} {r.choice(['AND', 'OR'])} {self.condition(scope, depth - 1)})"
        if r.random() < 0.1:
            return f"(NOT {self.condition(scope, max(depth - 1, 0))})"
        of = r.choice([of for _, of in scope])
        value = self.expression(scope, of, min(depth, 1))
        kind = r.randrange(6)
        if kind == 0:
            return f"{value} IS {r.choice(['', 'NOT '])}NULL"
        if kind == 1:
            listed = ", ".join(self.literal(of) for _ in range(r.randint(1, 6)))
            return f"{value} {r.choice(['', 'NOT '])}IN ({listed})"
        if kind == 2 and of == "text":
            pattern = r.choice(["%a%", "a%", "%b", "_b%", "%ong%not%", "%special%requests%", "%", "", "Z_bra", "%ü%", "long text%"])
            return f"{value} {r.choice(['', 'NOT '])}LIKE '{pattern}'"
        if kind == 3 and of != "boolean":
            return f"{value} BETWEEN {self.literal(of)} AND {self.literal(of)}"
        if kind == 4 and of in EXACT:
            other = r.choice(EXACT)
            return f"{value} {r.choice(['<', '<=', '=', '<>', '>='])} {self.expression(scope, other, 0)}"
        return f"{value} {r.choice(['<', '<=', '=', '<>', '>', '>=', 'IS DISTINCT FROM'])} {self.expression(scope, of, min(depth, 1))}"

    def scope(self, table, alias):
        return [(f"{alias}.{name}", of) for name, of in self.tables[table]]

    def aggregate(self, scope):
        r = self.random
        of = r.choice([of for _, of in scope])
        argument = self.expression(scope, of, 1)
        calls = ["count(*)", f"count({argument})", f"count(DISTINCT {argument})"]
        if of == "boolean":
            calls += [f"bool_and({argument})", f"bool_or({argument})"]
        elif of not in UNMEASURED:
            calls += [f"min({argument})", f"max({argument})"]
        if of in ("int", "smallint", "numeric(12,2)", "double precision"):
            calls += [f"sum({argument})"] * 2 + [f"avg({argument})"]
            calls += [f"{r.choice(['stddev_samp', 'stddev_pop', 'var_samp', 'var_pop', 'variance'])}({argument})"]
        call = r.choice(calls)
        if r.random() < 0.15 and call != "count(*)":
            call += f" FILTER (WHERE {self.condition(scope, 1)})"
        return call

    def direction(self):
        return f"{self.random.choice(['', ' DESC'])} NULLS {self.random.choice(['FIRST', 'LAST'])}"

    def frame(self, units, distances):
        """Bounds in an order that all accept."""
        r = self.random
        before = ["UNBOUNDED PRECEDING", *[f"{distance} PRECEDING" for distance in distances]]
        after = [*[f"{distance} FOLLOWING" for distance in distances], "UNBOUNDED FOLLOWING"]
        start = r.choice([*before, "CURRENT ROW", *after[:-1]])
        end = r.choice({"P": [*before[1:], "CURRENT ROW", *after], "C": ["CURRENT ROW", *after], "F": after}[start[-9] if start[-9] in "PF" else "C"])
        return f" {units} BETWEEN {start} AND {end}"

    def window(self, scope, shared):
        """A call over a window. What depends on the order of peers is ordered by every column, so that peers are alike; all such calls of a
        query share their window, for which of two like rows is first in it is theirs to choose."""
        r = self.random
        partition = [self.expression(scope, of, r.choice([0, 0, 1])) for _, of in r.sample(scope, min(len(scope), r.choice([0, 1, 1, 1, 2])))]
        over = f"PARTITION BY {', '.join(partition)} " if partition else ""
        of = r.choice([of for _, of in scope])
        argument = self.expression(scope, of, 1)
        aggregates = ["count(*)", f"count({argument})"]
        if of == "boolean":
            aggregates += [f"bool_and({argument})", f"bool_or({argument})"]
        elif of not in UNMEASURED:
            aggregates += [f"min({argument})", f"max({argument})"]
        if of in ("int", "smallint", "numeric(12,2)", "double precision"):
            aggregates += [f"sum({argument})"] * 2 + [f"avg({argument})"]
        filtered = f" FILTER (WHERE {self.condition(scope, 1)})" if r.random() < 0.15 else ""
        kind = r.randrange(6)
        if kind == 0:
            return f"{r.choice(aggregates)}{filtered} OVER ({over})"
        if kind in (1, 2):
            every = ", ".join(name + self.direction() for name, _ in r.sample(scope, len(scope)))
            if not shared:
                shared.append(f"{over}ORDER BY {every}")
            offset = r.choice(["", ", 0", ", 1", ", 2", ", 3"])
            default = f", {self.literal(of)}" if offset and r.random() < 0.5 else ""
            call = r.choice(["row_number()", f"ntile({r.randint(1, 9)})", f"lag({argument}{offset}{default})", f"lead({argument}{offset}{default})", f"first_value({argument})", f"last_value({argument})", f"nth_value({argument}, {r.randint(1, 4)})", r.choice(aggregates)])
            frame = self.frame("ROWS", [0, 1, 2, 5]) if call.startswith(("first", "last", "nth", *"mcsab")) and r.random() < 0.8 else ""
            return f"{call} OVER ({shared[0]}{frame})"
        numbers = [(name, known) for name, known in scope if known in NUMBERS]
        if kind == 3 and numbers:
            key, known = r.choice(numbers)
            distances = {"numeric(12,2)": ["0.07", "1.4", "30"], "double precision": ["0.25", "1.5", "40"]}.get(known, ["0", "1", "3", "50"])
            frame = self.frame("RANGE", distances)
            return f"{r.choice(aggregates)}{filtered} OVER ({over}ORDER BY {key}{self.direction()}{frame})"
        order = ", ".join(name + self.direction() for name, _ in r.sample(scope, min(len(scope), r.choice([1, 1, 2]))))
        if kind == 4:
            return f"{r.choice(['rank()', 'dense_rank()', 'percent_rank()', 'cume_dist()'])} OVER ({over}ORDER BY {order})"
        frame = r.choice(["", self.frame("GROUPS", [0, 1, 2]), self.frame("RANGE", [])])
        return f"{r.choice(aggregates)}{filtered} OVER ({over}ORDER BY {order}{frame})"

    def grouping(self, keys):
        """Sets of some outputs."""
        r = self.random
        kind = r.randrange(4)
        if kind == 0:
            return f"ROLLUP ({', '.join(keys)})"
        if kind == 1:
            return f"CUBE ({', '.join(keys)})"
        if kind == 2 and len(keys) > 1:
            return f"{keys[0]}, ROLLUP ({', '.join(keys[1:])})"
        sets = [f"({', '.join(r.sample(keys, r.randint(0, len(keys))))})" for _ in range(r.randint(1, 4))]
        # Each key is in some set.
        return f"GROUPING SETS (({', '.join(keys)}), {', '.join(sets)})" if r.random() < 0.7 else f"GROUPING SETS ({', '.join(f'({key})' for key in keys)}, ())"

    def rows_beside(self, scope, names):
        """Where a subquery has its rows from that names a column of the rows around it, a column of its own, and its scope."""
        r = self.random
        other = r.choice(names)
        theirs = self.scope(other, "s")
        pairs = [(a, b) for a, of in scope for b, of_b in theirs if of == of_b and of not in UNJOINED]
        columns = [name for name, of in theirs if of not in UNJOINED]
        if not pairs or not columns:
            return None
        a, b = r.choice(pairs)
        more = f" AND {self.condition(theirs, 1)}" if r.random() < 0.4 else ""
        return f"FROM {other} s WHERE {b} {r.choice(['=', '=', '=', '<', 'IS NOT DISTINCT FROM'])} {a}{more}", r.choice(columns), theirs

    def largest(self, column, scope):
        return f"{'count' if dict(scope)[column] in UNMEASURED else 'max'}({column})"

    def correlated(self, scope, names):
        """A condition over a subquery that names a column of the rows around it beneath what looks at how many rows there are."""
        r = self.random
        beside = self.rows_beside(scope, names)
        if beside is None:
            return None
        rows, column, theirs = beside
        negated, few, compared = r.choice(["", "NOT "]), r.randint(0, 3), r.choice(["=", "<", ">", "<>"])
        forms = [
            f"{negated}EXISTS (SELECT 1 {rows} OFFSET {few})",
            f"{negated}EXISTS (SELECT 1 FROM (SELECT count(*) OVER () AS n {rows}) w WHERE w.n > {few})",
            f"{few} {negated}IN (SELECT count(*) {rows})",
            f"{few} {negated}IN (SELECT row_number() OVER (ORDER BY {column}) {rows})",
            f"{negated}EXISTS (SELECT count(*) {rows} HAVING count(*) {compared} {few})",
            f"(SELECT count(*) {rows}) {compared} {few}",
            f"(SELECT count(DISTINCT {column}) {rows}) {compared} {few}",
            f"(SELECT count(*) FROM (SELECT DISTINCT {column} {rows}) w) {compared} {few}",
            f"(SELECT {self.largest(column, theirs)} {rows}) IS {negated}NULL",
            f"(SELECT max(n) FROM (SELECT count(*) AS n {rows} GROUP BY {column}) w) {compared} {few}",
            f"{negated}EXISTS (SELECT {column} {rows} GROUP BY {column} HAVING count(*) > {few})",
            f"(SELECT {column} {rows} ORDER BY {column} DESC NULLS LAST LIMIT 1) IS {negated}NULL",
            f"(SELECT count(*) FROM (SELECT {column} {rows} UNION SELECT {column} FROM {r.choice([name for name in names if name in rows])} s) w) {compared} {few}",
        ]
        third = r.choice(names)
        keys = [(a, b) for a, of in theirs for b, of_b in self.scope(third, "t") if of == of_b and of not in UNJOINED]
        if keys:
            a, b = r.choice(keys)
            optional = f"FROM {third} t LEFT JOIN (SELECT * {rows}) s ON {a} = {b}"
            forms += [f"{negated}EXISTS (SELECT 1 {optional} WHERE {a} IS NULL)", f"(SELECT count({a}) {optional}) {compared} {few}"]
        return r.choice(forms)

    def query(self):
        r = self.random
        names = list(self.tables)
        first = r.choice(names)
        scope = self.scope(first, "a")
        source = f"{first} a"
        read, merges = [first], set()
        for alias in "bc"[: r.choice([0, 0, 1, 1, 1, 2])]:
            other = r.choice(names)
            if other in merges:
                # Its key would be the name of two columns.
                continue
            theirs = self.scope(other, alias)
            kind = r.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
            if read.count(other) == 1 and r.random() < 0.7:
                # By the key of both, which then is a column of neither.
                merged, of = self.tables[other][0]
                source += f" {kind} {other} {alias} USING ({merged})"
                scope = scope + theirs + [(merged, of)]
                merges.add(other)
                continue
            pairs = [(a, b) for a, of in scope for b, of_b in theirs if of == of_b and of not in UNJOINED]
            if not pairs:
                continue
            keys = r.sample(pairs, min(len(pairs), r.choice([1, 1, 2])))
            on = " AND ".join(f"{a} = {b}" for a, b in keys)
            if kind in ("JOIN", "LEFT JOIN") and r.random() < 0.3:
                on += f" AND {self.condition(scope + theirs, 1)}"
            source += f" {kind} {other} {alias} ON {on}"
            scope = scope + theirs
            read.append(other)
        if r.random() < 0.08:
            # A merged column's name would be that of two columns.
            others = [name for name in names if name not in merges]
            beside = self.rows_beside(scope, others) if others else None
            if beside:
                rows, _, theirs = beside
                every = ", ".join(name + self.direction() for name, _ in r.sample(theirs, len(theirs)))
                optional = r.random() < 0.5
                source += f" {'LEFT' if optional else 'CROSS'} JOIN LATERAL (SELECT * {rows} ORDER BY {every} LIMIT {r.randint(1, 3)}) l{' ON true' if optional else ''}"
                scope = scope + [(f"l.{name.split('.')[1]}", of) for name, of in theirs]
        where = []
        if r.random() < 0.7:
            where.append(self.condition(scope, 2))
        if r.random() < 0.3:
            other = r.choice(names)
            theirs = self.scope(other, "s")
            pairs = [(a, b) for a, of in scope for b, of_b in theirs if of == of_b and of not in UNJOINED]
            if pairs:
                a, b = r.choice(pairs)
                more = f" AND {self.condition(theirs, 1)}" if r.random() < 0.5 else ""
                where.append(r.choice([
                    f"{r.choice(['', 'NOT '])}EXISTS (SELECT 1 FROM {other} s WHERE {a} = {b}{more})",
                    f"{a} {r.choice(['', 'NOT '])}IN (SELECT {b} FROM {other} s WHERE {b} IS NOT NULL{more})",
                ]))
        if r.random() < 0.2:
            condition = self.correlated(scope, names)
            if condition:
                where.append(condition)
        if r.random() < 0.15:
            other = r.choice(names)
            theirs = self.scope(other, "q")
            of = r.choice([of for _, of in theirs if of not in UNMEASURED])
            mine = self.column(scope, of)
            column = self.column(theirs, of)
            if mine and column:
                where.append(f"{mine} {r.choice(['<=', '>', '='])} (SELECT {r.choice(['min', 'max'])}({column}) FROM {other} q)")
        if " LEFT JOIN " in source and r.random() < 0.2:
            where.append(f"{r.choice([name for name, _ in scope if name in source])} IS NULL")
        where = f" WHERE {' AND '.join(where)}" if where else ""
        shape = r.random()
        if shape < 0.5:
            keys = [self.expression(scope, r.choice([of for _, of in scope if of not in ('real', 'double precision')] or ["int"]), r.choice([0, 0, 1])) for _ in range(r.choice([0, 1, 1, 2, 3]))]
            # Constants are positions, or nothing to group by.
            keys = [key for key in keys if "." in key and not key.startswith("(") or "CASE" in key]
            unique = [name for name, _ in scope if ".id" in name]
            if unique and r.random() < 0.4:
                alias = r.choice(unique)
                beside = [name for name, _ in scope if name.split(".")[0] == alias.split(".")[0]][: r.randint(1, 3)]
                keys = [alias, *beside, *[key for key in keys[:1] if key not in beside + [alias]]]
                r.shuffle(keys)
            calls = [self.aggregate(scope) for _ in range(r.randint(1, 4))]
            outputs = ", ".join(f"{output} AS o{place}" for place, output in enumerate(keys + calls))
            group = f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}" if keys else ""
            if keys and r.random() < 0.35:
                keys = [name for name, _ in r.sample(scope, min(len(scope), len(keys)))]
                # A merged column is one of those it is merged of, or another, as the engine will have it.
                merged = {self.tables[table][0][0] for table in merges}
                keys = [key for key in keys if key in merged or key.split(".")[-1] not in merged] or keys[:1]
                calls += [f"grouping({r.choice(keys)})"] * r.choice([0, 1])
                outputs = ", ".join(f"{output} AS o{place}" for place, output in enumerate(keys + calls))
                group = f" GROUP BY {self.grouping(keys)}"
            having = f" HAVING count(*) > {r.randint(0, 3)}" if r.random() < 0.2 else ""
            width = len(keys) + len(calls)
            query = f"SELECT {outputs} FROM {source}{where}{group}{having}"
        else:
            outputs = [self.expression(scope, r.choice([of for _, of in scope]), 2) for _ in range(r.randint(1, 5))]
            if r.random() < 0.1:
                beside = self.rows_beside(scope, names)
                if beside:
                    rows, column, theirs = beside
                    outputs.append(f"(SELECT {r.choice(['count(*)', self.largest(column, theirs), f'count({column})'])} {rows})")
            if r.random() < 0.4:
                shared = []
                outputs += [self.window(scope, shared) for _ in range(r.choice([1, 1, 2, 4]))]
            width = len(outputs)
            distinct = "DISTINCT " if shape > 0.85 else ""
            query = f"SELECT {distinct}{', '.join(f'{output} AS o{place}' for place, output in enumerate(outputs))} FROM {source}{where}"
            if shape > 0.55 and shape < 0.6:
                query = f"{query} UNION ALL {query}"
        if shape >= 0.6 and r.random() < 0.15:
            partition = f"PARTITION BY o{r.randrange(width)} " if r.random() < 0.7 else ""
            order = ", ".join(f"o{place}{self.direction()}" for place in r.sample(range(width), min(width, r.choice([1, 1, 2]))))
            first = r.choice(["z.rank <= 1", "z.rank < 3", "z.rank <= 5", "z.rank = 1", "z.rank <= 40", "5 > z.rank"])
            call = r.choice(["rank", "rank", "dense_rank"])
            query = f"SELECT * FROM (SELECT *, {call}() OVER ({partition}ORDER BY {order}) AS rank FROM ({query}) y) z WHERE {first}"
            width += 1
        if r.random() < 0.4:
            # By all of it, so that what a limit leaves is the same everywhere.
            order = ", ".join(f"{place + 1} {r.choice(['', 'DESC '])}NULLS {r.choice(['FIRST', 'LAST'])}" for place in r.sample(range(width), width))
            query = f"SELECT * FROM ({query}) z ORDER BY {order}"
            if r.random() < 0.6:
                query += f" LIMIT {r.choice([1, 3, 10, 1000])}"
                if r.random() < 0.3:
                    query += f" OFFSET {r.randint(0, 5)}"
        return query


def shown(value):
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:.10g}"
    if isinstance(value, uuid.UUID):
        return repr(str(value))
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (int, decimal.Decimal)):
        # An average is exact here and a float there.
        return "0" if value == 0 else f"{float(value):.10g}"
    return str(value)


def answer(run, sql):
    try:
        return sorted(tuple(shown(value) for value in row) for row in run(sql)), None
    except Exception as error:  # noqa: BLE001
        return None, str(error).strip().splitlines()[0]


def same(a, b):
    if a is None or b is None or len(a) != len(b):
        return a is None and b is None
    if a == b:
        return True

    def close(x, y):
        try:
            return x == y or abs(float(x) - float(y)) <= 1e-8 * max(abs(float(x)), abs(float(y)), 1e-6)
        except ValueError:
            return False
    return all(close(x, y) for row, other in zip(a, b) for x, y in zip(row, other))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", default=TIDEPOOL)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--schemas", type=int, default=20)
    parser.add_argument("--queries", type=int, default=100, help="for each schema")
    parser.add_argument("--rows", type=int, default=3000, help="of a table, at most")
    parser.add_argument("--seconds", type=float, default=20, help="a query may take in DataFusion's operators; the engine has ten times as long")
    args = parser.parse_args()
    import duckdb
    import psycopg2.extras

    with tempfile.TemporaryDirectory() as folder:
        server = Server(args.tidepool, f"{folder}/data", "--near", "2GB")
        server.start()
        try:
            cursor = server.connect().cursor()
            counts = {"queries": 0, "refused": 0, "errors": 0, "large": 0, "engine": 0, "duckdb": 0, "rows": 0}
            for schema in range(args.seed, args.seed + args.schemas):
                duck = duckdb.connect()
                duck.execute("SET TimeZone = 'UTC'")
                check(args, schema, cursor, duck, psycopg2.extras.execute_values, counts)
            print(", ".join(f"{name}: {count}" for name, count in counts.items()))
            sys.exit(1 if counts["engine"] or counts["duckdb"] else 0)
        finally:
            server.stop()


def check(args, seed, cursor, duck, insert_all, counts):
    maker = Maker(seed)
    for table, columns in maker.tables.items():
        definition = ", ".join(f"{name} {of}{' PRIMARY KEY' if name.startswith('id') else ''}" for name, of in columns)
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
        cursor.execute(f"CREATE TABLE {table} ({definition}) WITH (merge = never)")
        duck.execute(f"CREATE TABLE {table} ({definition})")
        count = 0 if table == "t3" else maker.random.choice([1, 20, args.rows // 3, args.rows])
        rows = maker.rows(table, count)
        later = rows[len(rows) * 2 // 3:] if maker.random.random() < 0.7 else []
        for part in (rows[: len(rows) - len(later)], later):
            if part:
                insert_all(cursor, f"INSERT INTO {table} VALUES %s", part, page_size=1000)
                duck.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", part)
            if part is not later:
                cursor.execute(f"CALL tidepool.merge('{table}')")
        if maker.random.random() < 0.5:
            numbers = [name for name, of in columns if of in ("int", "bigint") and not name.startswith("id")]
            if numbers:
                change = f"UPDATE {table} SET {numbers[0]} = 77 WHERE {numbers[0]} BETWEEN 1 AND 2"
                cursor.execute(change)
                duck.execute(change)

    def tidepool(engine, seconds):
        def run(sql):
            cursor.execute(f"SET tidepool.engine = '{engine}'")
            cursor.execute(f"SET statement_timeout = {round(seconds * 1000)}")
            cursor.execute(sql)
            return cursor.fetchall()
        return run

    for number in range(args.queries):
        sql = maker.query()
        counts["queries"] += 1
        if sql.count("JOIN") > 1:
            rows, _ = answer(tidepool("tidepool", 10 * args.seconds), f"SELECT count(*) FROM ({sql}) AS counted")
            if rows and int(rows[0][0]) > ROWS_MAX:
                counts["large"] += 1
                continue
        plain, plain_error = answer(tidepool("datafusion", args.seconds), sql)
        own, own_error = answer(tidepool("tidepool", 10 * args.seconds), sql)
        theirs, their_error = answer(lambda sql: duck.execute(sql).fetchall(), sql)
        if plain_error and own_error and their_error:
            counts["refused"] += 1
            continue
        counts["rows"] += len(own or [])
        # Whether an overflow comes to light depends on what is evaluated for which rows.
        if any(error and ("range" in error or "verflow" in error) for error in (plain_error, own_error, their_error)):
            counts["errors"] += 1
            continue
        is_large = [error for error in (plain_error, own_error) if error and any(part in error for part in LARGE)]
        counts["large"] += bool(is_large)
        if own_error in is_large and "timeout" not in own_error:
            continue
        for name, (rows, error) in {"engine": (plain, plain_error), "duckdb": (theirs, their_error)}.items():
            # What DataFusion's operators alone refuse: frames that no row can be in, booleans' aggregates of those that slide, and
            # plans that its own checks of sort orders and of what may be NULL find fault with.
            known = ("invalid window frame", "retract_batch", "not satisfy order requirements", "Physical input schema should be the same")
            if error and not own_error and (error in is_large or any(part in error for part in known)):
                continue
            if not same(own, rows):
                counts[name] += 1
                print(f"-- seed {seed}, query {number}: differs from {name}\n{sql};")
                print(f"   engine: {own_error or len(own)}, {name}: {error or len(rows)}")
                if own is not None and rows is not None:
                    print("   ", [row for row in own if row not in rows][:2], [row for row in rows if row not in own][:2])
                sys.stdout.flush()


if __name__ == "__main__":
    main()
