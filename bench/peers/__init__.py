"""Tidepool and the databases that it is measured beside, and the workloads that they run.

One module an engine (`tidepool`, `duckdb`, `hyper`), each with a class of the same form:

    Engine(threads, tidepool)    starts it; `tidepool` is the path of Tidepool's binary
    load(table, parquet)         makes a table of a Parquet file's rows
    connect()                    a connection, with `run(sql)`, which fetches a result and returns its number of rows, and `rows(sql)`
    stored_bytes(), resident_bytes()
    close()

`worker` measures one of them in a process of its own, `measure` starts workers and says what came of them, `workloads` has queries and rows,
`results` compares answers, `report` writes tables, `machine` describes where it all ran.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TIDEPOOL = ROOT / "target" / "release" / "tidepool"
# One measurement of one engine that takes longer has failed.
MEASUREMENT_LIMIT_S = 3600
