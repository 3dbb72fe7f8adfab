"""The polling consumer: the caller takes records, in a thread or an event loop, and reports the outcome of each."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final, Unpack

from penstock.abc import CheckpointStore, Clock, DeadLetters, Stream
from penstock.consuming.defaults import Checkpoints, checkpoints_of_topic, open_checkpoints
from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.handlers import check_several, chosen_topics, handler_of
from penstock.consuming.health import Health
from penstock.consuming.loop.loop import Commit as TopicCommit
from penstock.consuming.options import PollOptions, options_from
from penstock.consuming.pattern_consumer import PatternConsumer
from penstock.consuming.workers.lanes import Lanes, ReservedLanes, Task
from penstock.consuming.workers.pool import finish_task
from penstock.consuming.workers.runners import Report, failed
from penstock.errors import ConfigError, ConnectionClosedError, GuaranteeError
from penstock.model import HistoryEntry, Pointer, Record
from penstock.model.closing import AsyncClosing
from penstock.model.receipt import call_in
from penstock.serde import Topic
from penstock.streams.aliases import current_topic
from penstock.streams.connecting import open_stream
from penstock.streams.declared import provide_topic, tell_difference
from penstock.streams.options import ConnectOptions
from penstock.streams.topic_patterns import DEAD_LETTER_SUFFIX, TopicChoice, TopicPattern, described

_CLOSE_S: Final = 60.0
_COMMIT_S: Final = 30.0
_LOOK_S: Final = 0.2
"""How often a waiting poll looks whether the consumer has ended."""
_NEWS_S: Final = 0.05
"""How long records of several topics are waited for before all are looked at again: a retry may be due."""
Commit = concurrent.futures.Future[Mapping[Any, Pointer]]
"""Resolves to the pointer up to which each partition is saved, by partition or by (topic, partition)."""
OnCommit = Callable[[BaseException | None, Mapping[Any, Pointer]], object]
"""Called after a commit with the error, or None, and the pointer up to which each partition is saved."""


class _Source:
    """One topic of a consumer: what it reads, and the records that were polled and not marked."""

    def __init__(self, topic: Topic[Any] | None, on_ready: Callable[[], None]) -> None:
        """`on_ready` is called when a record has come."""
        self.topic = topic
        """Decodes the values; None if the topic was given by name."""
        self.consumer: HandlerConsumer
        self.polled: dict[tuple[int, Pointer], Task] = {}
        self.ready = threading.Event()
        self.lanes: Lanes
        self._on_ready = on_ready
        self._reserved: ReservedLanes
        self._send_report: Callable[[Report], None]

    def make_workers(self, lanes: Lanes, send_report: Callable[[Report], None]) -> _NoWorkers:
        self.lanes, self._send_report = lanes, send_report
        lanes.on_ready = self._on_ready
        self._reserved = lanes.add_worker()
        self.ready.set()
        return _NoWorkers()

    def take(self, limit: int, wait_s: float) -> list[Record]:
        """At most `limit` records, as soon as there is one."""
        records: list[Record] = []
        while len(records) < limit:
            task = self.lanes.take(0.0 if records else wait_s, self._reserved)
            if task is None:
                break
            record = task.batch[task.low]
            self.polled[record.partition, record.offset] = task
            records.append(record)
        return records

    def finish(self, report: Report) -> None:
        finish_task(report, self.lanes, self._send_report)


class Consumer(AsyncClosing):
    """Poll the records of a topic as a member of a group.

    ```python
    with Consumer("log:./data", "orders", group="billing") as consumer:
        for record in consumer.poll(timeout_s=1.0):
            bill(record)
            consumer.done(record)
    ```
    In an event loop, `async with` and `async for` do the same without blocking it, and so do `poll_async`, `done_async`
    and `commit_async`:

    ```python
    async with Consumer("log:./data", "orders", group="billing") as consumer:
        async for record in consumer:
            await bill(record)
    ```
    `done` finishes a record, in any order. A record that `failed` is delivered again as `retry` says, and becomes a
    dead letter when its attempts are exhausted. Finished records are saved every `commit_interval_s` (0: by `done`
    itself), by `commit`, and on `close`. All methods are thread-safe; threads that poll divide the records.

    `topic` is a name or a Topic, a list of them, or a pattern: `re.compile(r"orders\\..*")` or a `TopicPattern`. Of
    several topics, `poll` takes from each in turn, and limits and commits count for each topic. Topics that match a
    pattern later join in within seconds; deleted ones drop out.

    `client` holds options of `connect`, for a URL. The other options are those of
    `penstock.consuming.options.ConsumerOptions` that do not need a handler.
    """

    def __init__(
        self,
        stream: str | Stream,
        topic: TopicChoice,
        *,
        group: str,
        client: ConnectOptions | None = None,
        checkpoints: str | CheckpointStore | None = None,
        dead_letters: str | DeadLetters | bool | None = True,
        clock: Clock | None = None,
        **options: Unpack[PollOptions],
    ) -> None:
        for name in ("order", "workers", "processes", "chunk", "drain_s", "shared", "tree_timeout_s"):
            if name in options:
                raise ConfigError(f"{name} is an option of handlers; a Consumer returns records in the order they come")
        if options.get("guarantee", "at-least-once") != "at-least-once":
            raise GuaranteeError(
                "a Consumer is at-least-once. For at-most-once, call `commit` before you process; for exactly-once, "
                "use App.handle, which commits the effect and the checkpoint together"
            )
        self._topics = chosen_topics(topic)
        self._pattern = self._topics if isinstance(self._topics, TopicPattern) else None
        self._settings = options_from(order="none", drain_s=0.0, **options)
        check_several(self._topics, self._settings)
        if not isinstance(stream, str | Stream):
            raise ConfigError(f"{stream!r} is not a stream: pass a URL such as 'log:./data', or a `connect` result")
        if client and not isinstance(stream, str):
            raise ConfigError("client is for a URL: pass these options to `connect`, which has been called")
        self._group = group
        self._checkpoints = checkpoints
        self._dead_letters = dead_letters
        self._clock = clock
        self._owned_stream = open_stream(stream, **(client or {})) if isinstance(stream, str) else None
        self._stream: Stream = self._owned_stream if self._owned_stream is not None else stream  # type: ignore[assignment]
        self._news = threading.Event()
        self._waiters: set[Callable[[], None]] = set()
        """Each wakes a `poll_async` that waits."""
        self._sources: dict[str, _Source] = {}
        """By topic. Replaced as a whole when it changes, so that any thread may read it."""
        self._deleted: set[str] = set()
        self._turn = 0
        self._runs: list[HandlerConsumer | PatternConsumer[HandlerConsumer]] = []
        try:
            self._make_consumers()
        except BaseException:
            for consumer in self._runs:
                consumer.abandon()
            if self._owned_stream is not None:
                self._owned_stream.close()
            raise
        self._closed = False
        self._ended = False
        self._woken = False
        for consumer in self._runs:
            consumer.start()

    def _make_consumers(self) -> None:
        if isinstance(self._topics, TopicPattern):
            probe = self._make_consumer(self._topics.label, None)  # finds options that are not possible
            probe.abandon()
            self._sources = {}
            excluded = {self._dead_letters} if isinstance(self._dead_letters, str) else set()
            found = PatternConsumer(
                self._stream,
                self._topics,
                probe.handler,
                self._make_matching,
                self._load,
                is_excluded=lambda name: name in excluded or current_topic(self._stream, name) != name,
                ends=self._settings.end is not None,
                on_left=self._forget,
            )
            self._runs.append(found)
            return
        for topic in self._topics:
            name = str(topic)
            consumer = self._make_consumer(name, topic if isinstance(topic, Topic) else None)
            self._runs.append(consumer)
            if isinstance(topic, Topic) and consumer.topic_stream.topic == name:
                tell_difference(name, topic.partitions, provide_topic(self._stream, name, topic.partitions))
            else:
                consumer.topic_stream.partitions()  # UnknownTopicError now rather than later

    def _make_matching(self, name: str, stale: Checkpoints) -> HandlerConsumer:
        assert self._pattern is not None
        self._deleted.discard(name)
        return self._make_consumer(name, self._pattern.topic(name), stale)

    def _load(self, name: str) -> Checkpoints:
        opened = open_checkpoints(self._checkpoints, self._stream, self._runs[0].handler, self._settings)
        return checkpoints_of_topic(opened, self._group, name)

    def _make_consumer(self, name: str, topic: Topic[Any] | None, stale: Checkpoints | None = None) -> HandlerConsumer:
        letters = f"{name}{DEAD_LETTER_SUFFIX}" if self._dead_letters is True else self._dead_letters or None
        if letters == name:
            raise ConfigError(f"dead_letters={name!r} is the topic that this consumer reads: choose another topic")
        source = _Source(topic, self._on_ready)
        source.consumer = HandlerConsumer(
            self._stream,
            name,
            handler_of(lambda record: None, name, name="Consumer"),
            group=self._group,
            options=self._settings,
            checkpoints=self._checkpoints,
            dead_letters=letters,
            clock=self._clock,
            make_workers=source.make_workers,
            stale=stale,
        )
        self._sources = {**self._sources, source.consumer.topic_stream.topic: source}
        return source.consumer

    def _forget(self, topic: str) -> None:
        """Drop a deleted topic: its records can no longer be marked."""
        self._deleted.add(topic)
        self._sources = {name: each for name, each in self._sources.items() if name != topic}

    def poll(self, timeout_s: float | None = None, limit: int = 500) -> list[Record]:
        """Return at most `limit` records, as soon as there are any.

        Returns an empty list after `timeout_s` seconds, when woken or closed, or when `end` is reached (`has_ended`).
        Raises the error that ended the consumer, and ConnectionClosedError once it is closed.
        """
        self._check_open()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        records: list[Record] = []
        while not self._closed:
            left_s = _left(deadline_s)
            if self._look(records, limit, max(0.0, left_s)) or left_s <= 0:
                break
        return records

    async def poll_async(self, timeout_s: float | None = None, limit: int = 500) -> list[Record]:
        """Poll without blocking the event loop. A cancelled call has taken no record."""
        self._check_open()
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        records: list[Record] = []
        changed = asyncio.Event()
        wake = functools.partial(call_in, asyncio.get_running_loop(), changed.set)
        self._waiters.add(wake)
        try:
            await asyncio.sleep(0)  # a loop over records that are there already must not keep other tasks waiting
            while not self._closed:
                changed.clear()
                left_s = _left(deadline_s)
                # Nothing may be awaited between taking records and returning them: cancelling would lose them.
                if self._look(records, limit, 0.0) or left_s <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._until_retry(left_s)):
                        await changed.wait()
        finally:
            self._waiters.discard(wake)
        return records

    def __iter__(self) -> Iterator[Record]:
        """Yield records until the consumer is closed or reaches `end`.

        Asking for the next record marks the last one done, unless the loop has marked it. A record whose loop ended
        early stays unmarked: mark it, or it is delivered again after `close`.
        """
        while not self._closed and not self._ended:
            for record in self.poll(limit=1):
                yield record
                if self._is_pending(record):
                    self.done(record)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate asynchronously. Cancelling the loop marks nothing."""
        while not self._closed and not self._ended:
            for record in await self.poll_async(limit=1):
                yield record
                if self._is_pending(record):
                    await self.done_async(record)

    @property
    def has_ended(self) -> bool:
        """Whether `poll` found everything up to `end` finished. Always False without an `end`."""
        return self._ended

    def done(self, record: Record) -> None:
        """Mark the record as finished. With commit_interval_s=0 it is saved when this returns."""
        source = self._finish(record)
        if source is not None and not self._settings.commit_interval_s:
            _wait_for(source.consumer.commit(), _COMMIT_S)

    async def done_async(self, record: Record) -> None:
        """Mark like `done`, without blocking the event loop. Cancelling it does not take the mark back."""
        source = self._finish(record)
        if source is not None and not self._settings.commit_interval_s:
            await _wait_for_async(source.consumer.commit(), _COMMIT_S)

    def failed(self, record: Record, error: BaseException) -> None:
        """Report that processing failed: the record is delivered again later, or becomes a dead letter."""
        source, task = self._pop_task(record)
        if source is not None and task is not None:
            source.finish(failed(Report(task, task.low, calls=1), error))

    def decode(self, record: Record) -> Any:
        """The record's value, decoded by the serde of its topic."""
        source = self._sources.get(record.topic)
        if source is not None:
            return record.value if source.topic is None else source.topic.decode(record.value)
        return record.value if self._pattern is None else self._pattern.topic(record.topic).decode(record.value)

    @property
    def topics(self) -> list[str]:
        """The topics that it reads now."""
        return sorted(self._sources)

    def commit(self, wait: bool = True, timeout_s: float = _COMMIT_S, on_commit: OnCommit | None = None) -> Commit:
        """Save finished records and, unless `wait` is False, wait until they are saved.

        The returned future resolves to the pointer up to which each assigned partition is saved, or to the error, such
        as a FencedError for a partition that moved to another member. With a list of topics or a pattern, the keys are
        (topic, partition). With `wait`, that error is raised here, and
        TimeoutError after `timeout_s`. `on_commit(error, pointers)` is called in another thread.
        """
        commit = self._commit()
        if on_commit is not None:
            commit.add_done_callback(lambda done: _call_back(on_commit, done))
        if wait:
            _wait_for(commit, timeout_s)
        return commit

    async def commit_async(self, timeout_s: float = _COMMIT_S) -> Mapping[Any, Pointer]:
        """Commit without blocking the event loop. Returns the pointer of each assigned partition.

        Saving continues when the wait is cancelled.
        """
        saved: Mapping[Any, Pointer] = await _wait_for_async(self._commit(), timeout_s)
        return saved

    def _commit(self) -> Commit:
        commits = {topic: source.consumer.commit() for topic, source in self._sources.items()}
        saved: Commit = concurrent.futures.Future()
        if not commits:
            saved.set_result({})
            return saved
        has_several = self._has_several

        def settle(done: TopicCommit) -> None:
            if not all(each.done() for each in commits.values()):
                return
            with lock:
                if saved.done():
                    return
                errors = [each.exception() for each in commits.values()]
                error = next((each for each in errors if each is not None), None)
                if error is not None:
                    saved.set_exception(error)
                    return
                pointers = {
                    (topic, partition) if has_several else partition: pointer
                    for topic, each in commits.items()
                    for partition, pointer in each.result().items()
                }
                saved.set_result(pointers)

        lock = threading.Lock()
        for commit in commits.values():
            commit.add_done_callback(settle)
        return saved

    def seek(self, partition: int, pointer: Pointer, *, topic: str | None = None) -> None:
        """Continue at `pointer` in an assigned partition. Polled records of it can no longer be marked. `topic` is
        needed if there are several."""
        self._source(topic).consumer.seek(partition, pointer)

    def wakeup(self) -> None:
        """Make a waiting `poll` or `poll_async` return at once. Thread-safe."""
        self._woken = True
        self._wake_waiters()

    def health(self, topic: str | None = None) -> Health:
        """Whether the consumer makes progress, and the problems if it does not. `topic` is needed if there are
        several: see `topics`."""
        return self._source(topic).consumer.health()

    def history(
        self, partition: int, pointer: Pointer | None = None, limit: int = 1000, *, topic: str | None = None
    ) -> list[HistoryEntry]:
        """The history of a record, or of a partition, oldest first. `topic` is needed if there are several."""
        return list(self._source(topic).consumer.history(partition, pointer, limit))

    def close(self) -> None:
        """Save finished records, leave the group and release everything. Unfinished records go to another member."""
        if self._closed:
            return
        self._closed = True
        self._wake_waiters()
        for consumer in self._runs:
            consumer.stop()
        with contextlib.ExitStack() as stack:
            if self._owned_stream is not None:
                stack.callback(self._owned_stream.close)
            for consumer in self._runs:
                stack.callback(consumer.wait, _CLOSE_S)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the consumer of {described(self._topics)} is closed")

    def _look(self, records: list[Record], limit: int, wait_s: float) -> bool:
        """Take records, waiting for the first one. Returns whether there is a reason for `poll` to return."""
        if self._woken:
            self._woken = False
            return True
        if not [consumer for consumer in self._runs if not consumer.wait(0.0)]:  # raises what ended one of them
            self._ended = True
            return True
        self._take(records, limit, wait_s)
        return bool(records)

    def _until_retry(self, left_s: float) -> float:
        """How long to wait until a failed record is due again, at most `left_s`."""
        for source in self._sources.values():
            if source.ready.is_set():
                due_s = source.lanes.next_due_s()
                left_s = left_s if due_s is None else min(left_s, due_s - source.lanes.now_s())
        return max(0.0, left_s)

    def _on_ready(self) -> None:
        """Wake those who poll: a record has come."""
        self._news.set()
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        for wake in tuple(self._waiters):
            wake()

    @property
    def _has_several(self) -> bool:
        return self._pattern is not None or len(self._topics) > 1  # type: ignore[arg-type]

    def _source(self, topic: str | None) -> _Source:
        sources = self._sources
        if topic is None and not self._has_several:
            (source,) = sources.values()
            return source
        if topic is None:
            raise ConfigError(f"this consumer reads {described(self._topics)}: say of which topic, topic=...")
        if topic not in sources:
            raise ConfigError(f"this consumer does not read topic {topic!r}; it reads {', '.join(self.topics)}")
        return sources[topic]

    def _take(self, records: list[Record], limit: int, wait_s: float) -> None:
        """Add records that have come. Of several topics, each gives its part of `limit` in turn."""
        self._news.clear()
        if not self._has_several:
            source = self._source(None)
            if source.ready.wait(wait_s):
                records += source.take(limit, wait_s)
            return
        sources = [source for source in self._sources.values() if source.ready.is_set()]
        self._turn += 1
        first = self._turn % max(1, len(sources))
        sources = sources[first:] + sources[:first]
        part = max(1, limit // max(1, len(sources)))
        while sources and len(records) < limit:
            for source in list(sources):
                taken = source.take(min(part, limit - len(records)), 0.0)
                records += taken
                if not taken:
                    sources.remove(source)
                if len(records) == limit:
                    break
        if not records:
            self._news.wait(min(wait_s, _NEWS_S))

    def _is_pending(self, record: Record) -> bool:
        source = self._sources.get(record.topic)
        return source is not None and (record.partition, record.offset) in source.polled

    def _finish(self, record: Record) -> _Source | None:
        """Report the record as finished. Returns its source; None when the consumer is closed, or the topic deleted,
        so that it cannot be saved."""
        source, task = self._pop_task(record)
        if source is None or task is None:
            return None
        source.finish(Report(task, task.high, calls=1))
        return source

    def _pop_task(self, record: Record) -> tuple[_Source | None, Task | None]:
        source = self._sources.get(record.topic)
        task = None if source is None else source.polled.pop((record.partition, record.offset), None)
        if task is None and not self._closed and record.topic not in self._deleted:
            raise ConfigError(f"{record.place} is not pending: it was marked before, or `poll` never returned it")
        return source, task


def _wait_for(commit: concurrent.futures.Future[Any], timeout_s: float) -> None:
    """Wait until a commit is saved, and raise its error."""
    concurrent.futures.wait([commit], timeout_s)
    if not commit.done():
        raise _not_saved(timeout_s)
    commit.result()


async def _wait_for_async(commit: concurrent.futures.Future[Any], timeout_s: float) -> Any:
    """Wait like `_wait_for`, without blocking the event loop. Returns what the commit resolves to."""
    waited = asyncio.wrap_future(commit)
    await asyncio.wait({waited}, timeout=timeout_s)
    if not waited.done():
        raise _not_saved(timeout_s)
    return waited.result()


def _left(deadline_s: float | None) -> float:
    return _LOOK_S if deadline_s is None else min(_LOOK_S, deadline_s - time.monotonic())


def _not_saved(timeout_s: float) -> TimeoutError:
    return TimeoutError(f"the checkpoint was not saved within {timeout_s:g} s; saving continues")


def _call_back(on_commit: OnCommit, done: Commit) -> None:
    error = done.exception()
    on_commit(error, {} if error is not None else done.result())


class _NoWorkers:
    """Stands in for workers: the user of the consumer does the work."""

    def start(self) -> None: ...

    def replace_one(self) -> None: ...

    def stop(self, timeout_s: float) -> int:
        return 0
