"""The checkpoint folder of a pipeline: its owner, its lock, and the fingerprint of each query.

    CHECKPOINTS/PIPELINE/pipeline.json      the pipeline that owns the folder
                         lock               held by the process that runs it (on local disks)
                         runs/              the processes that run it (on other stores: `run_records`)
                         QUERY/query.json   the fingerprint of the query that the state belongs to
                         QUERY/spark/       Spark's own checkpoint
                         QUERY/error.txt    the last error with its tracebacks
                         QUERY/staging/     rows that are not published yet
                         QUERY/side/        late rows that are not delivered yet

A program change that is incompatible with the state is refused here, before Spark reads anything.
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
from penstock.spark.run.plans import Operator, describe_stateful_operators, sources, stateful_operators, what_changed
from penstock.spark.run.run_records import RunRecords
from penstock.spark.run.state_folder import StateFolder
from penstock.spark.source.stream_reader import SourceOffset
from penstock.streams.url import log_folder

FORMAT: Final = 1
_PIPELINE: Final = "pipeline.json"
_QUERY: Final = "query.json"
LOCK: Final = "lock"
_DEFAULT: Final = "pipelines"


def default_checkpoints(url: str) -> str:
    """A folder beside the records of an embedded log; else one in the working folder."""
    folder = log_folder(url)
    return str(folder / _DEFAULT) if folder is not None else str(Path(_DEFAULT).absolute())


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The properties of a query that its checkpoint depends on."""

    sources: tuple[str, ...]
    stateful: tuple[str, ...]
    """Each operator that Spark itself calls stateful, with a digest of its output columns."""
    mode: str
    operators: tuple[Operator, ...] | None = None
    """A description of each stateful operator; None in a checkpoint of an early Penstock."""
    spark: str = ""
    """The version of Spark that described `operators`: another version may print the same operator differently."""

    @classmethod
    def of(cls, frame: DataFrame, mode: str) -> Fingerprint:
        operators = tuple(describe_stateful_operators(frame))
        version = frame.sparkSession.version
        return cls(tuple(sources(frame)), tuple(stateful_operators(frame)), mode, operators, version)

    @classmethod
    def from_json(cls, text: str) -> Fingerprint:
        """Raises ValueError, KeyError or TypeError if the text is damaged."""
        known = json.loads(text)
        operators = known.get("operators")
        return cls(
            tuple(known["sources"]),
            tuple(known["stateful"]),
            str(known["mode"]),
            None if operators is None else tuple(operators),
            str(known.get("spark", "")),
        )

    def conflict_with(self, before: Fingerprint) -> str | None:
        """Why this query cannot continue from a checkpoint of `before`; None if it can."""
        if not _can_follow(before.sources, self.sources):
            return f"it read {_listed(before.sources)}, and now reads {_listed(self.sources)}"
        if self.operators is not None and before.operators is not None and self.spark == before.spark:
            changed = what_changed(before.operators, self.operators)
            if changed is not None:
                return changed
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
    """The checkpoint folder of one pipeline."""

    def __init__(self, pipeline: str, folder: StateFolder) -> None:
        self.pipeline = pipeline
        self.folder = folder
        self._lock: IO[str] | None = None
        self.records = RunRecords(folder)
        """Who runs it, where `folder` is on a store without locks."""

    def open(self) -> None:
        """Claim and lock the folder.

        Raises CheckpointMismatchError if it belongs to something else, PipelineRunningError if it is in use.
        """
        self.folder.create()
        known = self.folder.read(_PIPELINE)
        if known is None:
            if strange := [name for name in self.folder.names() if not name.startswith(".") and name != LOCK]:
                raise CheckpointMismatchError(
                    f"{self.folder.path} is not a checkpoint of pipeline {self.pipeline!r}: it contains "
                    f"{_listed(strange[:5])}. Set checkpoints= to an empty folder"
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
                f"{self.folder.path}/{_PIPELINE} cannot be read ({error}): it is damaged, or not Penstock's. Restore "
                f"it, or set checkpoints= to another folder to start over"
            ) from error
        if owner != self.pipeline:
            raise CheckpointMismatchError(
                f"{self.folder.path} is the checkpoint of pipeline {owner!r}, not of {self.pipeline!r}: give each "
                f"pipeline its own name or folder"
            )
        if form > FORMAT:
            raise CheckpointMismatchError(
                f"{self.folder.path} was written by a newer Penstock (format {form}; this one knows {FORMAT}): upgrade"
            )

    def _take_lock(self) -> None:
        local = self.folder.local
        if local is None:  # other file systems have no locks: there, targets fence the older run
            self.records.begin()
            return
        lock = open(local / LOCK, "a+", encoding="utf-8")  # noqa: SIM115 open as long as the pipeline runs
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            lock.close()
            raise PipelineRunningError(
                f"pipeline {self.pipeline!r} is already running in process {holder} with the checkpoint "
                f"{self.folder.path}: stop it first, or run this one as another version (penstock run --reprocess)"
            ) from None
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        self._lock = lock

    def close(self, *, ended: bool = True) -> None:
        """Release the folder. `ended`: whether nothing of this run uses it any more."""
        if ended:
            self.records.end()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def query(self, name: str) -> StateFolder:
        return self.folder.below(name)

    def check_query(self, name: str, fingerprint: Fingerprint) -> None:
        """Raise CheckpointMismatchError if a query with this fingerprint cannot continue from the checkpoint."""
        folder = self.query(name)
        text = folder.read(_QUERY)
        if text is None:
            folder.create()
            folder.write(_QUERY, json.dumps(asdict(fingerprint), indent=1) + "\n")
            return
        try:
            before = Fingerprint.from_json(text)
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatchError(f"{folder.path}/{_QUERY} is damaged ({error}): restore it") from error
        conflict = fingerprint.conflict_with(before)
        if conflict is not None:
            raise CheckpointMismatchError(
                f"query {name!r} of pipeline {self.pipeline!r} cannot continue from {folder.path}: {conflict}. Run it "
                f"from the earliest records beside the old one (penstock run --reprocess), rename the query to start "
                f"over, or undo the change"
            )
        if fingerprint != before:
            folder.write(_QUERY, json.dumps(asdict(fingerprint), indent=1) + "\n")


