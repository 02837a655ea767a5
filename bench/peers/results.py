"""Whether two databases gave the same answer.

Answers are compared as multisets, since rows that tie in ORDER BY may come in any order; cells as text, or as numbers to 1e-4 or one in a
million (databases differ in how many digits a division keeps). Where a LIMIT cuts through rows that tie, either choice is right: then each row
of ours must be in the other's answer without the LIMIT, and columns that ORDER BY names must be the same.
"""

import collections
import datetime
import decimal
import re

CSV_NULL = "\\N"
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
    """Numbers of the columns that the query's last ORDER BY begins with, as far as it names them."""
    order = re.split(r"\border\s+by\b", LIMIT.sub("", sql), flags=re.IGNORECASE)
    lower = [name.lower() for name in names]
    places = []
    for term in order[-1].split(",") if len(order) > 1 else []:
        name = re.sub(r"\s+(asc|desc)$", "", term.strip().lower())
        if name not in lower:
            break
        places.append(lower.index(name))
    return places


def agree_up_to_ties(ours, theirs, all_theirs, ordered):
    """Whether a LIMIT that cuts through ties explains the difference. `theirs` is with the LIMIT, `all_theirs` without."""
    return len(ours) == len(theirs) and all(
        cells_match(a[place], b[place]) for a, b in zip(ours, theirs) for place in ordered) and contained(ours, all_theirs)
