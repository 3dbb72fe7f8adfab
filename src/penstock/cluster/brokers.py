"""`Cluster`: the brokers of one folder, each a Java process that survives the command that started it.

`cluster.json` in the folder says which processes they are and where they listen; it is there while the cluster is up.
Several commands may change a cluster at once: each locks the file, reads it again, changes it and saves it. Except for
`up` and `down`, none waits for a broker while it has the lock: it may need another one that is started meanwhile.
Every broker is also a controller (KRaft), so two of three must run for leaders to be elected.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.cluster import networks
from penstock.cluster.jars import SERVER_JAR, cluster_cache, kafka_jars
from penstock.cluster.networks import CutOff
from penstock.cluster.plans import FIRST_HEAP_MB, Broker, Plan, State
from penstock.cluster.proxies import OBEYED as PROXIES_OBEY
from penstock.cluster.requests import describe_quorum
from penstock.errors import BrokerUnavailableError, ClusterError
from penstock.java.downloads import Tell, locked, run_program, silent
from penstock.java.installed import find_java

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
FORMAT_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.05
EXEC_TIMEOUT_S: Final = 1.0
"""How long a process that lives may have no command line: as long as `execve` takes."""
OUTPUT_LINES: Final = 5

JAVA_OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=48m",
    "-Xss512k",
    "-Xshare:auto",
    "-Dorg.apache.logging.log4j.level=WARN",
    # Verifying the classes of Kafka is a fifth of the work of a start; a JVM without these options ignores them.
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""A small Java that starts quickly: brokers for drills share a machine with everything else."""


