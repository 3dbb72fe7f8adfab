"""Pipelines, from the files in their folders. Needs neither PySpark nor Java, and disturbs none that runs.

The files are written by `penstock.spark`: `checkpoint_folder` names the owner of a folder and holds its lock,
`progress` writes the progress and the events of the queries.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from penstock.observe.facts import DEAD, PipelineFacts, QueryFacts
from penstock.streams.url import log_folder

logger = logging.getLogger(__name__)

PIPELINES: Final = "pipelines"
OWNER_FILE: Final = "pipeline.json"
LOCK_FILE: Final = "lock"
PROGRESS_FILE: Final = "progress.json"
HISTORY_FILE: Final = "happenings.jsonl"
LARGEST_FILE_BYTES: Final = 8 * 1024 * 1024
ACTIVE_STATES: Final = frozenset({"starting", "running", "waiting"})
"""States in which a query should make progress."""
_LOCKS: Final = Path("/proc/locks")


@dataclass(frozen=True, slots=True)
class PipelineEvent:
    at_ms: int
    query: str
    what: str
    """started, restarted, failed, finished or stopped"""
    error: str | None
    batch_id: int
    """The last finished batch at that time; -1: none of this run."""


def pipelines_folder(url: str | None) -> Path:
    """Where pipelines keep their checkpoints by default: beside the records of an embedded log, else in the working
    folder."""
    folder = log_folder(url) if url is not None else None
    return folder / PIPELINES if folder is not None else Path(PIPELINES)


def find_pipelines(folder: Path) -> dict[str, PipelineFacts]:
    """All pipelines with a checkpoint in this folder, each version by its name (usage, usage@v2)."""
    try:
        names = sorted(each.name for each in os.scandir(folder) if each.is_dir() and not each.name.startswith("."))
    except OSError:
        return {}
    found = {}
    locks = _held_locks()
    for name in names:
        own = folder / name
        if (own / OWNER_FILE).is_file():
            running = is_running(own, locks)
            found[name] = PipelineFacts(name, str(own), running, tuple(_queries(own, running)))
    return found


def pipeline_events(folder: Path, limit: int = 200) -> list[PipelineEvent]:
    """The events of one pipeline, newest first; `folder` is its `PipelineFacts.folder`."""
    text = _text(Path(folder) / HISTORY_FILE)
    found: list[PipelineEvent] = []
    for line in reversed((text or "").splitlines()):
        if len(found) >= limit:
            break
        try:
            known = json.loads(line)
            event = PipelineEvent(
                at_ms=round(float(known["at"]) * 1000),
                query=str(known["query"]),
                what=str(known["what"]),
                error=None if known.get("error") is None else str(known["error"]),
                batch_id=int(known.get("batch_id", -1)),
            )
        except (ValueError, KeyError, TypeError):
            continue  # cut off by a crash, or written by another version: the other lines are still good
        found.append(event)
    return found


def is_running(folder: Path, locks: Mapping[int, set[int]] | None = None) -> bool:
    """Whether a process runs the pipeline of this folder."""
    return is_held(folder / LOCK_FILE, locks)


def is_held(lock: Path, locks: Mapping[int, set[int]] | None = None) -> bool:
    """Whether a process holds this lock, in which it has written its id.

    Taking the lock, even for an instant, would refuse a program that starts in this instant. So the kernel is asked
    who holds it. Where it cannot tell, the lock is tried only if the process that took it last is still alive.
    """
    try:
        inode = lock.stat().st_ino
        holder = lock.read_text("utf-8", errors="replace").strip()
    except OSError:
        return False
    if not holder.isdecimal():
        return False
    if locks is None:
        locks = _held_locks()
    if locks is not None:
        return int(holder) in locks.get(inode, ())
    return _is_alive(int(holder)) and _is_taken(lock)


def _held_locks() -> Mapping[int, set[int]] | None:
    """The processes that hold a flock, by inode; None where the system does not tell."""
    try:
        lines = _LOCKS.read_text("ascii").splitlines()
    except OSError:
        return None
    found: dict[int, set[int]] = {}
    for line in lines:
        words = line.split()  # 1: FLOCK ADVISORY WRITE 708 00:21:22546 0 EOF
        if len(words) >= 6 and words[1] == "FLOCK" and words[4].lstrip("-").isdecimal():
            found.setdefault(int(words[5].rpartition(":")[2]), set()).add(int(words[4]))
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_taken(lock: Path) -> bool:
    fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _queries(folder: Path, running: bool) -> Iterator[QueryFacts]:
    text = _text(folder / PROGRESS_FILE)
    if text is None:
        return
    try:
        told = json.loads(text)
        known = [each for each in told["queries"] if isinstance(each, dict)]
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read: %s", folder / PROGRESS_FILE, error)
        return
    # The lock covers processes of this machine. Files without a host name were written here.
    is_gone = not running and told.get("host", socket.gethostname()) == socket.gethostname()
    for each in known:
        query = _query(each)
        yield replace(query, state=DEAD) if is_gone and query.state in ACTIVE_STATES else query


def _query(known: Mapping[str, Any]) -> QueryFacts:
    return QueryFacts(
        query=str(known.get("query", "")),
        state=str(known.get("state", "")),
        batch_id=_number(known, "batch_id", -1),
        rows_read=_number(known, "rows_read"),
        rows_written=_number(known, "rows_written"),
        rows_late=_number(known, "rows_late"),
        restarts=_number(known, "restarts"),
        lag=None if known.get("lag") is None else _number(known, "lag"),
        batch_s=_fraction(known, "batch_s"),
        rows_per_s=_fraction(known, "rows_per_s"),
        state_rows=_number(known, "state_rows"),
        watermark=_words(known, "watermark"),
        error=_words(known, "error"),
        at_ms=round(_fraction(known, "at") * 1000),
        batch_at_ms=round(_fraction(known, "batch_at") * 1000) or None,
        error_file=_words(known, "error_file"),
        rows_refused=_number(known, "rows_refused"),
        rows_bad=_number(known, "rows_bad"),
        rows_dropped=_number(known, "rows_dropped"),
        bad_rows=_counts(known, "bad_rows"),
        batch_rows_bad=_number(known, "batch_rows_bad"),
        batch_rows_dropped=_number(known, "batch_rows_dropped"),
        batch_bad_rows=_counts(known, "batch_bad_rows"),
    )


def _number(known: Mapping[str, Any], name: str, otherwise: int = 0) -> int:
    value = known.get(name)
    return int(value) if isinstance(value, int | float) else otherwise


def _counts(known: Mapping[str, Any], name: str) -> Mapping[str, int]:
    value = known.get(name)
    return {str(rule): _number(value, rule) for rule in value} if isinstance(value, Mapping) else {}


def _fraction(known: Mapping[str, Any], name: str) -> float:
    value = known.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _words(known: Mapping[str, Any], name: str) -> str | None:
    value = known.get(name)
    return None if value is None else str(value)


def _text(path: Path) -> str | None:
    """The text of a file; None when it does not exist, cannot be read, or is larger than any that we write."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= LARGEST_FILE_BYTES:
            return path.read_text("utf-8", errors="replace")
        logger.warning("%s is larger than any file that Penstock writes, and was not read", path)
    return None
