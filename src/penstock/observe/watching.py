"""The thread that looks at a system every few seconds."""

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
from penstock.observe.history import History
from penstock.observe.looking import Looker
from penstock.streams import Connection, connect

logger = logging.getLogger(__name__)

Listener = Callable[[Snapshot], None]

REST: Final = 130
"""A look is followed by a rest so many times as long as the processor worked for it in the watching thread, at least.
The Kafka client's threads and the broker work as much again, and more: so all of it takes some two parts in a hundred
of one core, however many topics there are."""
WALL_REST: Final = 2
"""And so many times as long as it took, whoever worked: a machine that has too much to do is not asked for more."""
LONGEST_REST_S: Final = 120.0
FAILURES_BEFORE_NEW: Final = 3
"""After so many looks in a row that failed, it is connected anew."""
FIRST_LOOK: Final = "the first look is under way"
"""The problem of the snapshot that is there before anybody has looked."""
_CLOSING_S: Final = 30.0


class Watch:
    """Looks every `every_s`, keeps the latest snapshot, feeds the history and calls listeners. Any thread may use it.

    `connect` is the URL of the stream, or a function that connects; whichever it is, the connection is made by the
    watching thread, closed by it, and made anew when it is of no use any more. A stream that cannot be reached is no
    error: the latest snapshot says so in `problem`. Where a look is much work, as with thousands of topics, looks are
    further apart: `every_s` is the shortest, and `interval_s` what it is now. `processor_s` tells how long the
    processor has worked for the thread that asks.
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
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:
        if not every_s > 0:
            raise ConfigError(f"every_s={every_s!r}: a time above 0 is needed, such as 5")
        self._connect: Callable[[], Connection] = partial(_connected, connect) if isinstance(connect, str) else connect
        self._history = history
        self._every_s = every_s
        self.interval_s = every_s
        self._clock: Clock = clock or SystemClock()
        self._looker = Looker(
            None, checkpoints=checkpoints, dead_letters=dead_letters, pipelines=pipelines, clock=self._clock
        )
        self._latest = Snapshot(self._clock.wall_ms(), problem=FIRST_LOOK)
        self._connection: Connection | None = None
        self._failures = 0
        self._processor_s = processor_s
        self._rests_s: deque[float] = deque(maxlen=3)
        """What the last looks asked for. The shortest counts: the first look has more to do, and some are unlucky."""
        self._listeners: dict[int, Listener] = {}
        self._next_listener = 0
        self._changed = threading.Condition()
        self._begun = self._done = 0
        """How many looks were begun, and which was the last to end."""
        self._wanted = 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="penstock-watch", daemon=True)

    @property
    def latest(self) -> Snapshot:
        """What was last seen, at once. Before the first look: nothing, with a problem that says so."""
        return self._latest

    @property
    def connection(self) -> Connection | None:
        """The connection in use, for whoever wants to ask more; None while there is none. It may be closed, and another
        one take its place, while you hold it."""
        return self._connection

    def start(self) -> None:
        """Begin to look. Returns at once."""
        self._thread.start()

    def look_now(self, timeout_s: float = 15.0) -> Snapshot:
        """A snapshot that was begun after this call; after `timeout_s`, or when nobody watches, the latest."""
        with self._changed:
            wanted = self._begun + 1
            self._wanted = max(self._wanted, wanted)
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._done >= wanted or self._is_closing or not self._thread.is_alive(), timeout_s
            )
        return self._latest

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call it with each snapshot, in the watching thread: be quick. Gives what takes it off again.

        What it raises is logged, and keeps nobody else from hearing.
        """
        with self._changed:
            number, self._next_listener = self._next_listener, self._next_listener + 1
            self._listeners[number] = listener

        def leave() -> None:
            with self._changed:
                self._listeners.pop(number, None)

        return leave

    def close(self) -> None:
        """End the thread and the connection. The history is not ours. May be called twice."""
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
            self._looker.close()
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
                self._looker.use(connection)
            snapshot = self._looker.look()
        except PenstockError as error:
            self._disconnect()
            snapshot = self._looker.failed(str(error))
        except Exception as error:
            logger.exception("a look failed")
            self._disconnect()
            snapshot = self._looker.failed(f"{type(error).__name__}: {error}")
        self._failures = self._failures + 1 if snapshot.problem is not None else 0
        return snapshot

    def _tell(self, snapshot: Snapshot) -> None:
        if self._history is not None:
            try:
                self._history.add(snapshot)
            except Exception:
                logger.exception("the history could not be kept")
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
            connection.close(timeout=1.0)
        except PenstockError as error:
            logger.info("a connection could not be closed well: %s", error)


def _connected(url: str) -> Connection:
    return connect(url, client_id="penstock-watch", connect_timeout_s=5.0)
