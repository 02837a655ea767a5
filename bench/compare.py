#!/usr/bin/env python3
"""Every analytics figure of Tidepool beside DuckDB and Hyper, in one report: docs/results/comparison.md.

TPC-H at several scale factors, Clickbench's queries and the star-schema benchmark over generated rows, TPC-DS, how TPC-H scales with threads, and
its throughput by the number of connections, what far memory costs it (`far`), queries that outgrow near memory (`burst.py`), and how soon queries end that are
cancelled or out of memory (`limits.py`). Each round starts every engine in a process of its own, one after the other, loads, runs each query once
to warm up and then times it; the next round does so again, so that a slow moment of the machine does not fall on one engine alone. Medians are over
all rounds. Answers are compared row by row. A query that fails, or that differs, is named in the report and does not end the run; the exit status is
1 then. The report begins with what falls short of the targets.

Needs a built Tidepool (`cargo build --release`) and bench/requirements.txt.
"""

import argparse
import dataclasses
import functools
import json
import math
import platform
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import burst
import limits
from peers import ROOT, TIDEPOOL, machine, measure, report, tidepool, workloads
from peers.measure import TITLES

PEERS = ["hyper", "duckdb"]
STREAMS = [1, 2, 4, 8]
# DuckDB's tables, the largest, take 1.3 GB a unit of TPC-H's scale factor, and queries as much again.
PEER_BYTES_PER_SF = 3 * 2**30


@dataclasses.dataclass(frozen=True)
class Target:
    """`bound` is the most that `figure` of a part may be, or the least."""
    part: str
    figure: str
    bound: float
    at_least: bool = False

    def met(self, value):
        return value >= self.bound if self.at_least else value <= self.bound


BESIDE_HYPER = "geometric mean ÷ Hyper's"
BESIDE_DUCKDB = "geometric mean ÷ DuckDB's"
SLOWER = "queries slower than the best peer"
SCALING = "geometric mean of one thread ÷ that of all"
STREAMING = "queries a second of all streams ÷ one's"
STEP = "longest step from one part of the need to the next smaller"
CANCEL = "longest time from a cancel to the end, s"
OVERDRAFT = "most that a statement took beyond its budget, as a share of it"
FPGA, ASIC = "fpga-prototype", "cxl-asic"
FAR_STREAMS = 8
# What is looked for is a few hundredths, which is what single runs differ by.
FAR_REPEAT_MIN = 9


def slowdown(profile, placement):
    return f"{profile}, {placement}: geometric mean of far ÷ near"


def loss(profile, placement):
    return f"{profile}, {placement}: part of the queries a second of {FAR_STREAMS} streams that is lost"


TARGETS = [
    Target("tpch", BESIDE_HYPER, 0.5),
    Target("tpch", SLOWER, 0),
    Target("clickbench", BESIDE_HYPER, 1),
    Target("clickbench", BESIDE_DUCKDB, 1),
    Target("ssb", BESIDE_HYPER, 1),
    Target("ssb", BESIDE_DUCKDB, 1),
    Target("tpcds", BESIDE_DUCKDB, 1),
    Target("tpcds", SLOWER, 5),
    Target("scaling", SCALING, 1.85, at_least=True),
    Target("streams", STREAMING, 1, at_least=True),
    *(Target("far", slowdown(FPGA, placement), bound) for placement, bound in [("Main FAR", 1.03), ("Heap FAR", 1.05), ("Both FAR", 1.08)]),
    *(Target("far", loss(FPGA, placement), bound) for placement, bound in [("Main FAR", 0.08), ("Heap FAR", 0.1), ("Both FAR", 0.15)]),
    *(Target("far", slowdown(ASIC, placement), 1.02) for placement in ["Main FAR", "Heap FAR", "Both FAR"]),
    Target("burst", STEP, 1.5),
    Target("cancel", CANCEL, limits.LIMIT_S),
    Target("budget", OVERDRAFT, limits.OVERDRAFT_LIMIT),
]


@dataclasses.dataclass
class Part:
    """`name` is that of `--only` and TARGETS, `figures` are values with details, `faults` lines for the report, `raw` goes into the JSON."""
    name: str
    title: str
    text: list[str]
    figures: dict[str, tuple[float, str]]
    faults: list[str]
    raw: dict


