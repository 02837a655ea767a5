#!/usr/bin/env python3
"""Random statements whose conditions ask queries, beside PostgreSQL: whether true, false and unknown are told apart wherever they can be seen.

`IN`, `NOT IN`, `ANY`, `ALL`, `EXISTS` and scalar subqueries, correlated and not, over small tables with many NULLs, stand in WHERE, HAVING, the select list, ON of
every kind of join, CASE, FILTER, arguments of aggregates, GROUP BY, ORDER BY and windows, and in UPDATE, DELETE and MERGE. Rows are compared without their order.

Both servers are running ones, in which a schema `three_values` is made anew:

    bench/three_values.py --tidepool postgresql://tidepool@127.0.0.1:5432/tidepool --postgres 'host=127.0.0.1 port=5433 user=postgres' --seed 1 --queries 2000

A difference is printed with its statement; `--tables` prints the tables. What PostgreSQL refuses is left out.
"""

import argparse
import collections
import random
import sys

import psycopg

TYPES = ["int", "bigint", "numeric", "text", "double precision", "date", "boolean", "smallint"]
FAMILY = {"int": "n", "bigint": "n", "smallint": "n", "numeric": "n", "double precision": "n", "text": "t", "date": "d", "boolean": "b"}
OPS = ["=", "<>", "<", "<=", ">", ">="]
TABLES = {
    "a": [("i", "int", True), ("j", "int", True), ("s", "text", True), ("f", "boolean", True)],
    "b": [("i", "int", True), ("k", "bigint", True), ("x", "double precision", True), ("d", "date", True)],
    "c": [("i", "int", False), ("j", "int", True), ("m", "numeric", True), ("s", "text", False)],
    "e": [("i", "int", True), ("s", "text", True)],
    "g": [("i", "smallint", True), ("j", "int", False), ("f", "boolean", False), ("d", "date", True)],
}


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = 0

    def chance(self, of):
        return self.random.random() < of

    def literal(self, of):
        r = self.random
        if of == "text":
            return "'" + r.choice(["a", "b", "c", "zz", ""]) + "'"
        if of == "date":
            return f"date '2024-01-0{r.randint(1, 5)}'"
        if of == "boolean":
            return r.choice(["true", "false"])
        if of == "numeric":
            return r.choice(["1.5", "2", "3.0", "0"])
        return str(r.randint(0, 5))

    def tables(self):
        statements = []
        for name, columns in TABLES.items():
            shown = ", ".join(f"{column} {of}{'' if may else ' NOT NULL'}" for column, of, may in columns)
            if name == "c":
                shown += ", PRIMARY KEY (i)"
            statements.append(f"CREATE TABLE {name} ({shown})")
            if name == "e":
                continue
            size = self.random.choice([3, 5, 8, 90])
            nulls = self.random.choice([0.1, 0.3, 0.5])
            rows = []
            for row in range(size):
                cells = []
                for column, of, may in columns:
                    if name == "c" and column == "i":
                        cells.append(str(row))
                    elif may and self.chance(nulls):
                        cells.append("NULL")
                    else:
                        cells.append(self.literal(of))
                rows.append("(" + ", ".join(cells) + ")")
            statements.append(f"INSERT INTO {name} VALUES {', '.join(rows)}")
        return statements

    def alias(self):
        self.names += 1
        return f"q{self.names}"

    def columns(self, scopes, family, own=None):
        found = []
        for depth, scope in enumerate(reversed(scopes)):
            if own is not None and (depth == 0) != own:
                continue
            for alias, table in scope:
                found += [(f"{alias}.{column}", of) for column, of, _ in TABLES[table] if FAMILY[of] == family]
        return found

    def value(self, family, scopes, depth):
        """An expression of a family of types, by what can be named."""
        r = self.random
        kind = r.random()
        own = self.columns(scopes[-1:], family)
        every = self.columns(scopes, family)
        if own and kind < 0.5:
            return r.choice(own)[0]
        if every and kind < 0.7:
            return r.choice(every)[0]
        of = {"n": r.choice(["int", "numeric", "int"]), "t": "text", "d": "date", "b": "boolean"}[family]
        if kind < 0.8 or depth <= 0:
            return self.literal(of)
        if kind < 0.84:
            return f"NULL::{of}"
        if kind < 0.88 and every:
            return f"coalesce({r.choice(every)[0]}, {self.literal(of)})"
        if kind < 0.91 and every:
            return f"nullif({r.choice(every)[0]}, {self.literal(of)})"
        if kind < 0.94 and family == "n" and every:
            return f"{r.choice(every)[0]} + {r.randint(0, 2)}"
        if kind < 0.97 and family in "nt":
            return self.scalar(family, scopes, depth - 1)
        if family == "b":
            return "(" + self.condition(scopes, depth - 1) + ")"
        return f"CASE WHEN {self.condition(scopes, depth - 1)} THEN {self.value(family, scopes, 0)} ELSE {self.value(family, scopes, 0)} END"

    def scalar(self, family, scopes, depth):
        table, alias = self.random.choice(list(TABLES)), self.alias()
        inner = scopes + [[(alias, table)]]
        if family == "n" and self.chance(0.3):
            return f"(SELECT count(*) FROM {table} {alias}{self.where(inner, depth)})"
        return f"(SELECT {self.random.choice(['min', 'max'])}({self.value(family, inner, 0)}) FROM {table} {alias}{self.where(inner, depth)})"

    def where(self, scopes, depth):
        r = self.random
        if self.chance(0.35):
            return ""
        conditions = []
        if len(scopes) > 1 and self.chance(0.5):
            family = r.choice("nnntd")
            own, outer = self.columns(scopes[-1:], family), self.columns(scopes[:-1], family)
            if own and outer:
                op = "=" if self.chance(0.7) else r.choice(OPS)
                conditions.append(f"{r.choice(own)[0]} {op} {r.choice(outer)[0]}")
        if not conditions or self.chance(0.3):
            conditions.append(self.condition(scopes, depth))
        return " WHERE " + " AND ".join(conditions)

    def query(self, family, scopes, depth):
        """A query of one column."""
        r = self.random
        table, alias = r.choice(list(TABLES)), self.alias()
        inner = scopes + [[(alias, table)]]
        kind = r.random()
        if kind < 0.05 and family in "nt":
            of = "int" if family == "n" else "text"
            return "VALUES " + ", ".join(f"({self.literal(of)})" for _ in range(r.randint(1, 3)))
        if kind < 0.1 and family == "n":
            return f"SELECT {r.choice(['min', 'max', 'count'])}({self.value(family, inner, 0)}) FROM {table} {alias}{self.where(inner, depth)}"
        if kind < 0.15:
            key = self.value(family, [inner[-1]], 0)
            return f"SELECT {key} FROM {table} {alias}{self.where(inner, depth)} GROUP BY 1"
        if kind < 0.2:
            return f"({self.query(family, scopes, 0)}) UNION ALL ({self.query(family, scopes, 0)})"
        distinct = "DISTINCT " if self.chance(0.1) else ""
        if kind < 0.27:
            other = r.choice(list(TABLES))
            second = self.alias()
            inner = scopes + [[(alias, table), (second, other)]]
            join = r.choice(["JOIN", "LEFT JOIN"])
            return f"SELECT {distinct}{self.value(family, inner, 0)} FROM {table} {alias} {join} {other} {second} ON {alias}.i = {second}.i{self.where(inner, depth)}"
        return f"SELECT {distinct}{self.value(family, inner, 0)} FROM {table} {alias}{self.where(inner, depth)}"

    def membership(self, scopes, depth):
        r = self.random
        family = r.choice("nnnnttdb")
        kind = r.random()
        if kind < 0.1:
            families = [r.choice("nt"), r.choice("nt")]
            table, alias = r.choice(list(TABLES)), self.alias()
            inner = scopes + [[(alias, table)]]
            row = ", ".join(self.value(family, scopes, 0) for family in families)
            outputs = ", ".join(self.value(family, inner, 0) for family in families)
            return f"({row}) {r.choice(['IN', 'NOT IN'])} (SELECT {outputs} FROM {table} {alias}{self.where(inner, depth - 1)})"
        if kind < 0.17:
            table, alias = r.choice(list(TABLES)), self.alias()
            inner = scopes + [[(alias, table)]]
            return f"{r.choice(['', 'NOT '])}EXISTS (SELECT 1 FROM {table} {alias}{self.where(inner, depth - 1)})"
        needle = self.value(family, scopes, depth - 1)
        # Two literals of one kind say too little of types.
        query = self.query(family, scopes, depth - 1)
        if kind < 0.65:
            return f"{needle} {r.choice(['IN', 'NOT IN', 'NOT IN'])} ({query})"
        if kind < 0.7:
            return f"NOT ({needle} IN ({query}))"
        return f"{needle} {r.choice(OPS)} {r.choice(['ANY', 'ALL', 'ALL', 'SOME'])} ({query})"

    def condition(self, scopes, depth):
        r = self.random
        kind = r.random()
        if depth > 0:
            if kind < 0.4:
                return self.membership(scopes, depth)
            if kind < 0.6:
                test = r.choice(["IS NULL", "IS NOT NULL", "IS TRUE", "IS NOT TRUE", "IS FALSE", "IS NOT FALSE", "IS UNKNOWN", "IS NOT UNKNOWN"])
                return f"({self.membership(scopes, depth)}) {test}"
            if kind < 0.66:
                return f"NOT ({self.condition(scopes, depth - 1)})"
            if kind < 0.76:
                return f"({self.condition(scopes, depth)}) {r.choice(['AND', 'OR', 'OR'])} ({self.condition(scopes, depth - 1)})"
            if kind < 0.8:
                return f"coalesce({self.membership(scopes, depth)}, {r.choice(['true', 'false'])})"
            if kind < 0.84:
                return f"({self.membership(scopes, depth)}) {r.choice(['=', '<>'])} ({self.condition(scopes, depth - 1)})"
            if kind < 0.87:
                return f"CASE WHEN {self.membership(scopes, depth)} THEN {self.condition(scopes, 0)} ELSE {self.condition(scopes, 0)} END"
            if kind < 0.89:
                return f"({self.membership(scopes, depth)}) IN ({self.query('b', scopes, 0)})"
            if kind < 0.91:
                return f"({self.membership(scopes, depth)}) IS DISTINCT FROM ({self.condition(scopes, 0)})"
        family = r.choice("nnntdb")
        if kind < 0.93:
            return f"{self.value(family, scopes, 0)} IS {r.choice(['', 'NOT '])}NULL"
        return f"{self.value(family, scopes, 0)} {r.choice(OPS)} {self.value(family, scopes, 0)}"

    def statement(self):
        r = self.random
        table = r.choice([name for name in TABLES if name != "e"] + ["e"])
        scope = [[("t", table)]]
        outputs = ", ".join(f"t.{column}" for column, _, _ in TABLES[table])
        asked = lambda scopes=scope, depth=2: self.membership(scopes, depth) if self.chance(0.6) else self.condition(scopes, depth)
        kind = r.randint(0, 21)
        if kind <= 5:
            return f"SELECT {outputs} FROM {table} t WHERE {asked()}"
        if kind <= 7:
            return f"SELECT t.i, {asked()} AS p FROM {table} t"
        if kind == 8:
            return f"SELECT t.i, CASE WHEN {asked()} THEN 1 ELSE 2 END FROM {table} t WHERE {asked(depth=1)}"
        if kind <= 12:
            other = r.choice(list(TABLES))
            scope = [[("t", table), ("u", other)]]
            join = r.choice(["JOIN", "LEFT JOIN", "RIGHT JOIN", "LEFT JOIN", "FULL JOIN"])
            equal = "t.i = u.i AND " if join == "FULL JOIN" or self.chance(0.6) else ""
            where = f" WHERE {asked(scope, 1)}" if self.chance(0.3) else ""
            condition = asked(scope)
            if self.chance(0.4):
                condition = asked([[r.choice(scope[0])]])
            return f"SELECT t.i, u.i FROM {table} t {join} {other} u ON {equal}({condition}){where}"
        if kind == 13:
            return f"SELECT count(*) FILTER (WHERE {asked()}), count(*) FROM {table} t"
        if kind == 14:
            call = r.choice(["bool_or({})", "bool_and({})", "count({})", "sum(CASE WHEN {} THEN 1 ELSE 2 END)"])
            return f"SELECT t.i, {call.format(asked())} FROM {table} t GROUP BY t.i"
        if kind == 15:
            return f"SELECT {asked()} AS p, count(*) FROM {table} t GROUP BY 1"
        if kind == 16:
            family = r.choice("nt")
            needle = r.choice([f"max({self.columns(scope, 'n')[0][0]})", self.literal("int"), "count(*)"])
            query = self.query("n", [], 1)
            test = r.choice(["", " IS NULL", " IS NOT FALSE"])
            return f"SELECT t.i FROM {table} t GROUP BY t.i HAVING ({needle} {r.choice(['IN', 'NOT IN', '> ALL', '<= ANY', '= ANY'])} ({query})){test}"
        if kind == 17:
            return f"SELECT {outputs} FROM {table} t ORDER BY {asked()}, {outputs}"
        if kind == 18:
            return f"SELECT t.i, count(*) OVER (PARTITION BY {asked()}) FROM {table} t"
        if kind == 19:
            return f"DELETE FROM {table} t WHERE {asked()} RETURNING {outputs}"
        if kind == 20:
            column, of, _ = r.choice([c for c in TABLES[table] if c[2]] or TABLES[table])
            value = f"CASE WHEN {asked()} THEN {self.literal(of)} ELSE {self.literal(of)} END"
            return f"UPDATE {table} t SET {column} = {value} WHERE {asked(depth=1)} RETURNING {outputs}"
        target = r.choice(["a", "b", "g"])
        scope = [[("t", target), ("u", "c")]]
        column = {"a": "s = 'm'", "b": "k = 77", "g": "i = 77"}[target]
        return f"MERGE INTO {target} t USING c u ON t.i = u.i AND ({asked(scope, 1)}) WHEN MATCHED AND {asked(scope, 1)} THEN UPDATE SET {column} WHEN MATCHED THEN DELETE"


