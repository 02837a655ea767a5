#!/usr/bin/env python3
"""Failover of Tidepool over a pool beside PostgreSQL under Patroni, in one run on one machine: docs/results/failover.md.

`tidepool bench failover` does the killing and the measuring in all of them: clients with a list of hosts insert rows; again and again the host that
takes writes is killed; the time runs until a client's first acknowledgement of a statement that it began afterwards.

Needs a built Tidepool (`cargo build --release`), PostgreSQL, etcd, PyYAML, and Patroni on the PATH (`pip install 'patroni[etcd3]' psycopg2-binary`),
where PostgreSQL's user can run it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers import ROOT, TIDEPOOL, machine, patroni

# Title, what Patroni keeps of timing, whether the whole node is killed, and what it says of acknowledged commits.
TUNED = {"ttl": 20, "loop_wait": 1, "retry_timeout": 3, "primary_start_timeout": 0, "maximum_lag_on_failover": 1048576}
PATRONI = [
    ("defaults, a node is killed", {}, True),
    ("tuned, a node is killed", TUNED, True),
    ("tuned, PostgreSQL alone is killed", TUNED, False),
    ("tuned and synchronous, PostgreSQL alone is killed", dict(TUNED, synchronous_mode=True), False),
]
TIDEPOOL_RUNS = [
    ("killed", []),
    ("stopped", ["--signal", "stop"]),
    ("stopped, hosts share memory alone, `host_timeout` 200 ms, clients wait 100 ms for an answer", ["--apart"]),
]


def failover(args, arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [str(args.tidepool), "bench", "failover", "--connections", str(args.clients), "--json", str(path), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if not path.exists():
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return json.loads(path.read_text())


def beside(args):
    """Title, result and settings of each run."""
    for title, arguments in TIDEPOOL_RUNS:
        yield f"Tidepool, {title}", failover(args, ["--kills", str(args.kills), *arguments]), None
    if args.resident:
        for more, title in [([], ""), (["--index"], ", an index of which is being filled")]:
            arguments = ["--kills", str(args.resident_kills), "--resident", args.resident, *more]
            yield f"Tidepool, killed, with {args.resident} of rows{title}", failover(args, arguments), None
    for title, dcs, whole_node in PATRONI:
        cluster = patroni.Cluster(dcs)
        try:
            end = cluster.end_command() if whole_node else cluster.end_postgresql_command()
            hosts = [argument for node in cluster.nodes for argument in ("--host", node.address)]
            result = failover(args, ["--kills", str(args.peer_kills), *hosts, "--end-with", end, "--restore-with", cluster.restore_command(),
                                     "--user", cluster.user, "--database", cluster.database])
            yield f"PostgreSQL, Patroni: {title}", result, cluster.settings()
        finally:
            cluster.stop()


def written(args, runs):
    version = runs[0][1]["hosts"]
    peer = next(result["hosts"] for title, result, _ in runs if title.startswith("PostgreSQL"))
    lines = [
        "# Failover, beside Patroni",
        "",
        f"Written by `bench/failover.py` on {time.strftime('%Y-%m-%d', time.gmtime())}. {machine.describe()}. {version}; {peer.split(' on ')[0]} with Patroni "
        f"{patroni_version()} and one etcd. All hosts, clients and etcd share the machine. {args.clients} clients insert rows one after the other, each row a "
        "commit, and go over a list of hosts when theirs is gone, with a millisecond's pause after each round. The host that takes writes is killed "
        "while they do; the next kill comes when another host follows.",
        "",
        "Milliseconds from the kill to a client's first acknowledgement of a statement that it began afterwards. *Lost*: rows that were acknowledged "
        "and are not there.",
        "",
        "|  | kills | p50 | p99 | longest | acknowledged | lost |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for title, result, _ in runs:
        figures = " | ".join(f"{result[name]:,.1f}" for name in ("p50_ms", "p99_ms", "max_ms"))
        lines.append(f"| {title} | {len(result['kills'])} | {figures} | {result['acknowledged']:,} | {result['lost']:,} |")
    lines += ["", "Two hosts of one pool share its memory: that is no copy of the data, where PostgreSQL's standby has one. Patroni's settings, as it keeps them:", ""]
    lines += [f"* {title}: `{json.dumps(settings)}`" for title, _, settings in runs if settings is not None]
    return "\n".join([*lines, ""])


def patroni_version():
    said = subprocess.run([str(patroni.program()), "--version"], stdout=subprocess.PIPE, text=True)
    return said.stdout.split()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidepool", type=Path, default=TIDEPOOL)
    parser.add_argument("--kills", type=int, default=50, help="of Tidepool's hosts in each run")
    parser.add_argument("--peer-kills", type=int, default=3, help="of Patroni's: each takes up to a minute")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--resident", help="a further run with rows of so many bytes, such as 10GB")
    parser.add_argument("--resident-kills", type=int, default=5, help="in these runs: an index of many rows takes its time")
    parser.add_argument("--only", choices=["tidepool", "patroni"])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/failover.md")
    args = parser.parse_args()
    if args.only == "tidepool":
        PATRONI.clear()
    elif args.only == "patroni":
        TIDEPOOL_RUNS.clear()
    runs = []
    for title, result, settings in beside(args):
        print(f"{title}: p50 {result['p50_ms']:.1f} ms, p99 {result['p99_ms']:.1f} ms, lost {result['lost']}", flush=True)
        runs.append((title, result, settings))
    if args.only is None:
        args.out.write_text(written(args, runs))
    if any(result["lost"] or result["invented"] for title, result, _ in runs if title.startswith("Tidepool")):
        sys.exit(1)


if __name__ == "__main__":
    main()
