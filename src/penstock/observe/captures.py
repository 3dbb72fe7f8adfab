"""Captures of databases, from the reports that they leave in their stream."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection
from typing import Final

import msgspec

from penstock.abc import TopicStream
from penstock.errors import PenstockError
from penstock.model import Pointer
from penstock.observe.facts import DEAD, RUNNING_PHASES, CaptureFacts
from penstock.streams import Connection
from penstock.streams.schemes import scheme_of
from penstock.tables.cdc.capture import MYSQL
from penstock.tables.cdc.reports import FAILED, REPORT_S, REPORTS, STOPPED, CaptureReport

logger = logging.getLogger(__name__)

DEAD_S: Final = 4.5 * REPORT_S
"""A capture that has reported nothing for this long is dead, or cannot reach its stream."""
_AT_ONCE: Final = 1_000
_MOST_READS: Final = 50
"""Reads in one look; what is left is read by the next."""
_WAIT_S: Final = 0.1


class CaptureObserver:
    """Knows the last report of each capture, and reads only what is new. Used by one thread at a time."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._reports: dict[str, CaptureReport] = {}
        self._next: Pointer = 0

    def use(self, connection: Connection) -> None:
        self._connection = connection

    def look(self, topics: Collection[str], now_ms: int) -> dict[str, CaptureFacts]:
        """All captures, by name, given the topics that exist. What cannot be read is as it was."""
        if REPORTS not in topics:
            self._reports, self._next = {}, 0
        elif self._connection is not None:
            try:
                with contextlib.closing(self._connection.open_topic(REPORTS)) as opened:
                    self._read(opened)
            except PenstockError as error:
                logger.info("the reports of captures cannot be read: %s", error)
        return self.known(now_ms)

    def known(self, now_ms: int) -> dict[str, CaptureFacts]:
        return {name: _facts(report, now_ms) for name, report in sorted(self._reports.items())}

    def _read(self, topic: TopicStream) -> None:
        start, end = topic.span(0)
        if end < self._next:  # it was deleted and created again
            self._reports, self._next = {}, start
        self._next = max(self._next, start)
        for _ in range(_MOST_READS):
            if self._next >= end:
                return
            batch = topic.read(0, self._next, _AT_ONCE, _WAIT_S)
            for record in batch.records:
                self._take((record.key or b"").decode(errors="backslashreplace"), record.value)
            self._next = batch.next

    def _take(self, name: str, value: bytes | None) -> None:
        self._reports.pop(name, None)
        if value is None:
            return
        try:
            self._reports[name] = msgspec.json.decode(value, type=CaptureReport)
        except msgspec.DecodeError as error:
            logger.warning("a report of capture %r cannot be read: %s", name, error)


def loss_remedy(source: str) -> str:
    """What keeps a database, given by its URL, from removing changes before they are captured."""
    settings = "binlog_expire_logs_seconds (expire_logs_days)"
    if scheme_of(source) not in MYSQL:
        settings = "max_slot_wal_keep_size, or make room on the database's disk"
    return f"start it if it does not run, or raise {settings}"


def _facts(report: CaptureReport, now_ms: int) -> CaptureFacts:
    age_s = max(0.0, (now_ms - report.at_ms) / 1000)
    has_ended = report.phase in (STOPPED, FAILED)
    phase = DEAD if not has_ended and age_s > DEAD_S else report.phase
    time_to_loss_s = report.time_to_loss_s
    if phase not in RUNNING_PHASES:
        time_to_loss_s = report.time_to_loss_if_dead_s(now_ms)
    return CaptureFacts(
        report.name,
        report.source,
        phase,
        report.at_ms,
        behind_bytes=report.behind_bytes,
        room_bytes=report.room_bytes,
        time_to_loss_s=None if report.is_lost else time_to_loss_s,
        is_lost=report.is_lost,
        tables=report.tables,
        changes=report.changes,
        last_change_ms=report.last_change_ms,
        position=report.position,
        error=report.error,
    )
