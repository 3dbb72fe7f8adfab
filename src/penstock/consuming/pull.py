"""The consumer that is asked: records are taken from it, and it is told what became of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from penstock.abc import CheckpointStore, Clock, DeadLetters, Streams
from penstock.consuming.handlers import check_topic, handler_of
from penstock.consuming.handling import HandlerConsumer
from penstock.consuming.health import Health
from penstock.consuming.lanes import Hand, Lanes, Task
from penstock.consuming.options import options_from
from penstock.consuming.runners import Report, failed
from penstock.consuming.workers import settle
from penstock.errors import ConfigError, ConnectionClosedError, GuaranteeError
from penstock.model import Happening, Pointer, Record
from penstock.serde import Topic
from penstock.streams.connecting import open_streams

_CLOSE_S: Final = 60.0


class Consumer:
    """Takes records of a topic, as a member of a group, one poll after the other.

    ```python
    with Consumer("log:./data", "orders", group="billing") as consumer:
        for record in consumer.poll(timeout=1.0):
            bill(record)
            consumer.done(record)
    ```
    A record is finished when `done` was called for it, in whatever order; one that `failed` comes again, as `retry`
    says, and becomes a dead letter when that is exhausted. What is finished is saved every `commit_interval_s`, with
    `commit`, and on `close`. Any thread may call anything; threads that poll share the records.

    Options are those of `penstock.consuming.options.ConsumerOptions` which make sense without a handler.
    """

    def __init__(
        self,
        streams: str | Streams,
        topic: str | Topic[Any],
        *,
        group: str,
        checkpoints: str | CheckpointStore | None = None,
        dead_letters: str | DeadLetters | bool | None = True,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        for name in ("order", "workers", "processes", "chunk", "drain_s"):
            if name in options:
                raise ConfigError(f"{name} is for handlers: here you take the records yourself, in the order they come")
        if options.get("guarantee", "at-least-once") != "at-least-once":
            raise GuaranteeError(
                "a Consumer gives at-least-once. For at-most-once, `commit` before you begin; for exactly-once, use "
                "App.handle, which keeps effect and checkpoint together"
            )
        check_topic(topic)
        self._topic = topic
        name = str(topic)
        settings = options_from(order="none", drain_s=0.0, **options)
        self._ours = open_streams(streams) if isinstance(streams, str) else None
        opened: Streams = self._ours if self._ours is not None else streams  # type: ignore[assignment]
        letters = f"{name}.dlq" if dead_letters is True else dead_letters or None
        if letters == name:
            raise ConfigError(f"its dead letters would go to {name!r}, which it reads itself: give them another place")
        self._in_hand: dict[tuple[int, Pointer], Task] = {}
        self._lanes: Lanes | None = None
        self._hand: Hand | None = None
        self._tell: Callable[[Report], None] | None = None
        try:
            self._consumer = HandlerConsumer(
                opened,
                topic,
                handler_of(lambda record: None, name, name="Consumer"),
                group=group,
                options=settings,
                checkpoints=checkpoints,
                dead_letters=letters,
                clock=clock,
                make_workers=self._as_workers,
            )
            self._consumer.stream.partitions()  # UnknownTopicError now rather than later
        except BaseException:
            if self._ours is not None:
                self._ours.close()
            raise
        self._ready = threading.Event()
        self._closed = False
        self._ended = False
        self._woken = False
        self._consumer.start()

    def poll(self, timeout: float | None = None, limit: int = 500) -> list[Record]:
        """At most `limit` records, as soon as there are some; none after `timeout` seconds, when it is woken or closed
        meanwhile, or when it has come to its `end`: see `has_ended`.

        Raises what keeps the consumer from going on, and ConnectionClosedError once it was closed.
        """
        if self._closed:
            raise ConnectionClosedError(f"this consumer of topic {str(self._topic)!r} has been closed")
        deadline_s = None if timeout is None else time.monotonic() + timeout
        records: list[Record] = []
        while not records and not self._closed:
            if self._woken:
                self._woken = False
                break
            left_s = 0.2 if deadline_s is None else min(0.2, deadline_s - time.monotonic())
            if self._consumer.wait(0.0):  # raises what ended it
                self._ended = True
                break
            self._take(records, limit, max(0.0, left_s))
            if left_s <= 0:
                break
        return records

    def __iter__(self) -> Iterator[Record]:
        """Records, on and on, until it is closed, or has come to its `end`. One is done when the next is asked for."""
        while not self._closed and not self._ended:
            for record in self.poll():
                yield record
                self.done(record)

    @property
    def has_ended(self) -> bool:
        """Whether `poll` has found that everything up to `end` is finished. Without an `end`, that never happens."""
        return self._ended

    def done(self, record: Record) -> None:
        """The record is finished."""
        task = self._given_out(record)
        if task is not None and self._lanes is not None and self._tell is not None:
            settle(Report(task, task.high, calls=1), self._lanes, self._tell)

    def failed(self, record: Record, error: BaseException) -> None:
        """The record could not be handled: it comes again later, or goes to the dead letters."""
        task = self._given_out(record)
        if task is not None and self._lanes is not None and self._tell is not None:
            settle(failed(Report(task, task.low, calls=1), error), self._lanes, self._tell)

    def decode(self, record: Record) -> Any:
        """The value of a record, as what the topic carries."""
        return self._topic.decode(record.value) if isinstance(self._topic, Topic) else record.value

    def commit(self, wait: bool = True, timeout: float = 30.0) -> None:
        """Save what is finished, and wait for that unless told otherwise. TimeoutError when it takes too long."""
        if not self._consumer.commit(timeout if wait else None):
            raise TimeoutError(f"the checkpoint was not saved within {timeout:g} s; it is still being tried")

    def seek(self, partition: int, pointer: Pointer) -> None:
        """Go on elsewhere in a partition that is ours; what is in hand of it is forgotten."""
        self._consumer.seek(partition, pointer)

    def wakeup(self) -> None:
        """Have a `poll` that waits return at once. From any thread."""
        self._woken = True

    def health(self) -> Health:
        """Whether it gets on, and if not, why."""
        return self._consumer.health()

    def history(self, partition: int, pointer: Pointer | None = None, limit: int = 1000) -> list[Happening]:
        """What happened to a record, or in a partition, oldest first."""
        return list(self._consumer.history(partition, pointer, limit))

    def close(self) -> None:
        """Save what is finished, leave the group, and let go of everything. What is in hand comes to somebody else."""
        if self._closed:
            return
        self._closed = True
        self._consumer.stop()
        try:
            self._consumer.wait(_CLOSE_S)
        finally:
            if self._ours is not None:
                self._ours.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, records: list[Record], limit: int, wait_s: float) -> None:
        if not self._ready.wait(wait_s):
            return
        assert self._lanes is not None
        assert self._hand is not None
        while len(records) < limit:
            task = self._lanes.take(0.0 if records else wait_s, self._hand)
            if task is None:
                return
            record = task.batch[task.low]
            self._in_hand[record.partition, record.offset] = task
            records.append(record)

    def _given_out(self, record: Record) -> Task | None:
        task = self._in_hand.pop((record.partition, record.offset), None)
        if task is None and not self._closed:
            raise ConfigError(f"{record.place} is not in hand: it was settled before, or never came from `poll`")
        return task

    def _as_workers(self, lanes: Lanes, tell: Callable[[Report], None]) -> _Nobody:
        self._lanes, self._tell = lanes, tell
        self._hand = lanes.hand()
        self._ready.set()
        return _Nobody()


class _Nobody:
    """The workers of a consumer whose user does the work."""

    def start(self) -> None: ...

    def replace_one(self) -> None: ...

    def stop(self, timeout_s: float) -> int:
        return 0