def answer(connection, statement):
    try:
        with connection.transaction(force_rollback=True):
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else [(cursor.statusmessage,)]
            return None, collections.Counter(tuple(number(cell) for cell in row) for row in rows)
    except psycopg.Error as error:
        return error.sqlstate or str(error), None


def number(cell):
    return float(cell) if isinstance(cell, (int, float)) or type(cell).__name__ == "Decimal" else cell


def connect(address, name):
    connection = psycopg.connect(address, autocommit=True)
    connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
    connection.execute(f"CREATE SCHEMA {name}")
    connection.execute(f"SET search_path = {name}")
    connection.execute("SET statement_timeout = '20s'")
    return connection


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tidepool", required=True)
    parser.add_argument("--postgres", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--each", type=int, default=200, help="statements over the same tables")
    parser.add_argument("--shown", type=int, default=20, help="differences that are printed")
    parser.add_argument("--tables", action="store_true", help="print the tables of a difference")
    args = parser.parse_args()
    compared = refused = differ = 0
    seed = args.seed
    while compared < args.queries:
        maker = Maker(seed)
        tables = maker.tables()
        servers = [connect(address, "three_values") for address in (args.tidepool, args.postgres)]
        for server in servers:
            for statement in tables:
                server.execute(statement)
        shown_tables = not args.tables
        for _ in range(args.each):
            statement = maker.statement()
            failed, right = answer(servers[1], statement)
            if failed:
                refused += 1
                continue
            compared += 1
            failed, rows = answer(servers[0], statement)
            if failed or rows != right:
                differ += 1
                if differ <= args.shown:
                    if not shown_tables:
                        print("\n".join(statement + ";" for statement in tables))
                        shown_tables = True
                    print(f"-- seed {seed}: {failed or 'other rows'}\n{statement};")
                    if not failed:
                        print(f"--   missing {dict(right - rows)}\n--   too many {dict(rows - right)}")
                    sys.stdout.flush()
        for server in servers:
            server.close()
        seed += 1
    print(f"{compared} statements compared, {refused} refused by PostgreSQL, {differ} differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
