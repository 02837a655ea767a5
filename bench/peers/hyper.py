"""Hyper, in a process that its library starts. Results are stepped through row by row, as its library hands them out."""

import os
import shutil
import tempfile
from pathlib import Path

import tableauhyperapi
from tableauhyperapi import CreateMode, HyperProcess, Telemetry

from peers import machine


class Connection:
    def __init__(self, connection):
        self.connection = connection

    def run(self, sql):
        rows = 0
        with self.connection.execute_query(sql) as result:
            while result.next_row():
                rows += 1
        return rows

    def rows(self, sql):
        return self.connection.execute_list_query(sql)


class Engine:
    version = tableauhyperapi.__version__

    def __init__(self, threads, _tidepool=None):
        # It keeps its database in a file: in memory means a file on tmpfs.
        self.folder = Path(tempfile.mkdtemp(prefix="tidepool-hyper-", dir="/dev/shm"))
        self.database = self.folder / "peer.hyper"
        # Its settings that limit threads do not keep a query to one (`hard_concurrent_query_thread_limit` = 1 leaves two at work): it gets fewer CPUs.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        # Without log_config it would write a log into the current folder.
        self.process = HyperProcess(Telemetry.DO_NOT_SEND_USAGE_DATA_TO_TABLEAU, parameters={"log_config": ""})
        self.connections = []
        self.loader = self._open(CreateMode.CREATE_AND_REPLACE)

    def _open(self, mode):
        connection = tableauhyperapi.Connection(self.process.endpoint, str(self.database), mode)
        self.connections.append(connection)
        return connection

    def load(self, table, parquet):
        self.loader.execute_command(f"CREATE TABLE {table} AS (SELECT * FROM external('{parquet}'))")

    def connect(self):
        return Connection(self._open(CreateMode.NONE))

    def stored_bytes(self):
        return self.database.stat().st_size

    def resident_bytes(self):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        return sum(machine.resident_bytes(pid) for pid in children)

    def close(self):
        try:
            for connection in self.connections:
                connection.close()
            self.process.close()
        finally:
            shutil.rmtree(self.folder)
