"""Retiring a version: stop the process that runs it, delete its checkpoints, and optionally its topics."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from penstock.errors import ConfigError, PipelineRunningError
from penstock.spark.run.checkpoint_folder import LOCK
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.versions.names import checkpoint_name
from penstock.spark.versions.register import Register, Version, check_not_current, check_not_retired
from penstock.streams import Connection

STOP_S: Final = 60.0
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Retired:
    stopped: int | None
    """The process that was stopped, if any."""
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
) -> Retired:
    """Stop a version and delete its checkpoints. It is safe to repeat this after an interruption.

    Raises PipelineError if it is the current version, and PipelineRunningError if it does not stop.
    """
    check_not_current(entry)
    check_not_retired(entry)
    if entry.checkpoints is None:
        raise ConfigError(f"the checkpoint folder of version {entry.version} of {entry.pipeline!r} is unknown")
    folder = StateFolder(entry.checkpoints, spark).below(checkpoint_name(entry.pipeline, entry.version))
    stopped = None if folder.local is None else _stop(folder.local / LOCK, entry, stop_s)
    folder.remove()
    deleted = _delete(connection, entry) if delete_topics else ()
    Register(connection).retire(entry.pipeline, entry.version)
    return Retired(stopped, folder.path, deleted)


def _delete(connection: Connection, entry: Version) -> tuple[str, ...]:
    there = set(connection.topics())
    mine = tuple(topic for topic in entry.topics.values() if topic in there)
    for topic in mine:
        connection.delete_topic(topic)
    return mine


def _stop(lock: Path, entry: Version, stop_s: float) -> int | None:
    """Stop the process that holds the lock, and return its id; None if there is none."""
    asked: int | None = None
    deadline_s = time.monotonic() + stop_s
    while (holder := _holder(lock)) is not None:
        if asked != holder:
            if not _has_open(holder, lock):
                raise PipelineRunningError(
                    f"version {entry.version} of pipeline {entry.pipeline!r} runs on another host or in another "
                    f"container (process {holder}): stop it there first"
                )
            os.kill(holder, signal.SIGTERM)
            asked = holder
        if time.monotonic() > deadline_s:
            raise PipelineRunningError(
                f"version {entry.version} of pipeline {entry.pipeline!r} got SIGTERM but still runs in process "
                f"{holder} after {stop_s:g} s: stop it first"
            )
        time.sleep(_LOOK_S)
    return asked


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
