"""The thread that takes a snapshot every few seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from penstock.abc import CheckpointStore, Clock
from penstock.errors import ConfigError, PenstockError
from penstock.model.clock import SystemClock, wait_on
from penstock.observe.facts import Snapshot
from penstock.observe.history.history import History
from penstock.observe.stream_observer import TIMEOUT_S, StreamObserver
from penstock.streams import Connection
from penstock.streams.connecting import connect_for

logger = logging.getLogger(__name__)

Listener = Callable[[Snapshot], None]

REST: Final = 130
"""A look is followed by a pause of at least this many times its CPU time in the watching thread. The Kafka client's
threads and the broker use as much again or more, so everything takes some two percent of one core, however many topics
there are."""
WALL_REST: Final = 2
"""And this many times its duration: an overloaded machine is asked less often."""
LONGEST_REST_S: Final = 120.0
FAILURES_BEFORE_NEW: Final = 3
"""After this many failed looks in a row, the connection is renewed."""
FIRST_LOOK: Final = "the first look is under way"
"""The problem of the snapshot before the first look."""
_CLOSING_S: Final = 30.0


class Watch:
    """Takes a snapshot every `every_s`, keeps the latest, feeds the history and calls listeners. Thread-safe.

    `connect` is the URL of the stream, or a function that connects; the watching thread opens the connection, closes
    it, and renews it when it is broken. An unreachable stream is not an error: the latest snapshot says so in
    `problem`. Where a look is much work, as with thousands of topics, looks are further apart: `every_s` is the
    shortest interval, `interval_s` the current one. `timeout_s` limits each answer of a broker. `processor_s` returns
    the CPU time of the calling thread.
    """

    def __init__(
        self,
        connect: str | Callable[[], Connection],
        history: History | None = None,
        every_s: float = 5.0,
        *,
        checkpoints: str | CheckpointStore | None = None,
        dead_letters: Sequence[str] = (),
        pipelines: Path | None = None,
        clock: Clock | None = None,
        timeout_s: float = TIMEOUT_S,
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:
        if not every_s > 0:
            raise ConfigError(f"every_s={every_s!r} must be a positive number, such as 5")
        self._connect: Callable[[], Connection] = partial(_connected, connect) if isinstance(connect, str) else connect
        self._history = history
        self._every_s = every_s
        self.interval_s = every_s
        self._clock: Clock = clock or SystemClock()
        self._observer = StreamObserver(
            None,
            checkpoints=checkpoints,
            dead_letters=dead_letters,
            pipelines=pipelines,
            clock=self._clock,
            timeout_s=timeout_s,
        )
        self._latest = Snapshot(self._clock.wall_ms(), problem=FIRST_LOOK)
        self._connection: Connection | None = None
        self._failures = 0
        self._processor_s = processor_s
        self._rests_s: deque[float] = deque(maxlen=3)
        """The pauses that the last looks asked for. The shortest counts: the first look has more to do than others."""
        self._listeners: dict[int, Listener] = {}
        self._next_listener = 0
        self._changed = threading.Condition()
        self._begun = self._done = 0
        """How many looks have started, and which was the last to end."""
        self._wanted = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-watch", daemon=True)

    @property
    def latest(self) -> Snapshot:
        """The latest snapshot, at once. Before the first look it is empty, with a problem that says so."""
        return self._latest

    @property
    def connection(self) -> Connection | None:
        """The connection in use; None while there is none. It may be closed and replaced while you hold it."""
        return self._connection

    def start(self) -> None:
        """Start the thread. Returns at once."""
        self._thread.start()

    def look_now(self, timeout_s: float = 15.0) -> Snapshot:
        """A snapshot that was started after this call; after `timeout_s`, or when not watching, the latest."""
        with self._changed:
            wanted = self._begun + 1
            self._wanted = max(self._wanted, wanted)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._done >= wanted or self._is_closing or not self._thread.is_alive(), timeout_s
            )
        return self._latest

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call it with each snapshot, in the watching thread: be quick. Returns a function that removes it.

        What it raises is logged, and does not affect other listeners.
        """
        with self._changed:
            number, self._next_listener = self._next_listener, self._next_listener + 1
            self._listeners[number] = listener

        def leave() -> None:
            with self._changed:
                self._listeners.pop(number, None)

        return leave

    def close(self) -> None:
        """End the thread and close the connection, but not the history. May be called twice."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)

    def _run(self) -> None:
        try:
            while not self._is_closing:
                with self._changed:
                    self._begun += 1
                    number = self._begun
                worked_s = self._processor_s()
                snapshot = self._look()
                self._latest = snapshot
                self._tell(snapshot)
                self._rests_s.append(max(REST * (self._processor_s() - worked_s), WALL_REST * snapshot.took_s))
                self.interval_s = max(self._every_s, min(*self._rests_s, LONGEST_REST_S))
                with self._changed:
                    self._done = number
                    self._changed.notify_all()
                self._rest()
        finally:
            self._observer.close()
            self._disconnect()

    def _rest(self) -> None:
        until_s = self._clock.monotonic_s() + self.interval_s
        with self._changed:
            while not self._is_closing and self._wanted <= self._begun:
                left_s = until_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return
                wait_on(self._clock, self._changed, left_s)

    def _look(self) -> Snapshot:
        try:
            if self._failures >= FAILURES_BEFORE_NEW:
                self._disconnect()
            if self._connection is None:
                connection = self._connect()
                self._connection = connection
                self._observer.use(connection)
            snapshot = self._observer.look()
        except PenstockError as error:
            self._disconnect()
            snapshot = self._observer.failed(str(error))
        except Exception as error:
            logger.exception("a look failed")
            self._disconnect()
            snapshot = self._observer.failed(f"{type(error).__name__}: {error}")
        self._failures = self._failures + 1 if snapshot.problem is not None else 0
        return snapshot

    def _tell(self, snapshot: Snapshot) -> None:
        if self._history is not None:
            try:
                self._history.add(snapshot)
            except Exception:
                logger.exception("the history could not be written")
        for listener in list(self._listeners.values()):
            try:
                listener(snapshot)
            except Exception:
                logger.exception("a listener failed")

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._failures = 0
        if connection is None:
            return
        try:
            connection.close(timeout_s=1.0)
        except PenstockError as error:
            logger.info("a connection could not be closed cleanly: %s", error)


def _connected(url: str) -> Connection:
    return connect_for(url, client_id="penstock-watch", connect_timeout_s=5.0)
