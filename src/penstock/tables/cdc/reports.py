"""What captures report to their stream every few seconds: how far behind they are, and how long there is time."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final

import msgspec

from penstock.abc import Clock
from penstock.model.clock import SystemClock
from penstock.tables.cdc.source import CaptureProgress

REPORTS: Final = "penstock.cdc.all-captures"
"""The topic of the reports, by the names of captures. No capture has this name: it has a dash."""
REQUESTS: Final = "penstock.cdc.all-requests"
"""The topic of requests to captures, by NAME/TABLE: the id of the request, until it is done."""
REPORT_S: Final = 10.0
STOPPED: Final = "stopped"
FAILED: Final = "failed"
WAITING: Final = "waiting"
"""For the database or the stream, to try again."""
_KEPT: Final = 7
"""Reports that rates are computed from: a minute."""
_NEAR_BYTES: Final = 64 * 1024 * 1024
"""A capture that is no further behind keeps up: PostgreSQL keeps some segments of its log anyway."""


class CaptureReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    """The database's URL, without its password."""
    phase: str
    """That of CaptureProgress, or waiting, failed, stopped."""
    at_ms: int
    position: str = ""
    tables: int = 0
    changes: int = 0
    """Since it was started."""
    last_change_ms: int | None = None
    behind_bytes: int | None = None
    room_bytes: int | None = None
    """See CaptureProgress."""
    written_bytes_per_s: float | None = None
    """The database's rate of writes; the highest of the last minute."""
    time_to_loss_s: float | None = None
    """When the room is used up if this capture goes on as in the last minute; None: never, or unknown."""
    error: str | None = None
    is_lost: bool = False
    """Whether the error says that changes are lost."""

    @property
    def time_to_loss_if_dead_s(self) -> float | None:
        if self.room_bytes is None or not self.written_bytes_per_s:
            return None
        return self.room_bytes / self.written_bytes_per_s


class Reporter:
    """Makes the reports of one capture, from its progress."""

    def __init__(
        self,
        name: str,
        source: str,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._name = name
        self._source = source
        self._clock = clock or SystemClock()
        self._samples: deque[tuple[float, str, int | None, float | None]] = deque(maxlen=_KEPT)

    def due(self, progress: CaptureProgress) -> bytes | None:
        """A report, if it is time for one, or if the phase has changed."""
        if self._samples:
            at_s, phase, _, _ = self._samples[-1]
            if phase == progress.phase and self._clock.monotonic_s() - at_s < REPORT_S:
                return None
        return self.report(progress, progress.phase)

    def report(
        self, progress: CaptureProgress, phase: str, error: str | None = None, *, is_lost: bool = False
    ) -> bytes:
        self._samples.append((self._clock.monotonic_s(), phase, progress.lag_bytes, progress.written_bytes_per_s))
        return msgspec.json.encode(
            CaptureReport(
                name=self._name,
                source=self._source,
                phase=phase,
                at_ms=self._clock.wall_ms(),
                position=progress.position,
                tables=len(progress.tables),
                changes=progress.changes,
                last_change_ms=progress.last_change_ms,
                behind_bytes=progress.lag_bytes,
                room_bytes=progress.room_bytes,
                written_bytes_per_s=max((each[3] for each in self._samples if each[3] is not None), default=None),
                time_to_loss_s=self._time_to_loss_s(progress),
                error=error,
                is_lost=is_lost,
            )
        )

    def _time_to_loss_s(self, progress: CaptureProgress) -> float | None:
        if progress.phase != "streaming":
            return progress.time_to_loss_s  # nothing is confirmed: all that is written uses up the room
        recent = list(itertools.takewhile(lambda each: each[1] == "streaming", reversed(self._samples)))
        behind = [(at_s, behind) for at_s, _, behind, _ in recent if behind is not None]
        if progress.room_bytes is None or len(behind) < 2 or behind[0][1] <= _NEAR_BYTES:
            return None
        growth = (behind[0][1] - behind[-1][1]) / max(1e-9, behind[0][0] - behind[-1][0])
        return progress.room_bytes / growth if growth > 0 else None
