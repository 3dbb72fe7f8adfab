"""Limits on what connections may use, each and together. Every limit has a name and a default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from penstock.broker.contracts import Clock, Timer
from penstock.log.configs.setting import whole_number

UNFINISHED_S: Final = 10.0
"""How long a request may hold memory that others wait for before its connection is closed."""


@dataclass(frozen=True, slots=True)
class Limits:
    max_request_bytes: int = whole_number(
        "socket.request.max.bytes", 100 * 1024 * 1024, "the largest request that is accepted"
    )
    other_request_bytes: int = whole_number(
        "other.request.max.bytes",
        8 * 1024 * 1024,
        "the largest request other than Produce that is accepted",
        minimum=1024,
    )
    request_entries: int = whole_number(
        "max.request.entries", 50_000, "how many entries the arrays of one request may hold together"
    )
    queued_bytes: int = whole_number(
        "queued.max.request.bytes",
        128 * 1024 * 1024,
        "the memory of all unfinished requests together; beyond it, only one at a time is read",
    )
    max_connections: int = whole_number(
        "max.connections", 2_000, "how many clients may be connected at one time", dynamic=True
    )
    idle_ms: int = whole_number(
        "connections.max.idle.ms", 600_000, "how long a connection may complete no request before it is closed"
    )
    queued_requests: int = whole_number("queued.max.requests", 100, "how many responses one connection may wait for")
    unsent_bytes: int = whole_number(
        "socket.send.buffer.max.bytes",
        8 * 1024 * 1024,
        "how much is buffered for a client that does not read, before nothing more is read from it",
    )
    fetch_bytes: int = whole_number(
        "fetch.max.bytes", 55 * 1024 * 1024, "the most bytes of records in one Fetch response", minimum=1024
    )
    fetch_sessions: int = whole_number(
        "max.incremental.fetch.session.cache.slots", 1_000, "how many fetch sessions are remembered", minimum=0
    )
    open_files: int = whole_number("log.open.files.max", 512, "how many segment files are kept open")


class MemoryHolder(Protocol):
    @property
    def last_active_s(self) -> float:
        """When it last completed a request."""

    def give_back_unused(self) -> None:
        """Release the memory it holds, if no request is being received."""

    def memory_free(self) -> None:
        """Try again to get the memory it waited for."""

    def close(self, reason: str) -> None: ...


class RequestMemory:
    """The memory of all connections for requests larger than a connection's first buffer.

    When it is used up, a connection that needs more waits. The first waiting one may exceed the limit, so that two
    half-received requests never wait for each other; when it releases its memory, the next one may. A request that
    others wait for must be complete within `UNFINISHED_S`.
    """

    def __init__(self, limit_bytes: int, clock: Clock) -> None:
        self._limit_bytes = limit_bytes
        self._clock = clock
        self.held_bytes = 0
        self._held: dict[MemoryHolder, tuple[int, float]] = {}
        """How many bytes, and since when."""
        self._waiting: dict[MemoryHolder, int] = {}
        """How much more each needs, in the order of waiting."""
        self._exceeding: MemoryHolder | None = None
        self._timer: Timer | None = None

    def take(self, holder: MemoryHolder, size_bytes: int, *, wait: bool) -> bool:
        """Whether the connection may hold this much more now. If not, and it waits, it is told when to try again."""
        if wait and not self._fits(size_bytes):
            for other in list(self._held):
                other.give_back_unused()
        if not self._fits(size_bytes):
            if not wait:
                return False
            if self._exceeding not in (None, holder):
                self._waiting[holder] = size_bytes
                self._watch_oldest()
                return False
            self._exceeding = holder
        held, since_s = self._held.get(holder, (0, self._clock.monotonic_s()))
        self._held[holder] = held + size_bytes, since_s
        self.held_bytes += size_bytes
        return True

    def give_back(self, holder: MemoryHolder) -> None:
        self._waiting.pop(holder, None)
        held, _ = self._held.pop(holder, (0, 0.0))
        self.held_bytes -= held
        if self._exceeding is holder:
            self._exceeding = None
        for waiting, size_bytes in list(self._waiting.items()):
            if waiting in self._waiting and (self._exceeding is None or self._fits(size_bytes)):
                del self._waiting[waiting]
                waiting.memory_free()
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fits(self, size_bytes: int) -> bool:
        return self.held_bytes + size_bytes <= self._limit_bytes

    def _watch_oldest(self) -> None:
        if self._timer is None:
            oldest_s = min(self._receiving_since_s(holder) for holder in self._held)
            delay_s = oldest_s + UNFINISHED_S - self._clock.monotonic_s()
            self._timer = self._clock.call_later(max(0.0, delay_s), self._close_oldest)

    def _close_oldest(self) -> None:
        self._timer = None
        oldest = min(self._held, key=self._receiving_since_s)
        if self._clock.monotonic_s() - self._receiving_since_s(oldest) >= UNFINISHED_S:
            held, _ = self._held[oldest]
            oldest.close(f"an unfinished request holds {held} bytes that others wait for (queued.max.request.bytes)")
            self.give_back(oldest)
        if self._waiting:
            self._watch_oldest()

    def _receiving_since_s(self, holder: MemoryHolder) -> float:
        return max(self._held[holder][1], holder.last_active_s)