class Cluster:
    """A cluster that is up. Its brokers may be down."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder = folder
        self.state = state

    @classmethod
    def at(cls, folder: Path) -> Cluster:
        """The cluster that is up in a folder. Raises ClusterError if there is none."""
        folder = folder.absolute()
        state = _read_state(folder)
        if state is None:
            raise ClusterError(f"no cluster is up in {folder}: start one with `penstock cluster up --folder {folder}`")
        return cls(folder, state)

    @classmethod
    def up(cls, folder: Path, plan: Plan, jars: Path | None = None, tell: Tell = silent) -> Cluster:
        """Start the brokers of a folder, on the data that they left there; return when all of them serve.

        Raises ClusterError if the cluster is up already, if a port is taken, if Kafka's jars are missing, or if a
        broker does not start, and JavaMissingError without Java.
        """
        plan.check()
        folder = folder.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "cluster.json"):
            former = _read_state(folder)
            if former is not None:
                if any(map(cls(folder, former).is_running, range(1, former.plan.brokers + 1))):
                    raise ClusterError(
                        f"the cluster in {folder} is up already: see `penstock cluster status`, or stop it with "
                        "`penstock cluster down`"
                    )
                cls(folder, former)._remove()  # all of its processes have ended, with the machine for instance
            _check_data(folder, plan)
            java = str(find_java(needed_by="Apache Kafka").home / "bin" / "java")
            jars = kafka_jars(jars, tell)
            numbers = range(1, plan.brokers + 1)
            subnet = 0
            if plan.network == "namespaces":
                subnet = networks.create_namespaces(numbers)
            else:
                networks.check_ports(plan.ports(), plan.host)
            brokers = [plan.broker(subnet, number) for number in numbers]
            cluster = cls(folder, State(plan, subnet, java, str(jars), brokers))
            try:
                cluster._save()
                cluster._format(tell)
                cluster._provide_proxies()
                cluster._launch(numbers)
                cluster.wait_until_serving(numbers, tell)
            except BaseException:
                cluster.kill_all()
                cluster._remove()
                raise
        return cluster

    @property
    def brokers(self) -> Sequence[Broker]:
        return self.state.brokers

    @property
    def numbers(self) -> list[int]:
        return [broker.number for broker in self.state.brokers]

    @property
    def bootstrap(self) -> str:
        """The addresses that clients are given: `HOST:PORT,...`."""
        return ",".join(broker.address for broker in self.state.brokers)

    @property
    def url(self) -> str:
        """What `--url` and `connect` take."""
        return f"kafka://{self.bootstrap}"

    def broker(self, number: int) -> Broker:
        """The broker of this number. Raises ClusterError if there is none."""
        if number not in self.numbers:
            raise ClusterError(f"there is no broker {number}: this cluster has {', '.join(map(str, self.numbers))}")
        return self.state.brokers[number - 1]

    def is_running(self, number: int) -> bool:
        """Whether the process of a broker exists, and is really its own: pids are used again."""
        broker = self.broker(number)
        return broker.pid > 0 and str(self._properties(number)) in _command_line(broker.pid)

    def running(self) -> list[int]:
        return [number for number in self.numbers if self.is_running(number)]

    def serves(self, number: int) -> bool:
        """Whether a broker answers requests of clients."""
        broker = self.broker(number)
        return answers(broker.host, broker.port)

    def refresh(self) -> None:
        """Read what other commands have changed. Raises ClusterError if the cluster was taken down."""
        self.state = Cluster.at(self.folder).state

    def kill(self, number: int) -> None:
        """SIGKILL: the process ends at once, as in a crash."""
        self.refresh()
        self._check_running(number)
        self._end(number, signal.SIGKILL)

    def stop(self, number: int) -> None:
        """SIGTERM: the broker hands its leaderships over, then ends."""
        self.refresh()
        self._check_running(number)
        if self.broker(number).is_paused:
            self.resume(number)  # it obeys no SIGTERM before
        self._end(number, signal.SIGTERM)

    def start(self, number: int, tell: Tell = silent, *, wait: bool = True) -> None:
        """Start a broker that was killed or stopped; with `wait`, return when it serves.

        A broker that is isolated cannot serve before `heal`: it is only started.
        """
        with self._changing():
            if self.is_running(number):
                raise ClusterError(f"broker {number} runs already, as process {self.broker(number).pid}")
            self._provide_proxies()
            self._launch([number])
        cut_off = self.broker(number).isolated_from
        if cut_off is not None:
            tell(f"broker {number} is still isolated from {cut_off}: it serves after `penstock cluster heal {number}`")
        elif wait:
            self.wait_until_serving([number], tell)

    def pause(self, number: int) -> None:
        """SIGSTOP: the process hangs, as in a long collection of garbage, and its connections stay open."""
        with self._changing():
            self._check_running(number)
            self.broker(number).is_paused = True
            self._save()  # before it happens: whoever finds this process dead knows what to undo
            os.kill(self.broker(number).pid, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """SIGCONT: the process goes on where it was paused."""
        with self._changing():
            self._check_running(number)
            self._resume(number)
            self._save()

    def isolate(self, number: int, cut_off: CutOff) -> None:
        """Cut a broker off from its peers, its clients, or both, until `heal`."""
        with self._changing():
            broker = self.broker(number)
            if self.state.plan.network == "loopback":
                raise ClusterError(
                    "brokers on --network loopback cannot be isolated: their connections go from process to process. "
                    "Start the cluster with `penstock cluster up --network proxies`, or, as root, with `--network "
                    "namespaces`"
                )
            if self.state.plan.network == "namespaces":
                if broker.isolated_from is not None:
                    networks.heal(self.state.subnet, number, self._peers(number))
                networks.isolate(self.state.subnet, number, self._peers(number), cut_off)
            broker.isolated_from = cut_off
            self._save()
        self._wait_for_proxies()

    def heal(self, number: int) -> None:
        """Undo `isolate` and `pause`. Does nothing to a broker that is neither isolated nor paused."""
        with self._changing():
            self._heal(number)
            self._save()
        self._wait_for_proxies()

    def down(self, *, delete: bool = False) -> None:
        """Stop all brokers; with `delete`, remove their data, too."""
        with self._changing():
            running = self.running()
            for number in running:
                self._heal(number)
            self._save()
            for number in running:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(self.broker(number).pid, signal.SIGTERM)
            # A controlled shutdown needs a controller, and the last brokers have none: those are killed.
            deadline_s = time.monotonic() + STOP_TIMEOUT_S / 2
            while self.running() and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
            self.kill_all()
            self._remove()
            if delete:
                for number in self.numbers:
                    shutil.rmtree(self._home(number), ignore_errors=True)

    def kill_all(self) -> None:
        for number in self.running():
            self._end(number, signal.SIGKILL)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """While no other command changes the cluster, with what the others have changed before."""
        with locked(self.folder / "cluster.json"):
            self.refresh()
            yield

    def _heal(self, number: int) -> None:
        broker = self.broker(number)
        if broker.isolated_from is not None:
            if self.state.plan.network == "namespaces":
                networks.heal(self.state.subnet, number, self._peers(number))
            broker.isolated_from = None
        self._resume(number)

    def _resume(self, number: int) -> None:
        if self.is_running(number):
            os.kill(self.broker(number).pid, signal.SIGCONT)
        self.broker(number).is_paused = False

    def memory_bytes(self, number: int) -> int | None:
        """The resident memory of a broker's process; None if it does not run or cannot be asked."""
        if not self.is_running(number):
            return None
        said = run_program(["ps", "-o", "rss=", "-p", str(self.broker(number).pid)], timeout_s=10).stdout.strip()
        return int(said) * 1024 if said.isdigit() else None

    def output(self, number: int) -> Path:
        """The file of what a broker's process writes."""
        return self._home(number) / "output.txt"

    def wait_until_serving(self, numbers: Sequence[int], tell: Tell = silent) -> None:
        """Wait until these brokers answer, and the controller knows them. Raises ClusterError if one ends before."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        waiting = dict.fromkeys(numbers)
        while waiting:
            for number in list(waiting):
                if not self.is_running(number):
                    raise ClusterError(f"broker {number} ended while it started: {self._last_words(number)}")
                if self.serves(number) and self._is_active(number):
                    del waiting[number]
                    tell(f"broker {number} serves at {self.broker(number).address}")
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"broker {', '.join(map(str, waiting))} did not start within {START_TIMEOUT_S:.0f} s: see "
                    f"{self.output(next(iter(waiting)))}"
                )
            if waiting:
                time.sleep(POLL_S)

    def _is_active(self, number: int) -> bool:
        """A broker answers the question for the controller only after it has heard of one."""
        broker = self.broker(number)
        with contextlib.suppress(BrokerUnavailableError):
            return describe_quorum(broker.host, broker.port) is not None
        return False

    def _format(self, tell: Tell) -> None:
        """Write the properties, and format the data folders of brokers that have none."""
        fresh = []
        for number in self.numbers:
            home = self._home(number)
            home.mkdir(exist_ok=True)
            settings = self.state.plan.broker_settings(self.broker(number), self.state.brokers, str(home / "data"))
            properties = "".join(f"{name}={value}\n" for name, value in settings.items())
            self._properties(number).write_text(properties, "utf-8")
            if not (home / "data" / "meta.properties").is_file():
                fresh.append(number)
        if not fresh:
            return
        checkpoint = self._bootstrap_checkpoint(fresh[0], tell)
        cluster_id = self._cluster_id() or _random_id()
        for number in fresh:
            data = self._home(number) / "data"
            data.mkdir(exist_ok=True)
            shutil.copyfile(checkpoint, data / "bootstrap.checkpoint")
            ids = {"version": "1", "cluster.id": cluster_id, "node.id": str(number), "directory.id": _random_id()}
            (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in ids.items()), "utf-8")

    def _bootstrap_checkpoint(self, number: int, tell: Tell) -> Path:
        """The file that Kafka's format tool writes beside the ids: the feature levels of a new cluster.

        The tool is a Java program that takes as long as a broker, and the file depends on Kafka's version alone, so it
        is kept in the cache.
        """
        server = next(Path(self.state.jars).glob(SERVER_JAR)).stem
        kept = cluster_cache() / f"{server}.checkpoint"
        with locked(kept):
            if kept.is_file():
                return kept
            tell("formatting a data folder")
            command = [*self._java(), "kafka.tools.StorageTool", "format", "--cluster-id", _random_id()]
            done = run_program([*command, "--config", str(self._properties(number))], timeout_s=FORMAT_TIMEOUT_S)
            formatted = self._home(number) / "data"
            if done.returncode != 0 or not (formatted / "bootstrap.checkpoint").is_file():
                last = (done.stdout.strip().splitlines() or ["no reason given"])[-1]
                raise ClusterError(f"Kafka could not format {formatted}: {last}")
            fresh = kept.with_suffix(".fresh")
            shutil.copyfile(formatted / "bootstrap.checkpoint", fresh)
            fresh.rename(kept)
            shutil.rmtree(formatted)
        return kept

    def _cluster_id(self) -> str | None:
        """The id of the cluster, as a formatted broker has it."""
        for number in self.numbers:
            with contextlib.suppress(FileNotFoundError):
                text = (self._home(number) / "data" / "meta.properties").read_text("utf-8")
                found = re.search(r"^cluster\.id=(\S+)$", text, re.MULTILINE)
                if found:
                    return found.group(1)
        return None

    def _launch(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            broker = self.broker(number)
            inside = networks.enter(self.state.plan.network, self.state.subnet, number)
            with self.output(number).open("wb") as sink:
                process = subprocess.Popen(
                    [*inside, *self._java(), "kafka.Kafka", str(self._properties(number))],
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    start_new_session=True,
                    cwd=self._home(number),
                )
            _children[process.pid] = process
            broker.pid = process.pid
            broker.is_paused = False
        self._save()
        # The command line is the broker's own only once `ip netns exec` and Python's fork have become Java.
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while not all(map(self.is_running, numbers)) and time.monotonic() < deadline_s:
            if any(_has_ended(self.broker(number).pid) for number in numbers):
                return
            time.sleep(POLL_S)

    def _end(self, number: int, how: signal.Signals) -> None:
        pid = self.broker(number).pid
        os.kill(pid, how)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while self.is_running(number):
            _has_ended(pid)
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"broker {number} (process {pid}) did not stop within {STOP_TIMEOUT_S:.0f} s: it cannot hand its "
                    "partitions over without a controller; `penstock cluster kill` does not wait for that"
                )
            time.sleep(POLL_S)

    def _check_running(self, number: int) -> None:
        if not self.is_running(number):
            raise ClusterError(f"broker {number} does not run: start it with `penstock cluster start {number}`")

    def _peers(self, number: int) -> list[int]:
        return [each for each in self.numbers if each != number]

    def _java(self) -> list[str]:
        state, heap_mb = self.state, self.state.plan.heap_mb
        heap = (f"-Xms{min(FIRST_HEAP_MB, heap_mb)}m", f"-Xmx{heap_mb}m")
        return [state.java, *heap, *JAVA_OPTIONS, "-cp", f"{state.jars}/*"]

    def _home(self, number: int) -> Path:
        return self.folder / f"broker-{number}"

    def _properties(self, number: int) -> Path:
        return self._home(number) / "server.properties"

    def _last_words(self, number: int) -> str:
        lines = self.output(number).read_text("utf-8", errors="replace").strip().splitlines()
        return " / ".join(lines[-OUTPUT_LINES:]) or f"it wrote nothing to {self.output(number)}"

    def _provide_proxies(self) -> None:
        """Start the proxies of the network, unless there are none or they run."""
        if self.state.plan.network != "proxies" or str(self.folder) in _command_line(self.state.proxies_pid):
            return
        with (self.folder / "proxies.txt").open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock.cluster.proxies", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        _children[process.pid] = process
        self.state.proxies_pid = process.pid
        self._save()
        self._wait_for_proxies()

    def _wait_for_proxies(self) -> None:
        """Return once the proxies, if there are any, obey the saved state."""
        if self.state.plan.network != "proxies":
            return
        obeyed = self.folder / PROXIES_OBEY

        def is_obeyed() -> bool:
            return obeyed.exists() and int(obeyed.read_text()) >= self.state.version

        if (
            wait_for(lambda: is_obeyed() or _has_ended(self.state.proxies_pid), STOP_TIMEOUT_S) is None
            or not is_obeyed()
        ):
            raise ClusterError(
                f"the proxies of the cluster do not follow commands: see {self.folder / 'proxies.txt'}. Restart them "
                "with `penstock cluster down` and `up`"
            )

    def _save(self) -> None:
        self.state.version += 1
        path = self.folder / "cluster.json"
        fresh = path.with_suffix(".fresh")
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(self.state)))
        fresh.rename(path)

    def _remove(self) -> None:
        if self.state.plan.network == "namespaces":
            networks.remove_namespaces(self.state.subnet, self.numbers)
        (self.folder / "cluster.json").unlink(missing_ok=True)  # which ends the proxies, too
        if self.state.proxies_pid:
            wait_for(lambda: str(self.folder) not in _command_line(self.state.proxies_pid), STOP_TIMEOUT_S)


def wait_for(condition: Callable[[], bool], timeout_s: float) -> float | None:
    """Wait until a condition holds. Returns the seconds it took, or None if it did not hold in time."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > timeout_s:
            return None
        time.sleep(POLL_S)
    return time.monotonic() - began_s


