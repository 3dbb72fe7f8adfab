"""Retiring a version: stop the process that runs it, delete its checkpoints, and optionally its topics."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.errors import ConfigError, PipelineRunningError
from penstock.spark.run.checkpoint_folder import LOCK
from penstock.spark.run.run_records import RunRecords
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.versions.names import checkpoint_name
from penstock.spark.versions.register import Register, Version, check_not_current, check_not_retired
from penstock.streams import Connection

STOP_S: Final = 60.0
_LOOK_S: Final = 0.1
_LOOK_AT_STORE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Retired:
    stopped: tuple[str, ...]
    """The processes that were running it and have ended."""
    removed: str
    """The deleted checkpoint folder."""
    deleted: tuple[str, ...]
    """The deleted topics."""


def retire(
    connection: Connection,
    entry: Version,
    *,
    delete_topics: bool = False,
    spark: SparkSession | None = None,
    stop_s: float = STOP_S,
    force: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> Retired:
    """Stop a version and delete its checkpoints. It is safe to repeat this after an interruption.

    The version is marked first: from then on it is not started, and its runs end before their next batch, wherever they
    are. With `force`, runs on other machines that do not end are taken for dead, if the store has no locks. `on_wait`
    gets the processes that it waits for there. Raises PipelineError if it is the current version, and
    PipelineRunningError if it does not stop.
    """
    check_not_current(entry)
    if entry.state != "retiring":  # an earlier attempt was interrupted or refused
        check_not_retired(entry)
    if entry.checkpoints is None:
        raise ConfigError(f"the checkpoint folder of version {entry.version} of {entry.pipeline!r} is unknown")
    folder = StateFolder(entry.checkpoints, spark).below(checkpoint_name(entry.pipeline, entry.version))
    register = Register(connection)
    register.retire(entry.pipeline, entry.version, state="retiring")
    if folder.local is not None:
        stopped = _stop(folder.local / LOCK, entry, stop_s)
    else:
        stopped = _await_end(RunRecords(folder), entry, stop_s, force, on_wait)
    folder.remove()
    deleted = _delete(connection, entry) if delete_topics else ()
    register.retire(entry.pipeline, entry.version)
    return Retired(stopped, folder.path, deleted)


def _delete(connection: Connection, entry: Version) -> tuple[str, ...]:
    there = set(connection.topics())
    mine = tuple(topic for topic in entry.topics.values() if topic in there)
    for topic in mine:
        connection.delete_topic(topic)
    return mine


def _await_end(
    records: RunRecords, entry: Version, stop_s: float, force: bool, on_wait: Callable[[str], None] | None
) -> tuple[str, ...]:
    """Wait until the runs have ended: they see in the register that they must. Return those that have."""
    running = {record.id: record for record in records.unfinished()}
    left = list(running.values())
    if left and on_wait is not None:
        on_wait(", ".join(str(record) for record in left))
    deadline_s = time.monotonic() + stop_s
    while left and time.monotonic() < deadline_s:
        time.sleep(_LOOK_AT_STORE_S)
        left = records.unfinished()
    if left and not force:
        runs = "; ".join(f"{record} (since {record.since}, last seen {record.seen})" for record in left)
        raise PipelineRunningError(
            f"version {entry.version} of pipeline {entry.pipeline!r} is not known to have ended: {runs}. It was told "
            f"to end {stop_s:g} s ago, and nothing was deleted. Stop it there; if that host or process is dead: "
            f"penstock pipelines retire {entry.pipeline} {entry.version} --force"
        )
    ended = running.keys() - {record.id for record in left}
    return tuple(str(running[each]) for each in running if each in ended)


def _stop(lock: Path, entry: Version, stop_s: float) -> tuple[str, ...]:
    """Stop the process that holds the lock, and return it, if there is one."""
    seen: list[int] = []
    deadline_s = time.monotonic() + stop_s
    while (holder := _holder(lock)) is not None:
        is_here = _has_open(holder, lock)
        if holder not in seen:
            seen.append(holder)
            if is_here:
                os.kill(holder, signal.SIGTERM)
        if time.monotonic() > deadline_s:
            if not is_here:
                raise PipelineRunningError(
                    f"version {entry.version} of pipeline {entry.pipeline!r} runs on another host or in another "
                    f"container (process {holder}), and has not ended within {stop_s:g} s: stop it there first"
                )
            raise PipelineRunningError(
                f"version {entry.version} of pipeline {entry.pipeline!r} got SIGTERM but still runs in process "
                f"{holder} after {stop_s:g} s: stop it first"
            )
        time.sleep(_LOOK_S)
    return tuple(f"process {holder}" for holder in seen)


def _holder(lock: Path) -> int | None:
    """The process that holds the lock; None if it is free."""
    if not lock.exists():
        return None
    with open(lock, "r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read().strip()
            return int(text) if text.isdecimal() else 0
    return None


def _has_open(pid: int, file: Path) -> bool:
    """Whether this local process has the file open. Otherwise the number in it belongs to another machine."""
    if pid <= 0 or pid == os.getpid():
        return False
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(_is_same(f"/proc/{pid}/fd/{number}", file) for number in numbers)


def _is_same(link: str, file: Path) -> bool:
    try:
        return os.path.samefile(link, file)
    except OSError:  # it was closed in the meantime
        return False
