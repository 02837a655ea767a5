"""Whether two databases gave the same answer.

Answers are compared as multisets, since rows that tie in ORDER BY may come in any order; cells as text, integers exactly, other numbers to 1e-4 or
one in a million (databases differ in how many digits a division keeps). Where a LIMIT cuts through rows that tie, either choice is right: then each
row must be in DuckDB's answer without the LIMIT, and columns that ORDER BY names must be the same.
"""

import collections
import datetime
import decimal
import os
import re

CSV_NULL = "\\N"
INTEGER = re.compile(r"-?\d+")
LIMIT = re.compile(r"\s+limit\s+\d+(\s+offset\s+\d+)?\s*$", re.IGNORECASE)


def canonical(value):
    """A cell as text, the same for all databases as far as their clients allow; None is NULL."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    return str(value).rstrip(" ")


def canonical_rows(rows):
    return [[canonical(value) for value in row] for row in rows]


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def cells_match(ours, theirs):
    if ours == theirs or ours is None or theirs is None:
        return ours == theirs
    a, b = number(ours), number(theirs)
    if a is None or b is None:
        return ours.rstrip(" ") == theirs.rstrip(" ")
    if INTEGER.fullmatch(ours) and INTEGER.fullmatch(theirs):
        return int(ours) == int(theirs)
    return abs(a - b) <= max(1e-4, 1e-6 * abs(b))


def rows_match(ours, theirs):
    return len(ours) == len(theirs) and all(map(cells_match, ours, theirs))


def sort_key(row):
    """Rows that match sort alike: numbers by their first digits, then exactly."""
    rough = [(0, "") if cell is None else (2, cell.rstrip(" ")) if number(cell) is None else (1, f"{number(cell):.3g}") for cell in row]
    return rough, [number(cell) or 0.0 for cell in row]


def same(ours, theirs):
    """Equal as multisets."""
    if len(ours) != len(theirs):
        return False
    # Rounding can put matching rows at different places; then they are looked for.
    return all(map(rows_match, sorted(ours, key=sort_key), sorted(theirs, key=sort_key))) or contained(ours, theirs)


def contained(ours, theirs):
    """Each of our rows is one of theirs. Looks among rows whose text is the same."""
    def text(row):
        return tuple(cell.rstrip(" ") for cell in row if cell is not None and number(cell) is None)

    rest = collections.defaultdict(list)
    for row in theirs:
        rest[text(row)].append(row)
    for row in ours:
        candidates = rest[text(row)]
        found = next((index for index, candidate in enumerate(candidates) if rows_match(row, candidate)), None)
        if found is None:
            return False
        candidates.pop(found)
    return True


def first_difference(ours, theirs, name):
    if len(ours) != len(theirs):
        return f"{len(ours)} rows, {name} {len(theirs)}"
    for index, (a, b) in enumerate(zip(sorted(ours, key=sort_key), sorted(theirs, key=sort_key))):
        for column, (x, y) in enumerate(zip(a, b)):
            if not cells_match(x, y):
                return f"row {index + 1} column {column + 1}: {x}, {name} {y}"
    return "no pairing of rows matches"


def without_limit(sql):
    """The query without the LIMIT that it ends with, or None if it has none."""
    shorter = LIMIT.sub("", sql)
    return shorter if shorter != sql else None


def ordered_columns(sql, names):
    """Numbers of the columns that the query's last ORDER BY begins with, as far as it names them. `names` are DuckDB's."""
    order = re.split(r"\border\s+by\b", LIMIT.sub("", sql), flags=re.IGNORECASE)
    lower = [name.lower() for name in names]
    places = []
    for term in order[-1].split(",") if len(order) > 1 else []:
        name = re.sub(r"\s+(asc|desc)$", "", term.strip().lower()).replace("count(*)", "count_star()")
        if name not in lower:
            break
        places.append(lower.index(name))
    return places


class FullResults:
    """Results of queries without their LIMIT, by DuckDB over Parquet files (by table), which are opened when the first is asked for."""

    def __init__(self, tables):
        self.tables = tables
        self.connection = None

    def explain(self, sql, ours, theirs):
        """Whether ties at the LIMIT are why our rows differ from DuckDB's."""
        unlimited = without_limit(sql)
        if unlimited is None or len(ours) != len(theirs):
            return False
        relation = self._database().sql(unlimited)
        ordered = ordered_columns(sql, relation.columns)
        return all(cells_match(a[place], b[place]) for a, b in zip(ours, theirs) for place in ordered) and self._contains(unlimited, relation.types, ours)

    def _database(self):
        if self.connection is None:
            # Not at the top, so that nobody needs DuckDB to compare two answers.
            from peers import duckdb
            self.connection = duckdb.Engine(os.cpu_count()).database
            for table, parquet in self.tables.items():
                self.connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{parquet}')")
        return self.connection

    def _contains(self, unlimited, types, rows):
        """Looked up by DuckDB, as the whole result may have millions of rows."""
        counted = collections.Counter(map(tuple, rows))
        places = range(len(types))
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE wanted (number INTEGER, {', '.join(f'w{place} VARCHAR' for place in places)})")
        self.connection.executemany(f"INSERT INTO wanted VALUES (?{', ?' * len(types)})", [[number, *row] for number, row in enumerate(counted)])
        names = ", ".join(f"c{place}" for place in places)
        matches = " AND ".join(match_in_sql(f"c{place}", f"w{place}", str(of)) for place, of in zip(places, types))
        found = self.connection.execute(f"SELECT number, count(*) FROM ({unlimited}) AS full_result({names}) JOIN wanted ON {matches} GROUP BY number").fetchall()
        found = dict(found)
        return all(found.get(number, 0) >= count for number, count in enumerate(counted.values()))


def match_in_sql(column, text, of):
    """`cells_match` in DuckDB's SQL, of a column of type `of` and a cell as text."""
    if of in ("DOUBLE", "FLOAT") or of.startswith("DECIMAL"):
        same_value = f"abs({column}::DOUBLE - try_cast({text} AS DOUBLE)) <= greatest(1e-4, 1e-6 * abs({column}::DOUBLE))"
    elif of == "VARCHAR":
        same_value = f"rtrim({column}) = rtrim({text})"
    else:
        same_value = f"{column} = try_cast({text} AS {of})"
    return f"({same_value} OR ({column} IS NULL AND {text} IS NULL))"