def check_name(name: str, what: str) -> None:
    """Raise ConfigError unless the name can be part of the names of folders and topics."""
    if not isinstance(name, str) or not name or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        raise ConfigError(f"{what} {name!r} is not allowed: use letters, digits, dots, dashes and underscores")
    if name.startswith(".") or len(name) > 100:
        raise ConfigError(f"{what} {name!r} is not allowed: it begins with a dot or is longer than 100 characters")


def _can_follow(before: tuple[str, ...], now: tuple[str, ...]) -> bool:
    """Whether a query of sources can continue with others. Lists and patterns of topics may change: the source itself
    refuses a checkpoint that belongs to none of its topics."""
    return len(before) == len(now) and all(
        was == is_now or (is_now.startswith("topics ") and was.startswith(("topic ", "topics ")))
        for was, is_now in zip(before, now, strict=True)
    )


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names) if names else "nothing"


def _operators(stateful: tuple[str, ...]) -> str:
    return _listed([each.partition(":")[0] for each in stateful]) if stateful else "no stateful operator"


def batch_offsets(checkpoint: StateFolder, batch_id: int) -> dict[tuple[str, int], tuple[int, int]]:
    """By topic and partition: the first offset of a batch, and the one after its last.

    Sources that are not topics are left out. A partition whose begin is unknown, as in the first batch of Spark's own
    Kafka connector, begins at 0.
    """
    begun: dict[tuple[str, int], int] = {}
    for source in _sources(checkpoint, batch_id - 1):
        begun.update(source.pointers)
    found = {}
    for source in _sources(checkpoint, batch_id):
        for place, end in source.pointers.items():
            first = source.begun.get(place, begun.get(place, 0))
            if first < end:
                found[place] = (first, end)
    return found


def _sources(checkpoint: StateFolder, batch_id: int) -> list[SourceOffset]:
    """The ends of a batch in its sources: the lines after the version and Spark's own settings."""
    text = checkpoint.read(f"offsets/{batch_id}") if batch_id >= 0 else None
    if text is None:
        return []
    found = []
    for line in text.splitlines()[2:]:
        try:
            written = json.loads(line)
            found.append(SourceOffset.from_json(written))
        except (ValueError, AttributeError, TypeError):
            continue  # no topic: a folder of files, a rate, or no offset yet
    return found
