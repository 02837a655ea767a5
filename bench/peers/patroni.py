"""PostgreSQL in two copies under Patroni, with etcd as its store, all on this machine."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import yaml

from peers.postgresql import SETTINGS, folder_of_programs
from peers.tidepool import free_port

READY_S = 120


def program():
    """PostgreSQL's user has to reach it."""
    found = shutil.which("patroni") or Path(sys.executable).parent / "patroni"
    return Path(found) if Path(found).exists() else sys.exit("patroni is not installed")


class Node:
    def __init__(self, cluster, name):
        self.name = name
        self.port, self.rest_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        # The name of the folder says which processes are the node's: their command lines have it.
        self.folder = cluster.folder / self.address
        self.folder.mkdir()
        (self.folder / "patroni.yml").write_text(yaml.safe_dump(cluster.configuration(self)))


class Cluster:
    """`dcs` has Patroni's timing, as `bootstrap.dcs` of its configuration; what is left out is as Patroni has it."""

    user, database = "postgres", "postgres"

    def __init__(self, dcs, folder=None):
        self.dcs = dcs
        self.folder = Path(tempfile.mkdtemp(prefix="patroni-", dir=folder))
        self.folder.chmod(0o755)
        self.patroni = program()
        self.prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        self.log = open(self.folder / "log", "w")
        self.etcd_port = free_port()
        url, peers = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{free_port()}"
        etcd = ["etcd", "--data-dir", str(self.folder / "etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
                "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]
        self.etcd = subprocess.Popen(etcd, stdout=self.log, stderr=self.log)
        self.nodes = [Node(self, name) for name in ("n1", "n2")]
        if self.prefix:
            for path in [self.folder, *self.folder.glob("127*"), *self.folder.glob("127*/*")]:
                shutil.chown(path, "postgres")
        for node in self.nodes:
            self.start(node)
            self.wait(node)

    def configuration(self, node):
        return {
            "scope": "failover",
            "name": node.name,
            "restapi": {"listen": f"127.0.0.1:{node.rest_port}", "connect_address": f"127.0.0.1:{node.rest_port}"},
            "etcd3": {"hosts": f"127.0.0.1:{self.etcd_port}"},
            "bootstrap": {
                "dcs": {**self.dcs, "postgresql": {"use_pg_rewind": True, "parameters": dict(SETTINGS, shared_buffers="512MB", max_connections="100")}},
                "initdb": [{"encoding": "UTF8"}, "data-checksums"],
            },
            "postgresql": {
                "listen": node.address,
                "connect_address": node.address,
                "data_dir": str(node.folder / "data"),
                "bin_dir": str(folder_of_programs()),
                "pgpass": str(node.folder / "pgpass"),
                "parameters": {"unix_socket_directories": str(node.folder)},
                "pg_hba": ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"],
                "authentication": {"superuser": {"username": "postgres"}, "replication": {"username": "replicator"}},
            },
        }

    def start(self, node):
        command = [*self.prefix, str(self.patroni), str(node.folder / "patroni.yml")]
        subprocess.Popen(command, stdout=self.log, stderr=self.log, start_new_session=True)

    def wait(self, node):
        """Until a node runs, as Patroni says."""
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{node.rest_port}/health", timeout=2) as answer:
                    if json.load(answer)["state"] == "running":
                        return
            except OSError:
                pass
            time.sleep(0.2)
        raise RuntimeError(f"{node.name} does not run: {(self.folder / 'log').read_text()[-3000:]}")

    def settings(self):
        """What Patroni keeps, with what it has by default."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.nodes[0].rest_port}/config", timeout=5) as answer:
            return {name: value for name, value in json.load(answer).items() if name != "postgresql"}

    def end_command(self):
        """Kills a node at once: Patroni, the postmaster and its children."""
        return f"pkill -9 -f {shlex.quote(str(self.folder))}/$FAILOVER_HOST/"

    def end_postgresql_command(self):
        """Kills PostgreSQL alone, so that Patroni sees it."""
        return f"kill -9 $(head -1 {shlex.quote(str(self.folder))}/$FAILOVER_HOST/data/postmaster.pid)"

    def restore_command(self):
        """Starts a node's Patroni again, if it is gone."""
        folder = f"{shlex.quote(str(self.folder))}/$FAILOVER_HOST"
        prefix = " ".join(self.prefix)
        return (f"pgrep -f {folder}/patroni.yml >/dev/null || "
                f"setsid {prefix} {shlex.quote(str(self.patroni))} {folder}/patroni.yml >> {shlex.quote(str(self.folder / 'log'))} 2>&1 &")

    def stop(self):
        subprocess.run(["pkill", "-9", "-f", f"{self.folder}/127"])
        self.etcd.kill()
        self.etcd.wait()
        self.log.close()
        time.sleep(0.5)
        shutil.rmtree(self.folder, ignore_errors=True)
