"""Commits the progress of queries as offsets of groups, so that every tool for the lag of groups shows it.

Spark's checkpoint stays the truth: a query continues from there, whatever the offsets of its group are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.abc import GroupAdmin
from penstock.errors import PenstockError
from penstock.model.administration import PartitionId
from penstock.spark.run.plans import PlannedSource

COMMIT_EVERY_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_REQUEST_S: Final = 5.0
_log = logging.getLogger("penstock.spark")

Offsets = Mapping[PartitionId, int]


def offsets_read(planned: Sequence[PlannedSource], reported: Sequence[Mapping[str, Any]], own: set[str]) -> Offsets:
    """The offsets up to which a query has read topics of its pipeline's own stream.

    `reported` are the sources of its progress; `own` are the addresses of that stream. Spark reports a source that a
    query reads twice only once: then nothing is known.
    """
    if len(planned) != len(reported):
        return {}
    offsets: dict[PartitionId, int] = {}
    for source, report in zip(planned, reported, strict=True):
        if source.address not in own:
            continue
        for place, offset in (report["end"] or {}).items():
            topic, _, partition = place.rpartition("/")
            name = topic or (source.topics[0] if len(source.topics) == 1 else "")
            if name:
                offsets[name, int(partition)] = max(offset, offsets.get((name, int(partition)), 0))
    return offsets


@dataclass(slots=True)
class _Group:
    newest: Offsets = field(default_factory=dict)
    committed: Offsets = field(default_factory=dict)
    problem: str = ""


class GroupOffsets:
    """A thread that commits the newest offsets of each query, about once a second, for the group of that query.

    A commit that fails is logged and repeated; no query waits for it.
    """

    def __init__(self, admin: Callable[[float], GroupAdmin], pipeline: str) -> None:
        self._admin = admin
        self._pipeline = pipeline
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-{pipeline}-offsets", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def note(self, query: str, offsets: Offsets) -> None:
        """Commit these offsets soon, unless newer ones come first."""
        if offsets:
            with self._lock:
                self._groups.setdefault(f"{self._pipeline}.{query}", _Group()).newest = dict(offsets)

    def close(self) -> None:
        """Commit what is left, once, and end the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(2 * _REQUEST_S)

    def _run(self) -> None:
        pause_s = COMMIT_EVERY_S
        while not self._closing.wait(pause_s):
            pause_s = COMMIT_EVERY_S if self._commit_all() else min(2 * pause_s, _LONGEST_PAUSE_S)
        self._commit_all()

    def _commit_all(self) -> bool:
        with self._lock:
            due = [(name, each, each.newest) for name, each in self._groups.items() if each.newest != each.committed]
        committed = [self._commit(*each) for each in due]
        return all(committed)

    def _commit(self, name: str, group: _Group, newest: Offsets) -> bool:
        try:
            self._admin(_REQUEST_S).move(name, newest)
        except PenstockError as error:
            if group.problem != str(error):
                _log.warning("the offsets of group %s, the progress of a query, are not committed: %s", name, error)
            group.problem = str(error)
            return False
        group.committed, group.problem = newest, ""
        return True
