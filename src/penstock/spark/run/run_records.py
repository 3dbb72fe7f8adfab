"""Which runs use a checkpoint folder on a store without locks, such as S3 or HDFS.

    CHECKPOINTS/PIPELINE/runs/ID.json   one file for each run; the run removes it when all its queries have ended

A run that was killed leaves its file. Only the machine on which it ran can tell that it has ended.
"""

from __future__ import annotations

import datetime
import logging
import os
import socket
import uuid
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import PipelineError
from penstock.spark.run.state_folder import StateFolder

RUNS: Final = "runs"
_SUFFIX: Final = ".json"
_KERNEL: Final = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger("penstock.spark")


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs, or ran, the pipeline of a checkpoint folder."""

    id: str
    host: str
    pid: int
    processes: str | None
    """The process table in which `pid` counts; None where the system does not tell."""
    started: str | None
    """When the process started, by the clock of that table: a later process with this id started later."""
    since: str
    seen: str
    """When the run wrote this file last."""

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host}"

    @property
    def is_known_to_have_ended(self) -> bool:
        """Whether it ran on this machine and its process is gone. False if this process cannot know."""
        if self.processes is None or self.processes != _process_table():
            return False
        return self.started is not None and _started(self.pid) != self.started


class RunRecords:
    """The records of the runs of one checkpoint folder, and the own record of this run."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder.below(RUNS)
        self._own: RunRecord | None = None

    def begin(self) -> None:
        """Record this run. Forget those that are known to have ended."""
        self.unfinished()
        pid, now = os.getpid(), _now()
        self._own = RunRecord(
            id=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=pid,
            processes=_process_table(),
            started=_started(pid),
            since=now,
            seen=now,
        )
        self._folder.create()
        self._write(self._own)

    def refresh(self) -> None:
        """Tell others that this run was alive now."""
        if self._own is not None:
            self._write(msgspec.structs.replace(self._own, seen=_now()))

    def end(self) -> None:
        """Remove the own record. If that fails, the record stays, as after a kill."""
        own, self._own = self._own, None
        if own is not None:
            try:
                self._remove(own)
            except Exception as problem:  # a problem of the store or the JVM must not hide why the run ends
                _log.warning("cannot remove %s/%s%s: %s", self._folder.path, own.id, _SUFFIX, problem)

    def unfinished(self) -> list[RunRecord]:
        """Other runs that have not ended, as far as this process can know. Raises PipelineError for a damaged file."""
        found = []
        for name in self._folder.names():
            text = self._folder.read(name) if name.endswith(_SUFFIX) else None
            if text is None:  # it ended in the meantime
                continue
            try:
                record = msgspec.json.decode(text, type=RunRecord)
            except msgspec.MsgspecError as error:
                raise PipelineError(
                    f"{self._folder.path}/{name} is damaged ({error}), so it is unknown whose run it is: delete it if "
                    "no process runs this pipeline"
                ) from error
            if record.is_known_to_have_ended:
                self._remove(record)
            elif self._own is None or record.id != self._own.id:
                found.append(record)
        return found

    def _write(self, record: RunRecord) -> None:
        self._folder.write(f"{record.id}{_SUFFIX}", msgspec.json.encode(record).decode())

    def _remove(self, record: RunRecord) -> None:
        self._folder.below(f"{record.id}{_SUFFIX}").remove()


def _process_table() -> str | None:
    """Identifies the running kernel, and the namespace of process ids in it."""
    try:
        return f"{_KERNEL.read_text('ascii').strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When this process started, in ticks since the boot; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return None


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