def compared_part(name, comparison):
    """A part that is a comparison of queries."""
    figures = {}
    for peer, figure in [("hyper", BESIDE_HYPER), ("duckdb", BESIDE_DUCKDB)]:
        if peer in comparison.measured:
            figures[figure] = (comparison.ratio(peer), "")
    if comparison.peers():
        slower = comparison.slower()
        figures[SLOWER] = (len(slower), ", ".join(f"{query.upper()} {times:.2f}" for query, times in slower.items()))
    return Part(name, comparison.workload.title, report.comparison_table(comparison), figures, report.faults(comparison), comparison.summary())


def workers(options, workload, engines, **what):
    return {engine: functools.partial(measure.worker, engine, options.threads, options.tidepool, workload, **what) for engine in engines}


def tpch(options):
    for sf in options.sf:
        bench = functools.partial(tidepool.bench, options.tidepool, "tpch", sf, options.threads, options.repeat)
        if sf * PEER_BYTES_PER_SF <= machine.memory_bytes():
            workload = workloads.tpch(options.data, sf, options.tidepool)
            measures = {"tidepool": bench} | workers(options, workload, PEERS, repeat=options.repeat)
        else:
            workload = workloads.tpch_alone(sf)
            measures = {"tidepool": bench}
        part = compared_part("tpch", measure.compare(workload, options.rounds, measures))
        if len(measures) == 1:
            part.text.insert(0, "The machine's memory is too small for the others' tables and queries at this scale factor.\n")
        yield part


def over_the_wire(options, name, workload):
    measures = workers(options, workload, ["tidepool", *PEERS], repeat=options.repeat)
    return compared_part(name, measure.compare(workload, options.rounds, measures))


def ssb(options):
    yield over_the_wire(options, "ssb", workloads.ssb(options.data, options.ssb_sf))


def clickbench(options):
    yield over_the_wire(options, "clickbench", workloads.clickbench(options.data, options.rows))


def tpcds(options):
    workload = workloads.tpcds(options.data, options.tpcds_sf, options.tidepool)
    bench = functools.partial(tidepool.bench, options.tidepool, "tpcds", options.tpcds_sf, options.threads, options.repeat)
    measures = {"tidepool": bench} | workers(options, workload, ["duckdb"], repeat=options.repeat)
    yield compared_part("tpcds", measure.compare(workload, options.rounds, measures))


def one_scale_factor(options):
    """1, or the only one asked for."""
    return 1.0 if 1.0 in options.sf else options.sf[0]


def scaling(options):
    """TPC-H at scale factor 1, or the only one asked for, on one thread and on all."""
    sf = one_scale_factor(options)
    workload = workloads.tpch(options.data, sf, options.tidepool)
    counts = [1, options.threads]
    measures = {}
    for count in counts:
        measures[f"tidepool {count}"] = functools.partial(tidepool.bench, options.tidepool, "tpch", sf, count, options.repeat)
        for peer in PEERS:
            measures[f"{peer} {count}"] = functools.partial(measure.worker, peer, count, options.tidepool, workload, repeat=options.repeat)
    measured = measure.in_turns(f"Threads, {workload.title}", options.rounds, measures)
    by_count = {count: measure.Comparison(workload, {engine: measured[f"{engine} {count}"] for engine in ["tidepool", *PEERS]}) for count in counts}
    yield scaling_part(options, workload, by_count)


def scaling_part(options, workload, by_count):
    one, all_threads = by_count.values()

    def ratio(engine, queries):
        return one.geometric_mean(engine, queries) / all_threads.geometric_mean(engine, queries) if queries else math.nan

    engines = list(one.measured)
    ran = {engine: [query for query in one.common(engine) if query in all_threads.common(engine)] for engine in engines}
    rows = [[query.upper(), *(report.times(ratio(engine, [query] if query in ran[engine] else [])) for engine in engines)] for query in workload.queries]
    for count, comparison in by_count.items():
        rows.append([f"geometric mean, {count} thread{'s' * (count > 1)}, ms", *(report.milliseconds(comparison.geometric_mean(engine, ran[engine])) for engine in engines)])
    ratios = {engine: ratio(engine, ran[engine]) for engine in engines}
    rows.append([report.bold("ratio"), *(report.bold(report.times(ratios[engine])) for engine in engines)])
    text = [f"How many times as fast each query is on {options.threads} threads as on one.", "", *report.table(["", *(TITLES[engine] for engine in engines)], rows)]
    own = machine.scaling(options.threads)
    text += [f"Processes that do nothing but count get {report.times(own)} times as far on {options.threads} of this machine's processors as on one.", ""]
    beside = ", ".join([*(f"{TITLES[peer]} {report.times(ratios[peer])}" for peer in PEERS), f"counting {report.times(own)}"])
    return Part("scaling", f"Scaling from 1 to {options.threads} threads, {workload.title}", text, {SCALING: (ratios["tidepool"], beside)},
                report.faults(one) + report.faults(all_threads), {str(count): comparison.summary() for count, comparison in by_count.items()})


