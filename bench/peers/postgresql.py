"""PostgreSQL as the system has it, on a cluster of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from peers.tidepool import free_port

CLK_TCK = os.sysconf("SC_CLK_TCK")
# What a machine of a few cores and 8 GB or more is well served by. Commits wait until the disk has them, as they do by default.
SETTINGS = {
    "shared_buffers": "2GB",
    "max_connections": "1100",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    "wal_buffers": "16MB",
    "wal_compression": "off",
    "random_page_cost": "1.1",
    "effective_io_concurrency": "100",
    "jit": "off",
    "autovacuum": "on",
    "logging_collector": "off",
}


def folder_of_programs():
    """Debian keeps them out of the way of several releases side by side."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return Path(shutil.which("postgres") or (binaries[-1] / "postgres" if binaries else sys.exit("postgres is not installed"))).resolve().parent


def cpu_seconds(pid, with_ended_children=False):
    """User and system time of a process, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15] if with_ended_children else fields[11:13])) / CLK_TCK


class Server:
    user, database, title = "postgres", "postgres", "PostgreSQL"

    def __init__(self, folder=None):
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-", dir=folder))
        self.folder.chmod(0o755)
        self.sockets = self.folder
        self.bin = folder_of_programs()
        self.prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self.prefix:
            shutil.chown(self.folder, "postgres")
        self.port = free_port()
        data = str(self.folder / "data")
        subprocess.run([*self.prefix, str(self.bin / "initdb"), "-D", data, "-A", "trust", "--locale", "C", "-E", "UTF8"], check=True, stdout=subprocess.DEVNULL)
        settings = [argument for name, value in SETTINGS.items() for argument in ("-c", f"{name}={value}")]
        command = [*self.prefix, str(self.bin / "postgres"), "-D", data, "-p", str(self.port), "-k", str(self.folder), *settings]
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.wait()
        self.pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        self.version = subprocess.run([str(self.bin / "postgres"), "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[2]

    def wait(self):
        ready = [str(self.bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready).returncode:
            if self.process.poll() is not None:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.05)

    def cpu_seconds(self):
        """Of all its processes, those that have ended included."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        total = cpu_seconds(self.pid, with_ended_children=True)
        for child in children:
            try:
                total += cpu_seconds(child)
            except (FileNotFoundError, ProcessLookupError):
                pass
        return total

    def stop(self):
        os.kill(self.pid, 2)
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder)