def answers(host: str, port: int, timeout_s: float = 1.0) -> bool:
    """Whether a Kafka broker answers the smallest of all requests, ApiVersions version 0."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            return connection.recv(1) != b""
    except OSError:
        return False


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Brokers that this process started: they stay zombies until they are waited for."""


def _has_ended(pid: int) -> bool:
    child = _children.get(pid)
    return child is not None and child.poll() is not None


def _command_line(pid: int) -> str:
    """The command line of a process; empty for one that has ended."""
    if Path("/proc/self").exists():
        deadline_s = time.monotonic() + EXEC_TIMEOUT_S
        while not (command := _read_command_line(pid)) and _is_alive(pid) and time.monotonic() < deadline_s:
            time.sleep(POLL_S / 10)  # while a process replaces its program by another, it has none
        return command
    _has_ended(pid)
    return run_program(["ps", "-ww", "-o", "command=", "-p", str(pid)], timeout_s=10).stdout


def _read_command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie that waits for its parent."""
    if _has_ended(pid):
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _check_data(folder: Path, plan: Plan) -> None:
    homes = [home for home in folder.glob("broker-*") if (home / "data" / "meta.properties").is_file()]
    if homes and len(homes) != plan.brokers:
        raise ClusterError(
            f"{folder} has the data of {len(homes)} brokers, so --brokers must be {len(homes)}: choose another "
            f"--folder, or remove the broker-* folders of {folder}"
        )


def _read_state(folder: Path) -> State | None:
    try:
        return msgspec.json.decode((folder / "cluster.json").read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ClusterError(
            f"{folder / 'cluster.json'} cannot be read ({error}): remove it, and the processes"
        ) from error


def _random_id() -> str:
    """A random id as Kafka writes it; it refuses one that begins with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text