def streams(options):
    """TPC-H at scale factor 1, or the only one asked for, by several connections at once."""
    workload = workloads.tpch(options.data, one_scale_factor(options), options.tidepool)
    measured = measure.in_turns(f"Streams, {workload.title}", options.rounds, workers(options, workload, ["tidepool", *PEERS], streams=STREAMS))
    yield streams_part(workload, measured)


def streams_part(workload, measured):
    rates = {engine: {count: median_rate(rounds, count) for count in STREAMS} for engine, rounds in measured.items()}
    ratios = {engine: rates[engine][STREAMS[-1]] / rates[engine][1] for engine in measured}
    rows = [[str(count), *(f"{rates[engine][count]:.1f}" for engine in measured)] for count in STREAMS]
    rows.append([report.bold(f"{STREAMS[-1]} ÷ 1"), *(report.bold(report.times(ratios[engine])) for engine in measured)])
    text = ["Queries a second by the number of connections, each of which runs the 22 queries in orders of its own. All numbers of connections run as many queries.", "",
            *report.table(["connections", *(TITLES[engine] for engine in measured)], rows)]
    errors = {f"* {workload.title}, streams, {TITLES[engine]}: {report.cell(error)}" for engine, rounds in measured.items() for one in rounds
              for error in one.get("errors", []) + ([one["error"]] if "error" in one else [])}
    beside = ", ".join(f"{TITLES[peer]} {report.times(ratios[peer])}" for peer in PEERS)
    return Part("streams", f"Concurrent streams, {workload.title}", text, {STREAMING: (ratios["tidepool"], beside)}, sorted(errors), measured)


def median_rate(rounds, count):
    rates = [one["queries_per_s"][str(count)] for one in rounds if "queries_per_s" in one]
    return statistics.median(rates) if rates else math.nan


def far(options):
    """TPC-H with tables, query heap or both in far memory that is paced."""
    sf = one_scale_factor(options)
    measure.say(f"Far memory, TPC-H at scale factor {sf:g}")
    placements = tidepool.placements(options.tidepool, sf, options.threads, max(options.repeat * options.rounds, FAR_REPEAT_MIN), [FPGA, ASIC], FAR_STREAMS)
    near = next(one for one in placements if one["name"] == "both-near")
    yield far_part(sf, options.threads, near, [one for one in placements if one is not near])


def far_part(sf, threads, near, placements):
    names = [query["name"] for query in near["queries"]]
    titles = [f"{one['title']}, {one['profile']}" for one in placements]

    def median(one, index):
        return one["queries"][index]["median_ms"] or math.nan

    def stall(query):
        return query["heap_stall_ms"] + sum(scan["stall_ms"] for scan in query["scans"])

    # What the account took is taken off the heap's stalls, as far as there are any.
    def beyond(query):
        return max(0, query["heap_account_ms"] - query["heap_stall_ms"])

    def mean(ratio):
        return [report.geometric_mean_or_none([ratio(one, index) for index in range(len(names))]) for one in placements]

    rows, figures = [], {}
    for index, name in enumerate(names):
        cells = [(median(one, index) / median(near, index), one["queries"][index]) for one in placements]
        rows.append([name.upper(), f"{median(near, index):.1f}", *(f"{ratio:.2f} ({stall(query):.1f}; {query['heap_account_ms']:.1f})" for ratio, query in cells)])
    ratios = mean(lambda one, index: median(one, index) / median(near, index))
    unaccounted = mean(lambda one, index: (median(one, index) - beyond(one["queries"][index]) / threads) / median(near, index))
    stalled = mean(lambda one, index: 1 + stall(one["queries"][index]) / threads / median(near, index))
    rows.append([report.bold("geometric mean"), "", *(report.bold(f"{ratio:.3f}") for ratio in ratios)])
    rows.append(["the same without what the account took beyond stalls", "", *(f"{ratio:.3f}" for ratio in unaccounted)])
    rows.append(["the same of near and stalls alone", "", *(f"{ratio:.3f}" for ratio in stalled)])
    rates = [one["throughput"]["queries_per_hour"] / 3600 for one in [near, *placements]]
    rows.append([f"queries a second, {FAR_STREAMS} streams", *(f"{rate:.1f}" for rate in rates)])
    for one, ratio, less, stalls, rate in zip(placements, ratios, unaccounted, stalled, rates[1:]):
        figures[slowdown(one["profile"], one["title"])] = (ratio, f"without the account {less:.3f}, near and stalls alone {stalls:.3f}")
        figures[loss(one["profile"], one["title"])] = (1 - rate / rates[0], "")
    faults = sorted({f"* TPC-H, {one['title']}: {query['name'].upper()}: {report.cell(str(query['answer']))}" for one in [near, *placements] for query in one["queries"]
                     if query["answer"]["answer"] in ("error", "wrong")})
    text = ["Milliseconds with tables and query heap near, then time by placement divided by it, and in brackets, of one run and over all threads, ms: the stalls that pacing "
            f"accounted, and what it took to keep the heap's account, which a device would not have (docs/explanation/far-memory-and-pacing.md). Medians of {len(near['queries'][0]['runs_ms'])} runs; placements "
            "of the heap take turns query by query, those of tables after every third run, with one run in between that is not timed.", "",
            *report.table(["", "Both DRAM, ms", *titles], rows)]
    return Part("far", f"Far memory, TPC-H at scale factor {sf:g}", text, figures, faults, {one["title"] + " " + str(one["profile"]): one for one in [near, *placements]})


