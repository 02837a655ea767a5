"""Two guests over one far memory: their devices are one file of the host, as two machines share a device.

`run` boots them and tells them what to do, over a serial port of each (guest/attend.sh). A machine dies when its QEMU is
killed, and pauses when it is stopped. All is coherent, as one real machine carries both: a missing flush goes unseen.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent

# Far longer than anything takes: emulated processors share the host's with whatever else runs.
PATIENCE = 600.0
# Silent for so long, a primary is taken over from. Longer than the host delays a guest.
HOST_TIMEOUT = "10s"
# More rows than are written before their machine pauses or dies.
WRITES = 30_000
# A serial port holds back at most so many bytes of what a writer was told: a page in its kernel, and what QEMU has of it.
HELD_BACK = 4096 + 64
POOL = "dax:/dev/dax0.0"


# Whether the table has the rows from 1 on, each of them once and with its note.
WHOLE = (
    "SELECT count(*) = max(id) AND min(id) = 1 AND count(DISTINCT id) = count(*)"
    " AND count(*) FILTER (WHERE note = 'note ' || id OR note = 'of b') = count(*) FROM t"
)
# Rows and their versions are in the pool, as well as main.
CREATE = "CREATE TABLE t (id bigint PRIMARY KEY, note text) TABLESPACE far"


class Failed(Exception):
    """What was expected, and what was there."""


class Port:
    """A serial port of a guest."""

    def __init__(self, path: Path) -> None:
        end = time.monotonic() + PATIENCE
        self.socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self.socket.connect(str(path))
                break
            except OSError:
                if time.monotonic() > end:
                    raise Failed(f"QEMU does not listen at {path}") from None
                time.sleep(0.1)
        self.text = ""
        self.changed = threading.Condition()
        self.has_ended = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                data = self.socket.recv(65536)
            except OSError:
                data = b""
            with self.changed:
                self.text += data.decode(errors="replace").replace("\r", "")
                self.has_ended = not data
                self.changed.notify_all()
            if not data:
                return

    def send(self, line: str) -> None:
        self.socket.sendall(f"{line}\n".encode())

    def wait(self, pattern: str, since: int = 0, patience: float = PATIENCE) -> re.Match[str]:
        """Until something was said from there on."""
        end = time.monotonic() + patience
        with self.changed:
            while not (found := re.compile(pattern, re.M).search(self.text, since)):
                if self.has_ended or not self.changed.wait(max(0.0, end - time.monotonic())):
                    raise Failed(f"the guest did not say {pattern!r}: {self.text[since:][-2000:]!r}")
        return found


class Guest:
    """A machine. Its memory is its own but for the far memory in `backing`."""

    def __init__(self, pair: "Pair", name: str) -> None:
        self.pair, self.name = pair, name
        self.process: subprocess.Popen[bytes] | None = None
        self.life = 0

    def boot(self) -> "Guest":
        """One that hangs before its first line is booted again, once."""
        try:
            return self._boot()
        except Failed:
            if not self.process or "FAR scenario=" in self.console.read_text(errors="replace"):
                raise
            self.die()
            return self._boot()

    def _boot(self) -> "Guest":
        self.life += 1
        folder = self.pair.folder / f"{self.name}{self.life}"
        folder.mkdir()
        self.pid_file = folder / "pid"
        ports = [folder / f"port{number}" for number in (1, 2, 3)]
        command: list[str | Path] = [HERE / "boot", self.pair.kind, "-p", self.pair.payload, "-m", "1280"]
        command += ["-f", str(self.pair.mebibytes), "-b", self.pair.backing, "--", "-pidfile", self.pid_file]
        for port in ports:
            command += ["-serial", f"unix:{port},server=on,wait=off"]
        self.console = self.pair.log.with_name(f"{self.pair.log.stem}.{self.name}{self.life}.console")
        environment = self.pair.environment | {"TIMEOUT": "3600"}
        with self.console.open("wb") as console:
            self.process = subprocess.Popen(command, stdout=console, stderr=subprocess.STDOUT, env=environment)
        self.commands, self.writer, self.fourth = (Port(port) for port in ports)
        return self._ready(POOL)

    def _ready(self, pool: str) -> "Guest":
        """It takes commands, and knows the pool."""
        self.commands.wait("^<<ready>>$")
        self.ask(f"export pool={pool} TIDEPOOL_POOL_HOST_TIMEOUT={HOST_TIMEOUT} TIDEPOOL_POOL_ON_FENCED=rejoin")
        return self

    def ask(self, command: str, patience: float = PATIENCE) -> tuple[int, str]:
        """The status of a command in the guest, and what it said."""
        since = len(self.commands.text)
        self.commands.send(command)
        ended = self.commands.wait(r"^<<ended (\d+)>>$", since, patience)
        said = self.commands.text[since:ended.start()]
        self.pair.tell(f"[{self.name}] {command}\n" + "".join(f"[{self.name}] | {line}\n" for line in said.splitlines()))
        return int(ended[1]), said

    def does(self, command: str) -> str:
        status, said = self.ask(command)
        if status != 0:
            raise Failed(f"{self.name}: {command}: {said.strip()}")
        return said

    def refuses(self, text: str, command: str) -> None:
        status, said = self.ask(command)
        if status == 0 or text not in said:
            raise Failed(f"{self.name}: {command}: should have said {text!r}: {said.strip()}")

    def answers(self, statement: str, wanted: str) -> None:
        said = self.does(f'sql -c "{statement}"').strip().splitlines()
        if not said or said[-1] != wanted:
            raise Failed(f"{self.name}: {statement}: {said}, not {wanted}")

    def comes_to(self, command: str, pattern: str) -> str:
        """Until a command says that: something goes on behind it."""
        end = time.monotonic() + PATIENCE
        while True:
            said = self.ask(command)[1]
            if re.search(pattern, said, re.M):
                return said
            if time.monotonic() > end:
                raise Failed(f"{self.name}: {command}: does not come to say {pattern!r}: {said.strip()}")
            time.sleep(0.5)

    def comes_to_answer(self, statement: str, wanted: str) -> None:
        self.comes_to(f'sql -c "{statement}"', rf"^{re.escape(wanted)}\Z|^{re.escape(wanted)}$")

    def acknowledged(self, since: int = 0) -> int:
        """Insertions that were acknowledged to a writer since."""
        return len(re.findall("^INSERT 0 1$", self.writer.text[since:], re.M))

    def _signal(self, number: int) -> None:
        self.pair.tell(f"[{self.name}] gets {signal.Signals(number).name}\n")
        os.kill(int(self.pid_file.read_text()), number)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def die(self) -> None:
        """As a machine that loses its power; what it had stored is in the memory."""
        self._signal(signal.SIGKILL)
        assert self.process
        self.process.wait()
        self.process = None

    def off(self) -> None:
        if self.process is None:
            return
        try:
            self.commands.send("off")
            self.process.wait(60)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            if self.process.poll() is None:
                self.die()
            self.process = None


class Pair:
    """Two guests over one file."""

    machine = Guest

    def __init__(self, name: str, kind: str, mebibytes: int, folder: Path, payload: Path, log: Path, environment: dict[str, str]) -> None:
        self.name, self.kind, self.mebibytes, self.folder, self.log, self.environment = name, kind, mebibytes, folder, log, environment
        self.backing = folder / "far.raw"
        self.payload = folder / "payload"
        shutil.copytree(payload, self.payload, copy_function=os.link, ignore=shutil.ignore_patterns("run.sh", "device", "tablespace", "heap"))
        shutil.copy(HERE / "guest" / "attend.sh", self.payload / "run.sh")
        self.out = log.open("w")
        self.text = ""
        self.lock = threading.Lock()
        self.a, self.b = self.machine(self, "a"), self.machine(self, "b")

    def tell(self, text: str) -> None:
        with self.lock:
            self.text += text
            self.out.write(text)
            self.out.flush()

    @contextmanager
    def step(self, what: str):
        """A test. Those that follow build on it, so the first that fails ends the scenario."""
        start = time.monotonic()
        try:
            yield
        except Exception as error:
            # What has another form than was expected is a failure, too.
            self.tell(f"{error!r}\nTEST pair FAILED {time.monotonic() - start:.1f} {what}\n")
            raise Failed(what) from error
        self.tell(f"TEST pair ok {time.monotonic() - start:.1f} {what}\n")

    def boot(self) -> None:
        """Both. The first writes what says how the device is used; the second finds it."""
        if self.kind.startswith("nvdimm"):
            first = subprocess.run([HERE / "boot", self.kind, "-f", str(self.mebibytes), "-b", self.backing], env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if first.returncode != 0:
                raise Failed(f"the first boot failed: {first.stdout.decode(errors='replace')[-2000:]}")
        with ThreadPoolExecutor(2) as threads:
            for booted in [threads.submit(guest.boot) for guest in (self.a, self.b)]:
                booted.result()

    def off(self) -> None:
        self.a.off()
        self.b.off()

    def takes_over(self, dead: Guest, heir: Guest, first: int, written: int) -> int:
        """The heir is primary, and has all that was acknowledged at the other one. Returns how many rows there are."""
        heir.comes_to_answer("SELECT pg_is_in_recovery()", "f")
        if "writer ended" in dead.writer.text[written:]:
            raise Failed(f"the writer at {dead.name} came to its end before that")
        there = int(heir.does('sql -c "SELECT count(*) FROM t"').split()[-1])
        acknowledged = dead.acknowledged(written)
        self.tell(f"{acknowledged} insertions were acknowledged at {dead.name}; {heir.name} has {there} rows\n")
        # Some more may have been written whose answer never came, or is in the port. They were written in order.
        if not first + acknowledged <= there <= first + acknowledged + HELD_BACK // len("INSERT 0 1\n") + 1:
            raise Failed(f"{first} and {acknowledged} rows were acknowledged, and {there} are there")
        heir.answers(WHOLE, "t")
        return there


def failover(pair: Pair) -> None:
    """A primary on one machine and a standby on the other: written here, read there; machines that hand over, pause and die."""
    a, b = pair.a, pair.b

    def only(guest: Guest, *names: str) -> None:
        """The pool comes to have these hosts and no others."""
        end = time.monotonic() + 60
        while True:
            said = guest.does("tidepool pool list $pool")
            hosts = re.findall(r"^ *\d+ +(\S+) +(?:primary|standby|tool|reader) ", said, re.M)
            if sorted(hosts) == sorted(names):
                return
            if time.monotonic() > end:
                raise Failed(f"hosts of the pool should be {names}: {said}")
            time.sleep(0.5)

    with pair.step("a pool that one machine makes is found by the other"):
        a.does("tidepool pool create $pool")
        one, two = (re.search("identity ([0-9a-f]+)", guest.does("tidepool pool list $pool"))[1] for guest in (a, b))
        if one != two:
            raise Failed(f"identities {one} and {two}")
        b.refuses("is device 0 of a pool already", "tidepool pool create $pool")
    with pair.step("what one machine writes the other reads"):
        a.does("serve a --role primary")
        a.does(f'sql -c "{CREATE}"')
        b.does("serve b --role standby")
        a.does("""sql -c "INSERT INTO t SELECT i, 'note ' || i FROM generate_series(1, 5000) AS g(i)" """)
        b.comes_to_answer("SELECT count(*) FROM t", "5000")
        a.does("""sql -c "CALL tidepool.merge('t')" """)
        b.answers("SELECT sum(id) FROM t WHERE note LIKE 'note %'", "12502500")
        a.comes_to_answer("SELECT application_name || ' ' || state FROM pg_stat_replication", "b streaming")
    with pair.step("a second primary is refused, and a standby is read only"):
        b.refuses("is in use", "tidepool serve --pool $pool --name c --role primary --listen 127.0.0.1:5478 --near 64MB --far pool:")
        b.refuses("read-only transaction", 'sql -c "DELETE FROM t"')
        only(a, "a", "b")
    with pair.step("the primary hands over to the other machine, and gets it back"):
        for giver, taker in ((a, b), (b, a)):
            giver.comes_to_answer("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1")
            giver.does(f"tidepool switchover $url --to {taker.name}")
            taker.comes_to_answer("SELECT pg_is_in_recovery()", "f")
            giver.comes_to_answer("SELECT pg_is_in_recovery()", "t")
            giver.answers("SELECT count(*) FROM t", "5000")
            only(giver, "a", "b")
    with pair.step("a machine that pauses is taken over from by its heartbeats"):
        mark = len(a.writer.text)
        a.does(f"writer 5001 {WRITES}")
        a.writer.wait("^(INSERT 0 1\n){20}", mark)
        # It asks when the machine wakes.
        a.does('asks "SELECT 1111 + count(*) FROM t"')
        a.pause()
        rows = pair.takes_over(a, b, 5000, mark)
        b.does("""sql -c "INSERT INTO t SELECT max(id) + 1, 'of b' FROM t" """)
        rows += 1
        said = b.does("tidepool pool list $pool; tidepool pool check $pool --deep")
        if not re.search(r"^ *\d+ +a +\S+ +suspect ", said, re.M) or "in quarantine" not in said:
            raise Failed(f"the silent machine is not suspect, or nothing of it in quarantine: {said}")
    with pair.step("the zombie that wakes serves nothing, and harms nothing"):
        mark_of_b = len(b.writer.text)
        b.does(f"writer {rows + 1} 200")
        b.writer.wait("^(INSERT 0 1\n){5}", mark_of_b)
        a.fourth.send("go")
        a.wake()
        a.writer.wait(r"^writer ended with [1-9]", mark)
        # What the zombie's client heard at last is what was acknowledged before the pause.
        if a.acknowledged(mark) > rows - 1 - 5000:
            raise Failed(f"{a.acknowledged(mark)} insertions were acknowledged at the zombie, and {rows - 1 - 5000} are there")
        said = a.comes_to("cat /tmp/asked", "^ended with")
        if re.search("^[1-9]", said, re.M) or not re.search("^ended with [1-9]", said, re.M):
            raise Failed("the zombie answered")
        b.writer.wait("^writer ended with 0$", mark_of_b)
        rows += 200
        b.answers("SELECT count(*) FROM t", str(rows))
        b.answers(WHOLE, "t")
    with pair.step("the zombie begins anew as a standby"):
        a.comes_to_answer("SELECT pg_is_in_recovery()", "t")
        a.comes_to_answer("SELECT count(*) FROM t", str(rows))
        a.answers(WHOLE, "t")
        a.does("cat /tmp/serve-a")
        only(b, "a", "b")
        if "in quarantine" in (said := b.does("tidepool pool check $pool --deep; tidepool pool events $pool --limit 12")):
            raise Failed(said)
    with pair.step("a machine that dies is taken over from, and what it had is in quarantine"):
        mark = len(b.writer.text)
        b.does(f"writer {rows + 1} {WRITES}")
        b.writer.wait("^(INSERT 0 1\n){20}", mark)
        b.die()
        rows = pair.takes_over(b, a, rows, mark)
        said = a.does("tidepool pool check $pool --deep")
        if "in quarantine" not in said:
            raise Failed(f"nothing is in quarantine: {said}")
        a.does("tidepool pool list $pool; tidepool pool events $pool --limit 8")
    with pair.step("an operator says that it is dead"):
        a.does("tidepool pool forget $pool b")
        if "in quarantine" in (said := a.does("tidepool pool check $pool --deep")):
            raise Failed(said)
    with pair.step("the machine that died is started again, and follows"):
        b.boot()
        b.does("""export TIDEPOOL_POOL_FENCE_COMMAND='echo "fence $TIDEPOOL_HOST_NAME" > "$fourth"; read -r answer < "$fourth"; [ "$answer" = dead ]'""")
        b.does("serve b --role standby")
        b.comes_to_answer("SELECT count(*) FROM t", str(rows))
    with pair.step("a fence command ends a machine that pauses"):
        mark, asked = len(a.writer.text), len(b.fourth.text)
        a.does(f"writer {rows + 1} {WRITES}")
        a.writer.wait("^(INSERT 0 1\n){20}", mark)
        a.pause()
        b.fourth.wait("^fence a$", asked)
        # It serves already, while it is not known whether the other one is dead.
        rows = pair.takes_over(a, b, rows, mark)
        a.die()
        b.fourth.send("dead")
        only(b, "b")
        b.does("tidepool pool events $pool --limit 8")
        if "in quarantine" in (said := b.does("tidepool pool check $pool --deep")):
            raise Failed(said)
    with pair.step("the database is stopped, is whole, and the pool is destroyed"):
        b.does("stopped")
        b.does("serve b --role auto")
        b.answers("SELECT count(*) FROM t", str(rows))
        b.does("stopped; tidepool pool check $pool --deep && tidepool pool destroy $pool --keep-files")
        b.refuses("there is no pool in", "tidepool pool list $pool")


def dealt(pair: Pair) -> None:
    """A pool that is dealt out: a slice for each machine, which gives it up, or dies and is taken it from."""
    a, b = pair.a, pair.b
    rows = 2000
    fill = f"""sql -c "{CREATE}" -c "INSERT INTO t SELECT i, 'note ' || i FROM generate_series(1, %d) AS g(i)" """
    with pair.step("a pool is dealt out to two machines"):
        a.does("tidepool pool create $pool --coherence none --hosts 2")
        b.does("tidepool pool list $pool")
        b.refuses("is dealt out to 2 hosts", "serve b --role primary")
    with pair.step("each machine serves its slice"):
        a.does("serve a --machine 1 --role primary")
        b.does("serve b --machine 2 --role auto")
        a.does(fill % rows)
        b.does(fill % (rows + 1))
        a.answers("SELECT count(*) FROM t", f"{rows}")
        b.answers("SELECT count(*) FROM t", f"{rows + 1}")
    with pair.step("what would need each other's stores is refused"):
        other = "--listen 127.0.0.1:5478 --near 64MB --far pool: --pool $pool"
        b.refuses("is held by host 1", f"tidepool serve {other} --name c --machine 2 --slice 1 --role primary")
        b.refuses("a standby in a pool that is dealt out", f"tidepool serve {other} --name c --machine 2 --role standby")
    with pair.step("a slice that a machine gives up is served by the other"):
        b.does("""sql -c "INSERT INTO t VALUES (0, 'at the end')" """)
        b.does("stopped; tidepool pool release $pool --machine 2")
        a.does("stopped; serve a2 --machine 1 --slice 2 --role primary")
        a.answers("SELECT count(*) FROM t", f"{rows + 2}")
        a.does("""sql -c "DELETE FROM t WHERE id = 0" -c "CALL tidepool.merge('t')" """)
        a.does("stopped; tidepool pool release $pool --machine 1 --slice 2")
        b.does("serve b --machine 2 --role primary")
        b.answers("SELECT count(*) FROM t", f"{rows + 1}")
        b.answers(WHOLE, "t")
    with pair.step("a machine that dies loses nothing that it acknowledged"):
        mark = len(b.writer.text)
        b.does(f"writer {rows + 2} {WRITES}")
        b.writer.wait("^(INSERT 0 1\n){20}", mark)
        b.die()
        a.refuses("is held by host 2", "serve a2 --machine 1 --slice 2 --role primary")
        a.does("tidepool pool forget $pool --machine 1 --slice 2")
        a.does("serve a2 --machine 1 --slice 2 --role primary")
        pair.takes_over(b, a, rows + 1, mark)
        a.does("stopped; tidepool pool release $pool --machine 1 --slice 2")
    with pair.step("the machine that died is started again, with its slice"):
        b.boot()
        b.does("serve b --machine 2 --role primary")
        b.answers(WHOLE, "t")
        a.does("serve a --machine 1 --role primary")
        a.answers("SELECT count(*) FROM t", f"{rows}")
        a.answers(WHOLE, "t")
    with pair.step("the pool is whole, and is destroyed"):
        for guest, number in ((a, 1), (b, 2)):
            guest.does(f"stopped; tidepool pool release $pool --machine {number}")
        a.does("tidepool pool check $pool --deep && tidepool pool list $pool && tidepool pool destroy $pool --keep-files")
        b.refuses("there is no pool in", "tidepool pool list $pool")


# What runs, the guests' device as boot names it, and its MiB. Every access to a CXL window is emulated, and locked instructions
# there are not atomic between two guests, so only a pool without any between machines runs on one.
NAMESPACES = "namespaces"
SCENARIOS = {
    "pair-devdax": (failover, "nvdimm-devdax", 512),
    "pair-dealt": (dealt, "nvdimm-devdax", 512),
    "pair-cxl": (dealt, "cxl-ram-devdax", 256),
    "pair-namespaces": (failover, NAMESPACES, 512),
    "dealt-namespaces": (dealt, NAMESPACES, 512),
}


def run(name: str, payload: Path, log: Path, folder: Path, environment: dict[str, str]) -> tuple[str, list[str]]:
    """Runs one. Returns its log, and what went wrong beside its tests."""
    import namespaces

    what, kind, mebibytes = SCENARIOS[name]
    of = namespaces.Namespaces if kind == NAMESPACES else Pair
    with tempfile.TemporaryDirectory(dir=folder, prefix="pair-", ignore_cleanup_errors=True) as temporary:
        pair = of(name, kind, mebibytes, Path(temporary), payload, log, environment)
        try:
            pair.boot()
            what(pair)
        except (Failed, OSError) as error:
            if "TEST pair FAILED" not in pair.text:
                return pair.text, [str(error)]
        finally:
            pair.off()
            pair.out.close()
        return pair.text, []
