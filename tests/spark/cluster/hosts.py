"""Several hosts on one machine: network namespaces with private mounts, and a Spark cluster on them.

Every host has an address and a name of its own, a disk that outlives its processes (`/mnt`), and an empty `/tmp`: what
it writes there, no other host sees. Programs (this checkout, Python, Java) are the same files for all, as if installed
on each. Servers that hosts share, such as a broker or a store, run on this machine, whose address is `Hosts.outside`.
Only root may create hosts.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest
from pyspark.find_spark_home import _find_spark_home

from penstock.cluster import networks
from penstock.java.installed import find_java
from tests.servers import QUICK_START, ServerProcess, wait_for_start
from tests.spark.cluster.standalone import MASTER, WORKER, spark_class

ROOT: Final = Path(__file__).parents[3]
"""The checkout, with its Python environment. Below /tmp, hosts would not see it, as each has a /tmp of its own."""
MASTER_PORT: Final = 7077
PAGE_PORT: Final = 8080
READY_S: Final = 240.0
NAMES: Final = ("master", "worker-1", "worker-2", "driver")
WORKERS: Final = ("worker-1", "worker-2")

# The private mounts go with the process: `ip netns exec` has given it a mount namespace of its own.
ENTER: Final = """
set -e
mount --bind "$OWN_DISK" /mnt
if [ -n "$SPARK_COPY" ]; then mkdir -p /mnt/spark; mount --bind "$SPARK_COPY" /mnt/spark; fi
if [ -n "$CHECKOUT" ]; then mkdir -p /mnt/checkout; mount --bind "$CHECKOUT" /mnt/checkout; fi
mount -t tmpfs tmpfs /tmp
if [ -n "$CHECKOUT" ]; then mkdir -p "$CHECKOUT"; mount --bind /mnt/checkout "$CHECKOUT"; umount /mnt/checkout; fi
printf '%b' "$HOSTS_FILE" > /tmp/.hosts
mount --bind /tmp/.hosts /etc/hosts
for hidden in $HIDDEN_FOLDERS; do mount -t tmpfs tmpfs "$hidden"; done
hostname "$HOST_NAME"
unset HOSTS_FILE HIDDEN_FOLDERS HOST_NAME OWN_DISK SPARK_COPY CHECKOUT
cd /tmp
exec "$@"
"""


def require_hosts() -> None:
    """Skip the test where no hosts can be created."""
    if not networks.has_namespaces():
        pytest.skip("hosts are network namespaces, which need root and iproute2")


class Hosts:
    """Hosts with these names, on a network of their own."""

    def __init__(self, folder: Path, names: Sequence[str] = NAMES) -> None:
        require_hosts()
        self._folder = folder
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._subnet = networks.create_namespaces(tuple(self._numbers.values()))

    @property
    def outside(self) -> str:
        """The address at which hosts reach this machine."""
        return self._address(networks.HOST_NUMBER)

    def address(self, name: str) -> str:
        return self._address(self._numbers[name])

    def _address(self, number: int) -> str:
        return networks.address("namespaces", self._subnet, number)

    def disk(self, name: str) -> Path:
        """The folder that a host sees as `/mnt`."""
        folder = self._folder / f"disk-{name}"
        folder.mkdir(exist_ok=True)
        return folder

    def start(
        self,
        name: str,
        command: Sequence[str],
        output: Path,
        environment: Mapping[str, str] | None = None,
        hidden: Sequence[Path] = (),
    ) -> ServerProcess:
        """Run a command on a host. Folders in `hidden` are empty there."""
        entries = [f"{self.address(each)} {each}\\n" for each in self._numbers]
        more = {
            "HOSTS_FILE": "127.0.0.1 localhost\\n" + "".join(entries),
            "HOST_NAME": name,
            "OWN_DISK": str(self.disk(name)),
            "HIDDEN_FOLDERS": " ".join(map(str, hidden)),
            "SPARK_COPY": "",
            "CHECKOUT": str(ROOT) if ROOT.is_relative_to("/tmp") else "",
            "TMPDIR": "/tmp",
            "JAVA_HOME": str(find_java().home),
            "SPARK_LOCAL_IP": self.address(name),
            "SPARK_LOCAL_DIRS": "/tmp",
            **(environment or {}),
        }
        prefix = networks.enter("namespaces", self._subnet, self._numbers[name])
        return ServerProcess([*prefix, "unshare", "--uts", "sh", "-c", ENTER, "sh", *command], output, more)

    def unplug(self, name: str) -> None:
        networks.unplug(self._subnet, self._numbers[name])

    def plug_in(self, name: str) -> None:
        networks.plug_in(self._subnet, self._numbers[name])

    def close(self) -> None:
        networks.remove_namespaces(self._subnet, tuple(self._numbers.values()))


class SparkHosts:
    """A Spark cluster with its master and each of two workers on a host of its own, and a host for drivers."""

    def __init__(self, folder: Path, *, cores: int = 2, memory_mb: int = 1024) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._cores = cores
        self._memory_mb = memory_mb
        self.hosts = Hosts(folder)
        self._master: ServerProcess | None = None
        self._workers: dict[str, ServerProcess] = {}
        self.worker_environment: dict[str, dict[str, str]] = {}
        """More variables for the workers started from now on."""
        self.hidden: Sequence[Path] = ()
        """Folders that workers started from now on do not see. Spark is in `/mnt/spark` there."""

    @property
    def url(self) -> str:
        return f"spark://{self.hosts.address('master')}:{MASTER_PORT}"

    def conf(self) -> dict[str, str]:
        """Settings of a driver on the host `driver`."""
        return {
            "spark.driver.host": self.hosts.address("driver"),
            "spark.driver.bindAddress": self.hosts.address("driver"),
            "spark.driver.memory": "640m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": str(self._cores),
            "spark.sql.shuffle.partitions": "2",
        }

    def start(self) -> None:
        self.start_master()
        self.start_workers()

    def start_master(self) -> None:
        address = self.hosts.address("master")
        options = ["--host", address, "--port", str(MASTER_PORT), "--webui-port", str(PAGE_PORT)]
        command = [spark_class(), MASTER, *options]
        recovery = "-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory=/mnt/recovery"
        environment = {**_environment(address), "SPARK_MASTER_OPTS": recovery}
        self._master = self.hosts.start("master", command, self._folder / "master.txt", environment)
        wait_for_start(self._master, lambda: self.state() is not None, READY_S)

    def start_workers(self) -> None:
        """Have all workers alive; returns when the master knows them, and no dead one."""
        for name in WORKERS:
            if name in self._workers and self._workers[name].is_alive():
                continue
            address = self.hosts.address(name)
            options = ["--host", address, "--cores", str(self._cores), "--memory", f"{self._memory_mb}m"]
            program = spark_class() if not self.hidden else "/mnt/spark/bin/spark-class"
            command = [program, WORKER, *options, "--work-dir", "/tmp/work", self.url]
            environment = {**_environment(address), **self.worker_environment.get(name, {})}
            if self.hidden:
                environment |= {"SPARK_COPY": _find_spark_home(), "SPARK_HOME": "/mnt/spark"}
            output = self._folder / f"{name}.txt"
            self._workers[name] = self.hosts.start(name, command, output, environment, self.hidden)
        self.wait_until(lambda state: state["aliveworkers"] == len(WORKERS), f"{len(WORKERS)} workers")

    def kill_worker(self, name: str) -> None:
        """SIGKILL to a worker and its executors, as if the host lost power."""
        self._workers[name].kill()

    def replace_workers(self) -> None:
        """Restart all workers with the current environment and hidden folders."""
        for process in self._workers.values():
            process.kill()
        self.start_workers()

    def executors(self, name: str) -> set[int]:
        """The processes of the executors on a worker."""
        return {pid for pid in _children(self._workers[name].pid) if _is_running(pid)}

    def kill_master(self) -> None:
        assert self._master is not None
        self._master.kill()

    def start_driver(self, command: Sequence[str], output: Path, environment: Mapping[str, str]) -> ServerProcess:
        return self.hosts.start("driver", command, output, environment)

    def await_idle(self) -> None:
        """Return when no program has anything left on the cluster."""
        self.wait_until(lambda state: not state["activeapps"] and state["coresused"] == 0, "no program on it")

    def state(self) -> Any:
        """What the master says about itself; None while it does not answer."""
        try:
            page = f"http://{self.hosts.address('master')}:{PAGE_PORT}/json/"
            with urllib.request.urlopen(page, timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError, json.JSONDecodeError):
            return None

    def wait_until(self, holds: Callable[[Any], bool], what: str, timeout_s: float = READY_S) -> None:
        until = time.monotonic() + timeout_s
        while (state := self.state()) is None or not holds(state):
            assert time.monotonic() < until, f"the cluster has not {what} within {timeout_s:g} s: {state}"
            time.sleep(0.05)

    def stop(self) -> None:
        for process in (*self._workers.values(), self._master):
            if process is not None:
                process.kill()
        self.hosts.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _children(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    lists = [path.read_text("ascii") for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split()]


def _is_running(pid: int) -> bool:
    """Whether a process has not ended, even if its parent has not noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _environment(address: str) -> dict[str, str]:
    return {
        "SPARK_PUBLIC_DNS": address,
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK_START),
        "SPARK_NO_DAEMONIZE": "1",
        "PATH": os.environ.get("PATH", os.defpath),
    }