def limited(options, name, part, title, figure, text):
    choice = argparse.Namespace(**vars(options) | {"sf": one_scale_factor(options), "queries": None, "moments": 8, "limit": 3.0})
    (rows,) = limits.measured(choice, [part])
    return Part(name, f"{title}, TPC-H's rows at scale factor {choice.sf:g}", text(rows), {figure: (rows[0][0], rows[0][1]) if rows else (math.nan, "")}, [], rows)


def cancel(options):
    """How long queries go on after they were cancelled."""
    yield limited(options, "cancel", limits.cancels, "Cancellation", CANCEL, limits.cancels_text)


def budget(options):
    """How far queries go beyond their memory budgets."""
    yield limited(options, "budget", limits.overdrafts, "Memory budgets", OVERDRAFT, limits.overdrafts_text)


def bursts(options):
    """Queries at scale factor 1, or the only one asked for, with less and less near memory."""
    choice = argparse.Namespace(**vars(options) | {"sf": one_scale_factor(options), "queries": None, "profile": FPGA, "room": "4GB"})
    with tempfile.TemporaryDirectory(prefix="tidepool-burst-") as folder:
        found = burst.run(choice, folder)
    longest = {name: max(max(burst.steps(one["curves"]["tidepool", overflow])) for overflow in ("far", "disk")) for name, one in found.items()}
    detail = ", ".join(f"{name} {report.times(step)}" for name, step in longest.items())
    raw = {name: {f"{engine} {overflow}": [(point["budget"], point["s"], point["error"]) for point in curve] for (engine, overflow), curve in one["curves"].items()}
           for name, one in found.items()}
    yield Part("burst", f"Query burst, TPC-H's rows at scale factor {choice.sf:g}", burst.text(choice, found), {STEP: (max(longest.values()), detail)}, burst.faults(found), raw)


PARTS = {"tpch": tpch, "clickbench": clickbench, "ssb": ssb, "tpcds": tpcds, "scaling": scaling, "streams": streams, "far": far, "burst": bursts, "cancel": cancel,
         "budget": budget}


def verdicts(parts):
    """(target, part, value, detail) for each target of a part that was measured."""
    return [(target, part, *part.figures[target.figure]) for part in parts for target in TARGETS if target.part == part.name and target.figure in part.figures]


def verdict_table(found):
    rows = []
    for target, part, value, detail in found:
        bound = f"{'at least' if target.at_least else 'at most'} {target.bound:g}"
        rows.append([part.title, target.figure, bound, f"{value:d}" if isinstance(value, int) else f"{value:.3f}", detail])
    return report.table(["part", "figure", "target", "measured", ""], rows)


def written(options, parts):
    found = verdicts(parts)
    short = [one for one in found if not one[0].met(one[2])]
    met = [one for one in found if one[0].met(one[2])]
    faults = [fault for part in parts for fault in part.faults]
    lines = ["# Tidepool beside DuckDB and Hyper", "",
             f"Written by `bench/compare.py` on {time.strftime('%Y-%m-%d', time.gmtime())}.", "",
             "## Short of the targets", "", *(verdict_table(short) if short else ["Nothing: every target is met.", ""]),
             "## Failures and differences", "", *(faults or ["None: every engine ran every query, and all gave the same answers."]), ""]
    if met:
        lines += ["## Targets that are met", "", *verdict_table(met)]
    lines += ["## How it was measured", "", *method(options), ""]
    for part in parts:
        lines += [f"## {part.title}", "", *part.text]
    return "\n".join(lines).rstrip("\n") + "\n"


