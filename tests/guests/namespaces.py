"""Two machines that are namespaces of this one, in place of guests: what a pair does, in seconds.

Each has a start (boot_id), processes, network and temporary files of its own. The pool is a file of an overlay file system,
of which Tidepool takes nothing that the kernel says of locks for granted. One kernel carries both in truth: the end of a killed
process shows in the memory at once, so that only a machine that pauses is taken over from by its heartbeats.
"""

import os
import pty
import shutil
import signal
import subprocess
import threading
import tty
import uuid
from pathlib import Path

import pair


class TerminalPort(pair.Port):
    """A terminal, as a guest has a serial port."""

    def __init__(self, path: Path) -> None:
        # The other end stays open here: a machine that dies is no end of its ports.
        self.socket, self.other = self, pty.openpty()
        self.text, self.changed, self.has_ended = "", threading.Condition(), False
        tty.setraw(self.other[1])
        path.symlink_to(os.ttyname(self.other[1]))
        threading.Thread(target=self._read, daemon=True).start()

    def recv(self, count: int) -> bytes:
        return os.read(self.other[0], count)

    def sendall(self, data: bytes) -> None:
        os.write(self.other[0], data)


class Machine(pair.Guest):
    def _boot(self) -> "Machine":
        self.life += 1
        folder = self.pair.folder / f"{self.name}{self.life}"
        (folder / "tmp").mkdir(parents=True)
        (folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        self.commands, self.writer, self.fourth = (TerminalPort(folder / f"port{number}") for number in (1, 2, 3))
        device = self.pair.folder / "device"
        script = (
            f"mount -t proc proc /proc && mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id && ip link set lo up"
            f" && mount -t tmpfs device {device} && touch {device}/pool && mount --bind {self.pair.folder}/far/pool {device}/pool"
            f" && mount --bind {folder}/tmp /tmp && ports={folder}/port exec setsid sh {self.pair.payload}/run.sh"
        )
        command = self.pair.inside + ["unshare", "-m", "-n", "-p", "-i", "-u", "-f", "--kill-child", "sh", "-c", script]
        self.console = self.pair.log.with_name(f"{self.pair.log.stem}.{self.name}{self.life}.console")
        with self.console.open("wb") as console:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)
        return self._ready(f"file:{device}/pool")

    def _processes(self) -> list[int]:
        """All that run in it."""
        assert self.process
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        own = os.readlink(f"/proc/{children[0]}/ns/pid") if children else None
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.readlink(entry / "ns/pid") == own:
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def _signal(self, number: int) -> None:
        self.pair.tell(f"[{self.name}] gets {signal.Signals(number).name}\n")
        # Twice, as one may begin another before it is stopped.
        for _ in range(2):
            for process in self._processes():
                try:
                    os.kill(process, number)
                except ProcessLookupError:
                    pass


class Namespaces(pair.Pair):
    machine = Machine

    def boot(self) -> None:
        for name in ("far", "lower", "upper", "work", "device"):
            (self.folder / name).mkdir()
        # What both machines see of each other, and nobody else: it goes when this process ends.
        overlay = "lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work".format(self.folder)
        script = (
            f"mount -t overlay overlay -o {overlay} {self.folder}/far && truncate -s {self.mebibytes}M {self.folder}/far/pool"
            " && echo ready && exec sleep infinity"
        )
        user = [] if os.geteuid() == 0 else ["-U", "-r"]
        outer = ["unshare", *user, "-m", "sh", "-c", script]
        self.outer = subprocess.Popen(outer, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.outer.stdout
        said = self.outer.stdout.readline()
        if said != "ready\n":
            raise pair.Failed(f"there is no overlay file system in a namespace: {said}")
        keep = ["--preserve-credentials", "-U"] if user else []
        self.inside = ["nsenter", "-t", str(self.outer.pid), *keep, "-m"]
        self.a.boot()
        self.b.boot()

    def off(self) -> None:
        for machine in (self.a, self.b):
            if machine.process:
                machine.die()
        if hasattr(self, "outer"):
            self.outer.kill()
            self.outer.wait()
        shutil.rmtree(self.folder / "work", ignore_errors=True)
