"""DuckDB, embedded. Results are fetched as Arrow tables."""

import os

import duckdb

from peers import machine


class Connection:
    def __init__(self, cursor):
        self.cursor = cursor

    def run(self, sql):
        return self.cursor.sql(sql).to_arrow_table().num_rows

    def rows(self, sql):
        return self.cursor.execute(sql).fetchall()


class Engine:
    version = duckdb.__version__

    def __init__(self, threads, _tidepool=None):
        self.database = duckdb.connect(":memory:")
        # PostgreSQL's rules, which Tidepool follows: integers divide to integers, NULLs sort as if larger than any value.
        self.database.execute(f"SET GLOBAL threads = {threads}; SET GLOBAL integer_division = true; SET GLOBAL default_null_order = 'nulls_last_on_asc_first_on_desc'")

    def load(self, table, parquet):
        self.database.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet('{parquet}')")

    def connect(self):
        return Connection(self.database.cursor())

    def stored_bytes(self):
        return self.database.execute("SELECT sum(memory_usage_bytes)::bigint FROM duckdb_memory()").fetchone()[0]

    def resident_bytes(self):
        return machine.resident_bytes(os.getpid())

    def close(self):
        self.database.close()