def method(options):
    return [
        f"`{command(options)}`",
        "",
        f"Machine: {machine.describe()}. Python {platform.python_version()}. {', '.join(versions(options))}.",
        "",
        f"Milliseconds, medians of {options.rounds * options.repeat} runs ({options.rounds} round{'s' * (options.rounds > 1)} in which the engines take turns, each in "
        f"processes of its own), after one run to warm up; {options.threads} threads; everything in memory, the same rows. A ratio is Tidepool's time by the other's: "
        "below 1 Tidepool is faster. A geometric mean is over the queries that all ran.",
        "",
        "DuckDB is embedded, and its results are fetched as Arrow tables. Hyper is a process of its own that its library talks to; its results are stepped through, "
        "it keeps its tables in a file, here on tmpfs, whose pages do not all count as its process's, and it may use as many CPUs as the others have threads. Tidepool "
        "runs TPC-H and TPC-DS within `tidepool bench`, embedded as well, with results as Arrow batches; and everything else (Clickbench, the star schema, streams) as a "
        "server over PostgreSQL's protocol, by psycopg2, which fetches all rows as text and parses them.",
        "",
        "Load times cannot be held against each other: `tidepool bench` generates its rows while it loads, the others, and Tidepool's server, read them from Parquet files. "
        "TPC-H's and TPC-DS's rows are the generators' own; Clickbench's and the star schema's are generated in the shape of the originals (`bench/clickbench/hits.sql`, "
        "`bench/ssb/rows.sql`). Answers are compared row by row, numbers that are not integers to 1e-4 or one in a million; where a LIMIT cuts through rows that tie, "
        "each row must be among DuckDB's without it.",
    ]


def command(options):
    """What was run, without paths: they say nothing of the figures."""
    words = ["bench/compare.py", "--only", ",".join(options.only), "--sf", ",".join(f"{sf:g}" for sf in options.sf), "--ssb-sf", f"{options.ssb_sf:g}",
             "--tpcds-sf", f"{options.tpcds_sf:g}", "--rows", str(options.rows), "--threads", str(options.threads), "--repeat", str(options.repeat),
             "--rounds", str(options.rounds)]
    return " ".join(words)


def versions(options):
    import duckdb
    import tableauhyperapi
    return [f"Tidepool {tidepool.version(options.tidepool)}", f"DuckDB {duckdb.__version__}", f"Hyper {tableauhyperapi.__version__}"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help=f"parts, separated by commas: {','.join(PARTS)}")
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--sf", type=lambda text: [float(sf) for sf in text.split(",")], default=[1.0, 5.0, 10.0], help="TPC-H's scale factors [1,5,10]")
    parser.add_argument("--ssb-sf", type=float, default=1.0)
    parser.add_argument("--tpcds-sf", type=float, default=1.0)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of Clickbench's table [1000000]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each query in a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "tidepool-compare", help="folder for generated rows")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/comparison.md")
    parser.add_argument("--json", type=Path, help="write everything measured")
    parser.add_argument("--resume", action="store_true", help="go on with the parts that --json's file lacks")
    options = parser.parse_args()
    unknown = set(options.only) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if options.resume and not options.json:
        parser.error("what is to be resumed is --json's to say")
    if "scaling" in options.only and options.threads < 2:
        parser.error("scaling needs two threads at least")
    return options


def main():
    options = arguments()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # As an interrupt: what it started is ended with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parts = resumed(options) if options.resume else []
    known = {part.name for part in parts}
    for name in options.only:
        if name in known:
            continue
        for part in PARTS[name](options):
            parts.append(part)
            # After each part, so that a run that is interrupted leaves what it has.
            save(options, parts)
    print(written(options, parts))
    sys.exit(1 if any(part.faults for part in parts) else 0)


def save(options, parts):
    options.out.write_text(written(options, parts))
    if options.json:
        summary = {"command": command(options), "machine": machine.describe(), "parts": [dataclasses.asdict(part) for part in parts]}
        options.json.write_text(json.dumps(summary, indent=1))


def resumed(options):
    """The parts that an interrupted run of the same command left."""
    if not options.json.exists():
        return []
    summary = json.loads(options.json.read_text())
    if (summary["command"], summary["machine"]) != (command(options), machine.describe()):
        sys.exit(f"{options.json} is of another command or machine")
    return [Part(**part) for part in summary["parts"]]


if __name__ == "__main__":
    main()
