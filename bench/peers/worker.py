"""Measures one database in a process of its own: a request as JSON on standard input, what was measured as JSON on standard output.

The request names `engine`, `threads`, `tidepool` (its binary), `tables`, `queries`, and either `repeat` or `streams`, numbers of connections.
"""

import importlib
import json
import random
import signal
import sys
import threading
import time

from peers import results


def timed(connection, sql, repeat):
    """A query's times after one run to warm up, whose rows are kept. Its error ends it."""
    try:
        rows = results.canonical_rows(connection.rows(sql))
        runs = []
        for _ in range(repeat):
            start = time.perf_counter()
            connection.run(sql)
            runs.append((time.perf_counter() - start) * 1e3)
    except Exception as error:  # Whatever the database raises is its answer.
        return {"runs_ms": [], "rows": [], "error": " ".join(str(error).split())[:300]}
    return {"runs_ms": runs, "rows": rows, "error": None}


def stream(connection, queries, orders, errors):
    for order in orders:
        for name in order:
            try:
                connection.run(queries[name])
            except Exception as error:
                errors.append(f"{name}: {' '.join(str(error).split())[:300]}")


def throughput(engine, queries, counts):
    """Queries a second by the number of connections that run them at the same time. All run as many queries: one connection runs for them all."""
    orders = [random.Random(number).sample(sorted(queries), len(queries)) for number in range(max(counts))]
    measured, errors = {}, []
    stream(engine.connect(), queries, orders[:1], errors)
    for count in counts:
        threads = [threading.Thread(target=stream, args=(engine.connect(), queries, orders[number::count], errors)) for number in range(count)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        measured[str(count)] = len(orders) * len(queries) / (time.perf_counter() - start)
    return {"queries_per_s": measured, "errors": errors}


def measure(request):
    engine = importlib.import_module(f"peers.{request['engine']}").Engine(request["threads"], request["tidepool"])
    try:
        start = time.perf_counter()
        for table, parquet in request["tables"].items():
            engine.load(table, parquet)
        measured = {"version": engine.version, "load_s": time.perf_counter() - start, "stored_bytes": engine.stored_bytes(), "resident_bytes": engine.resident_bytes()}
        if "streams" in request:
            return measured | throughput(engine, request["queries"], request["streams"])
        connection = engine.connect()
        return measured | {"queries": {name: timed(connection, sql, request["repeat"]) for name, sql in request["queries"].items()}}
    finally:
        engine.close()


if __name__ == "__main__":
    # So that the database is closed and its files are taken away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    json.dump(measure(json.load(sys.stdin)), sys.stdout)
