"""Measuring databases by turns, each in processes of its own, and what came of it."""

import dataclasses
import json
import math
import os
import signal
import statistics
import subprocess
import sys

from peers import MEASUREMENT_LIMIT_S, ROOT, results
from peers.workloads import Workload

TITLES = {"tidepool": "Tidepool", "hyper": "Hyper", "duckdb": "DuckDB", "plain-datafusion": "DataFusion"}


def say(text):
    print(text, file=sys.stderr, flush=True)


def worker(engine, threads, binary, workload, **what):
    """One measurement by `peers.worker`; `what` is `repeat` or `streams`. Its end, whatever the reason, ends all that it started."""
    request = {"engine": engine, "threads": threads, "tidepool": str(binary.resolve()), "tables": {table: str(path) for table, path in workload.tables.items()},
               "queries": workload.queries, **what}
    process = subprocess.Popen([sys.executable, "-m", "peers.worker"], cwd=ROOT / "bench", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, start_new_session=True)
    try:
        output, errors = process.communicate(json.dumps(request), timeout=MEASUREMENT_LIMIT_S)
    except BaseException:
        end(process)
        raise
    if process.returncode:
        raise RuntimeError(f"it ended with {process.returncode}: {' '.join(errors.split())[-300:]}")
    return json.loads(output)


def end(process):
    """Ends a worker and its database, with some time to take away their files."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def in_turns(title, rounds, measures):
    """What each of `measures`, functions by what they measure, gives in each round. One that fails gives its error."""
    measured = {name: [] for name in measures}
    for number in range(rounds):
        for name, measure in measures.items():
            say(f"{title}: round {number + 1} of {rounds}: {name}")
            try:
                measured[name].append(measure())
            except (RuntimeError, ValueError, OSError, subprocess.SubprocessError) as error:
                say(f"  failed: {error}")
                measured[name].append({"error": str(error)})
    return measured


def geometric_mean(values):
    values = list(values)
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


@dataclasses.dataclass
class Comparison:
    """A workload's measurements: of each engine, one a round. `differences` are of an engine's answer to a query."""
    workload: Workload
    measured: dict[str, list[dict]]
    differences: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    def error(self, engine, query):
        """Why a query has no time: the first error in any round."""
        for one in self.measured[engine]:
            error = one.get("error") or one["queries"][query]["error"]
            if error:
                return error
        return None

    def median_ms(self, engine, query):
        """Over the runs of all rounds; None if it failed in one."""
        if self.error(engine, query):
            return None
        return statistics.median(ms for one in self.measured[engine] for ms in one["queries"][query]["runs_ms"])

    def rows(self, engine, query):
        return None if self.error(engine, query) else self.measured[engine][0]["queries"][query]["rows"]

    def middle(self, engine, key):
        """The median over the rounds of what is measured once a round."""
        values = [one[key] for one in self.measured[engine] if key in one]
        return statistics.median(values) if values else math.nan

    def common(self, *engines):
        """Queries that all of these engines ran."""
        return [query for query in self.workload.queries if all(self.median_ms(engine, query) is not None for engine in engines)]

    def peers(self):
        return [engine for engine in self.measured if engine != "tidepool"]

    def best_peer_ms(self, query):
        times = [ms for peer in self.peers() if (ms := self.median_ms(peer, query)) is not None]
        return min(times) if times else None

    def geometric_mean(self, engine, queries=None):
        return geometric_mean(self.median_ms(engine, query) for query in (queries or self.common(engine)))

    def ratio(self, peer):
        """Tidepool's geometric mean by the peer's, over what both ran."""
        queries = self.common("tidepool", peer)
        return self.geometric_mean("tidepool", queries) / self.geometric_mean(peer, queries) if queries else math.nan

    def slower(self):
        """Queries that the best peer runs faster than Tidepool, and by how much."""
        ratios = {query: self.median_ms("tidepool", query) / best for query in self.common("tidepool") if (best := self.best_peer_ms(query))}
        return dict(sorted(((query, ratio) for query, ratio in ratios.items() if ratio > 1), key=lambda item: -item[1]))

    def failures(self):
        """(engine, query or "everything", error) for each query of an engine that failed."""
        whole = [(engine, "everything", one["error"]) for engine, rounds in self.measured.items() for one in rounds if "error" in one]
        broken = {engine for engine, _, _ in whole}
        return whole + [(engine, query.upper(), error) for engine in self.measured if engine not in broken
                        for query in self.workload.queries if (error := self.error(engine, query))]

    def named_differences(self):
        return [f"{query.upper()}, {TITLES[engine]}: {difference}" for (engine, query), difference in self.differences.items()]

    def summary(self):
        """What is measured, without the rows."""
        def bare(one):
            return one | {"queries": {name: query | {"rows": len(query["rows"])} for name, query in one["queries"].items()}} if "queries" in one else one

        return {"title": self.workload.title, "differences": self.named_differences(), "measured": {engine: list(map(bare, rounds)) for engine, rounds in self.measured.items()}}


def check_answers(comparison):
    """Notes where an engine's rows differ from DuckDB's, or, where DuckDB has none, from those of the first engine that has."""
    engines = sorted(comparison.measured, key=lambda engine: engine != "duckdb")
    full = results.FullResults(comparison.workload.tables)
    for query, sql in comparison.workload.queries.items():
        answers = {engine: rows for engine in engines if (rows := comparison.rows(engine, query)) is not None}
        for engine in list(answers)[1:]:
            other = next(iter(answers))
            ours, theirs = answers[engine], answers[other]
            if not results.same(ours, theirs) and not full.explain(sql, ours, theirs):
                comparison.differences[engine, query] = results.first_difference(ours, theirs, TITLES[other])


def compare(workload, rounds, measures):
    comparison = Comparison(workload, in_turns(workload.title, rounds, measures))
    check_answers(comparison)
    for difference in comparison.named_differences():
        say(f"  differs: {difference}")
    return comparison
