"""What is checked on a cluster before the first batch: all hosts see the same folders, and their clocks agree.

The driver writes a file into each folder. A task on each executor reads it and writes one of its own, which the driver
must find. So a folder that is not shared fails the start, not the first failover. The same tasks report their time.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.sessions.masters import executors_of
from penstock.spark.sessions.packaging import run_probe
from penstock.spark.sink.file_systems import opened

WARN_SKEW_S: Final = 5.0
MOST_SKEW_S: Final = 60.0
"""Clocks that differ by more than this are refused: records that tasks send carry the time of their host."""

_ROUNDS: Final = 3
_MOST_TASKS: Final = 256
_TASK_S: Final = 0.1
"""How long a task takes, so that the tasks of a round spread over all executors."""
_SETTLED_S: Final = 1.0
_REGISTERED_S: Final = 10.0
"""How long to wait for more executors to register."""

_log = logging.getLogger("penstock.spark")


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What a task found on its host."""

    host: str
    executor: tuple[str, int]
    now_s: float
    problems: Mapping[str, str]
    """By folder: why the file of the driver could not be read, or another one not be written there."""
    name: str
    """The file that it wrote into each of the other folders."""


@dataclass(frozen=True, slots=True)
class Probe:
    """In a task: looks for the file of the driver in these folders."""

    folders: tuple[str, ...]
    id: str

    def __call__(self, _: Iterable[int]) -> Iterator[HostAnswer]:
        name = secrets.token_hex(8)
        problems = {}
        for folder in self.folders:
            try:
                self.answer(folder, name)
            except (OSError, pa.ArrowException, ConfigError) as error:
                problems[folder] = f"{type(error).__name__}: {error}"
        time.sleep(_TASK_S)
        host = socket.gethostname()
        # Python workers are children of one process of their executor.
        yield HostAnswer(host, (host, os.getppid()), time.time(), problems, name)

    def write(self) -> None:
        """On the driver: write the files that tasks look for."""
        for folder in self.folders:
            system, path = opened(folder)
            try:
                system.create_dir(self._place(path), recursive=True)
                with system.open_output_stream(f"{self._place(path)}/driver") as file:
                    file.write(self.id.encode())
            except (OSError, pa.ArrowException) as error:
                raise ConfigError(f"the driver cannot write to {folder}: {error}") from error

    def answer(self, folder: str, name: str) -> None:
        system, path = opened(folder)
        with system.open_input_stream(f"{self._place(path)}/driver") as file:
            if file.read() != self.id.encode():
                raise OSError("the file of the driver has another content")
        with system.open_output_stream(f"{self._place(path)}/{name}") as file:
            file.write(self.id.encode())

    def finds(self, folder: str, name: str) -> bool:
        """On the driver: whether the file of a task is there."""
        system, path = opened(folder)
        return bool(system.get_file_info(f"{self._place(path)}/{name}").is_file)

    def remove(self) -> None:
        for folder in self.folders:
            system, path = opened(folder)
            system.delete_dir(self._place(path))

    def _place(self, path: str) -> str:
        return f"{path}/.penstock-probe-{self.id}"


def check_hosts(spark: SparkSession, folders: Sequence[str]) -> None:
    """Raise ConfigError if an executor does not share the folders with the driver, or has another time.

    Executors that register later are not checked.
    """
    context = spark.sparkContext
    probe = Probe(tuple(dict.fromkeys(folders)), secrets.token_hex(8))
    executors = _registered(context)
    seen: set[tuple[str, int]] = set()
    skews_s: dict[str, float] = {}
    probe.write()
    try:
        for _ in range(_ROUNDS):
            begun_s = time.time()
            answers = run_probe(context, max(2, min(_MOST_TASKS, 2 * context.defaultParallelism)), probe)
            ended_s = time.time()
            for answer in answers:
                check_answer(probe, answer)
                skew_s = skew_of(answer.now_s, begun_s, ended_s)
                if abs(skew_s) >= abs(skews_s.get(answer.host, 0.0)):
                    skews_s[answer.host] = skew_s
            seen |= {answer.executor for answer in answers}
            # The first round may take seconds, and measures clocks no better than that.
            if len(seen) >= executors and ended_s - begun_s < WARN_SKEW_S:
                break
    finally:
        probe.remove()
    check_clocks(skews_s)
    _log.debug("checked %d of %d executors: %s", len(seen), executors, skews_s)


def skew_of(now_s: float, begun_s: float, ended_s: float) -> float:
    """By how much, at least, a clock is ahead that showed `now_s` between these times of the driver."""
    return min(0.0, now_s - begun_s) + max(0.0, now_s - ended_s)


def check_clocks(skews_s: Mapping[str, float]) -> None:
    """Warn of hosts whose clocks differ from the driver's, and raise ConfigError for those that differ much."""
    told = {
        host: f"{host} is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the driver"
        for host, skew_s in sorted(skews_s.items())
        if abs(skew_s) > WARN_SKEW_S
    }
    if not told:
        return
    text = f"the clocks of the hosts differ: {'; '.join(told.values())}. Synchronize them (NTP)"
    if any(abs(skews_s[host]) > MOST_SKEW_S for host in told):
        raise ConfigError(f"{text}: more than {MOST_SKEW_S:.0f} s would give records wrong times")
    _log.warning("%s: records that tasks send have the times of their hosts", text)


def check_answer(probe: Probe, answer: HostAnswer) -> None:
    """Raise ConfigError if a task and the driver do not see the same folders."""
    here = socket.gethostname()
    for folder in probe.folders:
        problem = answer.problems.get(folder)
        if problem is None and not probe.finds(folder, answer.name):
            problem = f"the driver on {here} does not see what an executor wrote"
        if problem is not None:
            raise ConfigError(
                f"{folder} is not shared: the executor on {answer.host} does not find there what the driver on {here} "
                f"has written ({problem}). Put the checkpoints, and folders that the pipeline writes to, where all "
                "hosts see them: a shared file system, or a store such as s3a://BUCKET/PATH or hdfs://HOST:PORT/PATH"
            )


def _registered(context: SparkContext) -> int:
    """The number of executors, once no more register. Without any, the check that follows waits for one."""
    deadline_s = time.monotonic() + _REGISTERED_S
    count, since_s = -1, time.monotonic()
    while time.monotonic() < deadline_s:
        found = executors_of(context)
        if found != count:
            count, since_s = found, time.monotonic()
        elif count > 0 and time.monotonic() - since_s > _SETTLED_S:
            break
        time.sleep(0.1)
    return count
