"""What captures report to their stream every few seconds: how far behind they are, and how long there is time."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
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
"""A capture that is no further behind keeps up: databases keep some segments of their log anyway."""


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
    kept_until_ms: int | None = None
    """See CaptureProgress."""
    time_to_loss_s: float | None = None
    """When changes are lost if this capture goes on as in the last minute; None: never, or unknown."""
    error: str | None = None
    is_lost: bool = False
    """Whether the error says that changes are lost."""

    def time_to_loss_if_dead_s(self, now_ms: int) -> float | None:
        """When changes are lost if the capture has done nothing since this report."""
        if self.kept_until_ms is not None:
            return max(0.0, (self.kept_until_ms - now_ms) / 1000)
        if self.room_bytes is None or not self.written_bytes_per_s:
            return None
        return max(0.0, self.room_bytes / self.written_bytes_per_s - max(0.0, (now_ms - self.at_ms) / 1000))


@dataclass(frozen=True, slots=True)
class _Sample:
    """What rates are computed from."""

    at_s: float
    phase: str
    behind_bytes: int | None
    written_bytes_per_s: float | None
    kept_until_ms: int | None


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
        self._samples: deque[_Sample] = deque(maxlen=_KEPT)

    def due(self, progress: CaptureProgress) -> bytes | None:
        """A report, if it is time for one, or if the phase has changed."""
        if self._samples:
            last = self._samples[-1]
            if last.phase == progress.phase and self._clock.monotonic_s() - last.at_s < REPORT_S:
                return None
        return self.report(progress, progress.phase)

    def report(
        self, progress: CaptureProgress, phase: str, error: str | None = None, *, is_lost: bool = False
    ) -> bytes:
        self._samples.append(
            _Sample(
                self._clock.monotonic_s(),
                phase,
                progress.lag_bytes,
                progress.written_bytes_per_s,
                progress.kept_until_ms,
            )
        )
        rates = [each.written_bytes_per_s for each in self._samples if each.written_bytes_per_s is not None]
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
                written_bytes_per_s=max(rates, default=None),
                kept_until_ms=progress.kept_until_ms,
                time_to_loss_s=self._time_to_loss_s(progress),
                error=error,
                is_lost=is_lost,
            )
        )

    def _time_to_loss_s(self, progress: CaptureProgress) -> float | None:
        if progress.phase != "streaming":
            return progress.time_to_loss_s  # nothing is confirmed: all that is written uses up the room
        recent = list(itertools.takewhile(lambda each: each.phase == "streaming", reversed(self._samples)))
        if progress.lag_bytes is None or progress.lag_bytes <= _NEAR_BYTES:
            return None
        if progress.kept_until_ms is not None:
            kept = [(each.at_s, each.kept_until_ms / 1000) for each in recent if each.kept_until_ms is not None]
            gained, passed_s = kept[0][1] - kept[-1][1], kept[0][0] - kept[-1][0]
            left_s = max(0.0, progress.kept_until_ms / 1000 - self._clock.wall_ms() / 1000)
            return left_s * passed_s / (passed_s - gained) if passed_s > gained else None
        behind = [(each.at_s, each.behind_bytes) for each in recent if each.behind_bytes is not None]
        if progress.room_bytes is None or len(behind) < 2:
            return None
        growth = (behind[0][1] - behind[-1][1]) / max(1e-9, behind[0][0] - behind[-1][0])
        return progress.room_bytes / growth if growth > 0 else None
