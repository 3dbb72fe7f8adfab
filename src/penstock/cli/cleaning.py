"""Cleaning the checkpoint folders of pipelines: old versions, what is left of retired ones, and dropped queries.

Never removed: a version that runs, the current version, to which aliases point, one that is being reprocessed or waits
to be switched to, the newest versions of a pipeline, anything changed within the retention, folders that are no
checkpoints of pipelines or whose version the stream does not know, and single files of a checkpoint.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from penstock.errors import PipelineRunningError
from penstock.model.text import duration_text
from penstock.observe.facts import PipelineFacts
from penstock.observe.pipelines import ACTIVE_STATES, find_pipelines
from penstock.spark.run.checkpoint_folder import LOCK
from penstock.spark.versions.names import FIRST, by_age
from penstock.spark.versions.register import GONE, Register, Version, current_of

_QUERY_FILE: Final = "query.json"
_NEEDED: Final[Mapping[str, str]] = {
    "current": "readers get its results",
    "reprocessing": "it is being reprocessed",
    "ready": "it waits to be switched to",
}


@dataclass(frozen=True, slots=True)
class Looked:
    """The checkpoint of a version, or of one query of it, and whether it may be removed."""

    pipeline: str
    version: str
    query: str | None
    """None: the whole version."""
    folder: str
    size_bytes: int
    changed_at_s: float
    """When a file in it was changed last, in seconds since 1970."""
    verdict: Literal["remove", "keep"]
    why: str

    @property
    def is_removable(self) -> bool:
        return self.verdict == "remove"


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept although nothing needs it."""

    versions: int
    """So many of the newest versions of each pipeline."""
    unchanged_s: float
    """What was changed more recently."""


def look(folder: Path, register: Register, retention: Retention, now_s: float) -> list[Looked]:
    """Judge every version in this folder, and, in those that are kept, the queries that the last run did not have."""
    found = find_pipelines(folder)
    versions: dict[str, list[str]] = {}
    for name in found:
        pipeline, version = _parted(name)
        versions.setdefault(pipeline, []).append(version)
    looked: list[Looked] = []
    for pipeline, there in sorted(versions.items()):
        entries = {each.version: each for each in register.versions(pipeline)}
        alive = [each for each in there if each not in entries or entries[each].state not in GONE]
        newest = sorted(alive, key=by_age)[-retention.versions :] if retention.versions else []
        for version in sorted(there, key=by_age):
            facts = found[pipeline if version == FIRST else f"{pipeline}@{version}"]
            size_bytes, changed_at_s = _measured(Path(facts.folder))
            age_s = now_s - changed_at_s
            reason = _needed(facts, version, entries)
            state = entries[version].state if version in entries else "current"
            if reason is None and state not in GONE and version in newest:
                reason = f"it is one of the newest {retention.versions}"
            if reason is None and age_s < retention.unchanged_s:
                reason = f"it was changed {duration_text(age_s)} ago"
            why = reason or (
                "it was retired" if state in GONE else f"an old version, unchanged for {duration_text(age_s)}"
            )
            verdict: Literal["remove", "keep"] = "remove" if reason is None else "keep"
            looked.append(Looked(pipeline, version, None, facts.folder, size_bytes, changed_at_s, verdict, why))
            if reason is not None:
                looked += _dropped_queries(facts, pipeline, version, retention, now_s)
    return looked


def _needed(facts: PipelineFacts, version: str, entries: Mapping[str, Version]) -> str | None:
    """Why a version must be kept, whatever its age; None if it may be removed."""
    if facts.is_running:
        return "it runs"
    if any(query.state in ACTIVE_STATES for query in facts.queries):
        return "it may run on another host"
    entry = entries.get(version)
    if entry is not None:
        return _NEEDED.get(entry.state)
    if version == current_of(entries.values()):
        return _NEEDED["current"]
    return "the stream does not know this version: it may be of another stream"


def _dropped_queries(
    facts: PipelineFacts, pipeline: str, version: str, retention: Retention, now_s: float
) -> Iterator[Looked]:
    """The checkpoints of queries that the last run of the pipeline did not have, as after they were renamed."""
    known = {query.query for query in facts.queries}
    if facts.is_running or not known or any(query.state in ACTIVE_STATES for query in facts.queries):
        return
    for name in sorted(os.listdir(facts.folder)):
        own = Path(facts.folder) / name
        if name in known or not (own / _QUERY_FILE).is_file():
            continue
        size_bytes, changed_at_s = _measured(own)
        age_s = now_s - changed_at_s
        is_old = age_s >= retention.unchanged_s
        why = (
            f"the last run had no query {name}; " + ("unchanged for " if is_old else "changed ") + duration_text(age_s)
        )
        yield Looked(
            pipeline,
            version,
            name,
            str(own),
            size_bytes,
            changed_at_s,
            "remove" if is_old else "keep",
            why if is_old else f"{why} ago",
        )


def remove(looked: Looked, register: Register) -> None:
    """Remove a checkpoint. Safe to repeat after an interruption.

    Its lock is held meanwhile, so that it cannot be started, and a version is retired before its checkpoint goes: else
    the next run of it would begin at the earliest records and write its results again. Raises PipelineRunningError when
    it has been started, and PipelineError when it has become the current version.
    """
    folder = Path(looked.folder)
    own = folder if looked.query is None else folder.parent
    with _locked(own, looked):
        if looked.query is None and _is_registered(looked, register):
            register.retire(looked.pipeline, looked.version)
        doomed = folder.with_name(f".removed-{folder.name}-{os.getpid()}")
        os.rename(folder, doomed)  # a part of a checkpoint must never be taken for the whole
        shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Finish what an interrupted removal has left."""
    for pattern in (".removed-*", "*/.removed-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path)


def _is_registered(looked: Looked, register: Register) -> bool:
    return any(each.version == looked.version for each in register.versions(looked.pipeline))


@contextlib.contextmanager
def _locked(own: Path, looked: Looked) -> Iterator[None]:
    with open(own / LOCK, "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineRunningError(
                f"version {looked.version} of pipeline {looked.pipeline!r} has been started: its checkpoint is kept"
            ) from None
        yield


def _measured(folder: Path) -> tuple[int, float]:
    """The size of the files in a folder, and when one of them was changed last. The lock file does not count."""
    size_bytes, changed_at_s = 0, 0.0
    for path, _, files in os.walk(folder):
        for name in files:
            if name == LOCK and path == str(folder):
                continue
            with contextlib.suppress(FileNotFoundError):  # a running pipeline removes files
                facts = os.lstat(os.path.join(path, name))
                size_bytes, changed_at_s = size_bytes + facts.st_size, max(changed_at_s, facts.st_mtime)
    return size_bytes, changed_at_s or folder.stat().st_mtime


def _parted(name: str) -> tuple[str, str]:
    pipeline, _, version = name.partition("@")
    return pipeline, version or FIRST


def total_bytes(looked: Sequence[Looked]) -> int:
    """The size of what may be removed."""
    return sum(each.size_bytes for each in looked if each.is_removable)
