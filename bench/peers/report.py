"""Tables of a report, as lines of Markdown."""

import math

from peers.measure import TITLES


def table(header, rows):
    """The first column is left, the others are right."""
    return ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1), *("| " + " | ".join(row) + " |" for row in rows), ""]


def megabytes(size):
    return "–" if math.isnan(size) else f"{size / 2**20:,.0f} MB"


def times(value):
    return "–" if value is None or math.isnan(value) else f"{value:.2f}"


def milliseconds(value):
    return "failed" if value is None else "–" if math.isnan(value) else f"{value:.1f}"


def cell(text):
    return " ".join(text.split()).replace("|", "\\|")


def ratio(ours, theirs):
    return ours / theirs if ours and theirs else None


def bold(text):
    return f"**{text}**"


def comparison_table(comparison):
    """Every query's medians and ratios, the fastest in bold; then means, sums, memory."""
    engines, peers = list(comparison.measured), comparison.peers()
    header = ["", "rows", *(f"{TITLES[engine]}, ms" for engine in engines), *(f"÷ {TITLES[peer]}" for peer in peers), *(["÷ best"] if len(peers) > 1 else [])]
    rows = [query_row(comparison, query, len(header)) for query in comparison.workload.queries]
    common = comparison.common(*engines)
    means = {engine: comparison.geometric_mean(engine, common) if common else math.nan for engine in engines}
    sums = {engine: sum(comparison.median_ms(engine, query) for query in common) for engine in engines}
    best = [comparison.best_peer_ms(query) for query in common] if peers else []

    def last(title, values, text, of_best):
        ratios = [ratio(values["tidepool"], values[peer]) for peer in peers] + ([ratio(values["tidepool"], of_best)] if len(peers) > 1 else [])
        return [title, "", *(text(values[engine]) for engine in engines), *map(times, ratios)]

    note = "" if len(common) == len(comparison.workload.queries) else f" of the {len(common)} that all ran"
    rows.append([bold(text) if text else "" for text in last(f"geometric mean{note}", means, milliseconds, geometric_mean_or_none(best))])
    rows.append(last(f"sum{note}", sums, lambda value: f"{value:.0f}", sum(best)))
    for title, key, text in [("tables after load", "stored_bytes", megabytes), ("process after load", "resident_bytes", megabytes), ("load, s", "load_s", lambda value: f"{value:.1f}")]:
        rows.append([title, "", *(text(comparison.middle(engine, key)) for engine in engines), *[""] * (len(header) - 2 - len(engines))])
    return table(header, rows)


def geometric_mean_or_none(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def query_row(comparison, query, width):
    medians = {engine: comparison.median_ms(engine, query) for engine in comparison.measured}
    fastest = min((ms for ms in medians.values() if ms is not None), default=None)
    cells = [bold(milliseconds(ms)) if ms is not None and ms == fastest and len(medians) > 1 else milliseconds(ms) for ms in medians.values()]
    peers = comparison.peers()
    ratios = [ratio(medians["tidepool"], medians[peer]) for peer in peers] + ([ratio(medians["tidepool"], comparison.best_peer_ms(query))] if len(peers) > 1 else [])
    answers = [rows for engine in comparison.measured if (rows := comparison.rows(engine, query)) is not None]
    row = [query.upper(), f"{len(answers[0]):,}" if answers else "–", *cells, *map(times, ratios)]
    assert len(row) == width
    return row


def faults(comparison):
    """What failed and what differs, a line each."""
    return [*(f"* {comparison.workload.title}, {query} fails in {TITLES[engine]}: {cell(error)}" for engine, query, error in comparison.failures()),
            *(f"* {comparison.workload.title}, another answer: {cell(difference)}" for difference in comparison.named_differences())]
