"""A real standalone cluster of Spark on loopback: a master and workers, each a process that tests may kill."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pyspark.find_spark_home import _find_spark_home

from penstock.java.installed import find_java
from tests.servers import QUICK_START, ServerProcess, free_ports, wait_for_start

HOST: Final = "127.0.0.1"
READY_S: Final = 240.0
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"


class Worker:
    """One worker, with the executors that it starts below its folder."""

    def __init__(self, master_url: str, folder: Path, cores: int, memory_mb: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        port, page = free_ports(2)
        options = ["--host", HOST, "--port", str(port), "--webui-port", str(page), "--cores", str(cores)]
        options += ["--memory", f"{memory_mb}m", "--work-dir", str(folder), master_url]
        self.process = ServerProcess([spark_class(), WORKER, *options], folder / "output.txt", environment())

    def runs(self, folder: str) -> bool:
        """Whether a process with this working folder is one of its executors, or was started by one."""
        return Path(folder).is_relative_to(self.folder)

    def kill(self) -> None:
        """SIGKILL to the worker and its executors: what a machine that loses power is to the others."""
        self.process.kill()

    def stop(self) -> None:
        self.process.terminate()
        self.process.kill()


class Standalone:
    """A cluster in a folder: one master, and as many workers as were asked for."""

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 1, memory_mb: int = 1024) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._wanted = workers
        self._cores = cores
        self._memory_mb = memory_mb
        self._port, self._page = free_ports(2)
        self._master: ServerProcess | None = None
        self._started = 0
        self.workers: list[Worker] = []

    @property
    def url(self) -> str:
        """What programs name as their master."""
        return f"spark://{HOST}:{self._port}"

    def start(self) -> None:
        options = ["--host", HOST, "--port", str(self._port), "--webui-port", str(self._page)]
        self._master = ServerProcess([spark_class(), MASTER, *options], self._folder / "master.txt", environment())
        wait_for_start(self._master, lambda: self.state() is not None, READY_S)
        self.replace_the_dead()

    def replace_the_dead(self) -> None:
        """Have as many live workers as were asked for; returns when the master knows them all, and no dead one."""
        self.workers = [worker for worker in self.workers if worker.process.is_alive()]
        while len(self.workers) < self._wanted:
            self._started += 1
            folder = self._folder / f"worker-{self._started}"
            self.workers.append(Worker(self.url, folder, self._cores, self._memory_mb))
        self._wait_until(lambda state: state["aliveworkers"] == self._wanted, f"{self._wanted} live workers")

    def await_idle(self) -> None:
        """Return when no program has anything left on the cluster."""
        self._wait_until(lambda state: not state["activeapps"] and state["coresused"] == 0, "no program on it")

    def state(self) -> Any:
        """What the master says about itself; None while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._page}/json/", timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def worker_at(self, folder: str) -> Worker:
        """The worker under which a process with this working folder runs."""
        return next(worker for worker in self.workers if worker.runs(folder))

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()
        if self._master is not None:
            self._master.terminate()

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

    def _wait_until(self, holds: Any, what: str, timeout_s: float = READY_S) -> None:
        until = time.monotonic() + timeout_s
        while (state := self.state()) is None or not holds(state):
            assert time.monotonic() < until, f"the cluster has not {what} within {timeout_s:g} s: {state}"
            time.sleep(0.05)


def spark_class() -> str:
    """The program that comes with the pip package and runs any class of Spark."""
    return str(Path(_find_spark_home()) / "bin" / "spark-class")


def environment() -> Mapping[str, str]:
    return {
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_PUBLIC_DNS": HOST,
        "SPARK_DAEMON_MEMORY": "192m",
        "SPARK_DAEMON_JAVA_OPTS": " ".join(QUICK_START),
        "SPARK_NO_DAEMONIZE": "1",
        "PATH": os.environ.get("PATH", os.defpath),
    }
