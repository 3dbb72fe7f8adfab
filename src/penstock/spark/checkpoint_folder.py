"""The checkpoint folder of a pipeline: whose it is, who uses it now, and what each of its queries was made of.

    CHECKPOINTS/PIPELINE/pipeline.json      whose folder this is
                         lock               held by the process that runs it (on local disks)
                         QUERY/query.json   what the query was made of when its state was begun
                         QUERY/spark/       Spark's own checkpoint
                         QUERY/staging/     what is not published yet
                         QUERY/side/        side outputs on their way

A change of the program that the state cannot survive is refused here, before Spark reads anything.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Final

from pyspark.sql import DataFrame

from penstock.errors import CheckpointMismatchError, ConfigError, PipelineRunningError
from penstock.spark.folders import StateFolder
from penstock.spark.plans import sources, stateful_operators
from penstock.streams.url import LogUrl, parse_url

FORMAT: Final = 1
_PIPELINE: Final = "pipeline.json"
_QUERY: Final = "query.json"
LOCK: Final = "lock"
_DEFAULT: Final = "pipelines"


def default_checkpoints(url: str) -> str:
    """Beside the records, where they are a folder of this machine; else in the working folder."""
    where = parse_url(url)
    return str(where.folder / _DEFAULT) if isinstance(where, LogUrl) else str(Path(_DEFAULT).absolute())


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a query keeps in its checkpoint depends on this."""

    sources: tuple[str, ...]
    stateful: tuple[str, ...]
    mode: str

    @classmethod
    def of(cls, frame: DataFrame, mode: str) -> Fingerprint:
        return cls(tuple(sources(frame)), tuple(stateful_operators(frame)), mode)

    def conflict_with(self, before: Fingerprint) -> str | None:
        """Why a query like this cannot go on from the checkpoint of one like `before`; None when it can."""
        if self.sources != before.sources:
            return f"it read {_listed(before.sources)}, and now reads {_listed(self.sources)}"
        if self.stateful != before.stateful:
            return (
                f"its state belongs to {_operators(before.stateful)}, and the program now has "
                f"{_operators(self.stateful)}"
                + (", keeping other columns" if _operators(self.stateful) == _operators(before.stateful) else "")
            )
        if self.stateful and self.mode != before.mode:
            return f"its state was kept for {before.mode} mode, and the program now asks for {self.mode}"
        return None


class CheckpointFolder:
    """The folder of one pipeline, opened by the process that runs it."""

    def __init__(self, pipeline: str, folder: StateFolder) -> None:
        self.pipeline = pipeline
        self.folder = folder
        self._lock: IO[str] | None = None

    def open(self) -> None:
        """Make it ours: CheckpointMismatchError when it is another's, PipelineRunningError when it is in use."""
        self.folder.create()
        known = self.folder.read(_PIPELINE)
        if known is None:
            if strange := [name for name in self.folder.names() if not name.startswith(".") and name != LOCK]:
                raise CheckpointMismatchError(
                    f"{self.folder.path} is no checkpoint of pipeline {self.pipeline!r}: it holds "
                    f"{_listed(strange[:5])}. Give checkpoints= an empty folder"
                )
            self.folder.write(_PIPELINE, json.dumps({"format": FORMAT, "pipeline": self.pipeline}) + "\n")
        else:
            self._check_owner(known)
        self._take_lock()

    def _check_owner(self, text: str) -> None:
        try:
            known = json.loads(text)
            owner, form = str(known["pipeline"]), int(known["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatchError(
                f"{self.folder.path}/{_PIPELINE} cannot be read ({error}): it is damaged, or not ours. Restore it, or "
                f"give checkpoints= another folder to begin anew"
            ) from error
        if owner != self.pipeline:
            raise CheckpointMismatchError(
                f"{self.folder.path} is the checkpoint of pipeline {owner!r}, not of {self.pipeline!r}: give each "
                f"pipeline a name, or a folder, of its own"
            )
        if form > FORMAT:
            raise CheckpointMismatchError(
                f"{self.folder.path} was written by a newer Penstock (format {form}; this one knows {FORMAT}): upgrade"
            )

    def _take_lock(self) -> None:
        local = self.folder.local
        if local is None:  # elsewhere nobody can hold a lock: there, targets fence the older run
            return
        lock = open(local / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 it stays open as long as the pipeline runs
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            lock.close()
            raise PipelineRunningError(
                f"pipeline {self.pipeline!r} runs already, in process {holder} with the checkpoint {self.folder.path}: "
                f"stop that one first, or run this one as another version (penstock run --reprocess)"
            ) from None
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def query(self, name: str) -> StateFolder:
        return self.folder.below(name)

    def check_query(self, name: str, fingerprint: Fingerprint) -> None:
        """CheckpointMismatchError when a query like this cannot go on from what is there."""
        folder = self.query(name)
        text = folder.read(_QUERY)
        if text is None:
            folder.create()
            folder.write(_QUERY, json.dumps(asdict(fingerprint), indent=1) + "\n")
            return
        try:
            known = json.loads(text)
            before = Fingerprint(tuple(known["sources"]), tuple(known["stateful"]), str(known["mode"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatchError(f"{folder.path}/{_QUERY} is damaged ({error}): restore it") from error
        conflict = fingerprint.conflict_with(before)
        if conflict is not None:
            raise CheckpointMismatchError(
                f"query {name!r} of pipeline {self.pipeline!r} cannot go on from {folder.path}: {conflict}. Run it "
                f"from the earliest records beside the old one (penstock run --reprocess), give the query another name "
                f"to begin anew, or undo the change"
            )
        if fingerprint != before:
            folder.write(_QUERY, json.dumps(asdict(fingerprint), indent=1) + "\n")


def check_name(name: str, what: str) -> None:
    """Names of pipelines and queries are names of folders and of topics."""
    if not isinstance(name, str) or not name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        raise ConfigError(f"{what} {name!r} is not allowed: use letters, digits, dots, dashes and underscores")
    if name.startswith(".") or len(name) > 100:
        raise ConfigError(f"{what} {name!r} is not allowed: it begins with a dot, or is longer than 100")


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names) if names else "nothing"


def _operators(stateful: tuple[str, ...]) -> str:
    return _listed([each.partition(":")[0] for each in stateful]) if stateful else "no stateful operator"
