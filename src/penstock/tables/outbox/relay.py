"""`Relay`: committed events of an outbox, in order, into a stream."""

from __future__ import annotations

import contextlib
import logging
import random
import re
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from penstock.abc import Stream
from penstock.errors import ConfigError, PenstockError
from penstock.model.observing import OBSERVED
from penstock.streams.connecting import connect
from penstock.streams.declared import provide_topic
from penstock.tables.cdc.capture import is_passing
from penstock.tables.cdc.delivery import Delivery, open_delivery
from penstock.tables.outbox.storage import Event, EventId, OutboxStorage, open_outbox_storage, unpacked

logger = logging.getLogger(__name__)

KIND: Final = "outbox"
DELIVERED: Final = "delivered"
"""The key of the ids that were delivered last. They are removed from the outbox before others are delivered."""

_NAME: Final = re.compile(r"[a-z0-9_]{1,50}")
_MOST_BYTES: Final = 8 * 1024 * 1024
_LOOK_S: Final = 5.0
"""How often a relay that is behind looks how many events wait."""
_FIRST_POLL_S: Final = 0.01
_LONGEST_POLL_S: Final = 0.25
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0


class Relay:
    """Delivers the events of the outbox in the database `url` to `stream`, by the order of their ids.

    Where the stream has transactions (`log:`, `kafka:`), each event is delivered exactly once: a batch and its ids are
    one transaction of the stream, and the next batch is read after the rows with these ids are removed. Elsewhere, a
    crash between the batch and its ids delivers it again. A second relay with the same name and stream takes over from
    the first. An outbox has one relay.

    `batch_rows` are delivered together. With `keep`, delivered rows stay in the table, with the time in
    `delivered_ms`. `partitions` are those of topics that do not exist and do not declare a number. `checkpoints` is
    where the ids are kept for a stream without transactions.
    """

    def __init__(
        self,
        url: str,
        stream: str | Stream,
        *,
        name: str = "outbox",
        batch_rows: int = 1_000,
        keep: bool = False,
        partitions: int = 1,
        checkpoints: str | None = None,
    ) -> None:
        for option, number in {"batch_rows": batch_rows, "partitions": partitions}.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"{option}={number!r} must be an integer >= 1")
        if _NAME.fullmatch(name) is None:
            raise ConfigError(f"name={name!r} must have 1 to 50 of the characters a-z, 0-9 and _")
        self.url = url
        self.name = name
        self.delivered = 0
        """Events that this object has delivered."""
        self.guarantee = ""
        self.waiting: int | None = None
        """Committed events that were not delivered at the last look; None before the first one."""
        self.oldest_ms: int | None = None
        """When the first of them was sent; None if there is none."""
        self.problem: str | None = None
        """Why events are not being delivered; None while they are."""
        self._look_due_s = 0.0
        self._stream_given = stream
        self._batch_rows = batch_rows
        self._keep = keep
        self._partitions = partitions
        self._checkpoints = checkpoints
        self._stopping = threading.Event()
        self._owner: str | None = None
        self._has_started = False
        self._provided: set[str] = set()

    def run(self, *, once: bool = False) -> None:
        """Deliver until `stop`; with `once`, until the outbox is empty.

        While the database or the stream is unavailable, it is retried, unless they were when it started. Raises
        OvertakenError if another relay with this name has taken over.
        """
        pause_s = _FIRST_PAUSE_S
        OBSERVED.enter(self)
        try:
            while True:  # ends when stopped, or with an error that another attempt would not change
                before = self.delivered
                try:
                    self._run_once(once)
                    return
                except PenstockError as error:
                    if not self._has_started or not is_passing(error):
                        raise
                    if self.delivered != before:
                        pause_s = _FIRST_PAUSE_S
                    self.problem = str(error)
                    logger.warning("the relay %r will be retried: %s", self.name, error)
                if self._stopping.wait(random.uniform(pause_s / 2, pause_s)):
                    return
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            OBSERVED.leave(self)

    def stop(self) -> None:
        """Make `run` return once the present batch is delivered. Thread-safe."""
        self._stopping.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run_once(self, once: bool) -> None:
        with contextlib.ExitStack() as closing:
            storage = open_outbox_storage(self.url)
            closing.callback(storage.close)
            given = self._stream_given
            stream = closing.enter_context(connect(given)) if isinstance(given, str) else given
            self._provided.clear()
            delivery: Delivery
            delivery, self._owner = open_delivery(
                stream, self.name, (), self._partitions, self._checkpoints, self._owner, kind=KIND
            )
            closing.callback(delivery.close)
            self.guarantee = str(delivery.guarantee)
            self._has_started = True
            saved = delivery.load().get(DELIVERED)
            if saved:
                # An earlier relay died after it had delivered them, and maybe before it had removed them.
                storage.remove(msgspec.json.decode(saved, type=list[EventId]), keep=self._keep)
            self._deliver(storage, stream, delivery, once)

    def _deliver(self, storage: OutboxStorage, stream: Stream, delivery: Delivery, once: bool) -> None:
        poll_s = _FIRST_POLL_S
        while not self._stopping.is_set():
            events = storage.oldest(self._batch_rows, _MOST_BYTES)
            if not events:
                self.waiting, self.oldest_ms, self.problem = 0, None, None
                if once or self._stopping.wait(poll_s):
                    return
                poll_s = min(2 * poll_s, _LONGEST_POLL_S)
                continue
            poll_s = _FIRST_POLL_S
            if time.monotonic() >= self._look_due_s:
                self.waiting, self.oldest_ms = storage.waiting()
                self._look_due_s = time.monotonic() + _LOOK_S
            self._provide(stream, events)
            ids = [(event[0], event[1]) for event in events]
            rows = [(topic, value, key, partition) for _, _, topic, key, value, partition, _, _ in events]
            headers = {place: unpacked(event[7]) for place, event in enumerate(events) if event[7] is not None}
            delivery.deliver(rows, {DELIVERED: msgspec.json.encode(ids)}, headers=headers)
            storage.remove(ids, keep=self._keep)
            self.delivered += len(events)
            self.problem = None

    def _provide(self, stream: Stream, events: Sequence[Event]) -> None:
        for _, _, topic, _, _, _, partitions, _ in events:
            if topic not in self._provided:
                provide_topic(stream, topic, partitions or self._partitions)
                self._provided.add(topic)
