"""Keep rows as fresh as their topic, in a thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.abc import Feed, Feeding, HasAdmin, Stream, TopicStream
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    NotAllowedError,
    OffsetOutOfRangeError,
    PenstockError,
    StreamError,
    UnknownTopicError,
)
from penstock.model import Batch, Pointer
from penstock.model.clock import SystemClock
from penstock.streams.capability import capability
from penstock.streams.reading import RoundRobinFeed
from penstock.tables.table.rows import Identity, Rows, TableChange

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 5_000
_SLICE_S: Final = 0.2
CHECK_S: Final = 5.0
"""How often to look whether the topic is the same one, and has new partitions."""
_SAVE_FRESH_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_UNCOMPACTED: Final = "delete"


def settings_of(stream: Stream, topic: str) -> dict[str, str | None]:
    """The settings of the topic; none if the stream has no such settings, or does not show them to this client."""
    administered = capability(stream, HasAdmin)
    if administered is None:
        return {}
    try:
        return {each.name: each.value for each in administered.admin().config(topic)}
    except (NotAllowedError, ConfigError) as error:
        logger.debug("the settings of topic %r are not known: %s", topic, error)
        return {}


def milliseconds_in(settings: Mapping[str, str | None], name: str) -> int | None:
    """A setting in milliseconds; None if it is not known."""
    text = settings.get(name)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def feed_of(opened: TopicStream) -> Feed:
    return opened.feed() if isinstance(opened, Feeding) else RoundRobinFeed(opened)


class Follower:
    """Reads one topic into rows.

    It starts where the rows end. It starts over, with no rows, if that is no longer possible: if the topic was deleted
    and created again, if records expired before they were read, or if it was away for so long that compaction may have
    removed the deletion of a row.
    """

    def __init__(
        self,
        stream: Stream,
        topic: str,
        rows: Rows,
        *,
        serve: Callable[[], None],
        withhold: Callable[[PenstockError | None], None],
        tell: Callable[[Sequence[TableChange]], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """`serve` is called when the rows have caught up, `withhold` when they must not be looked up any more: with the
        reason, or with None while they are read again. `tell` is called with changes if they are wanted."""
        self.topic = topic
        self.problem: str | None = None
        """Why the rows are not being brought up to date; None while they are."""
        self.advanced = threading.Condition()
        """Notified when the rows have moved on, and when that has ended."""
        self.error: PenstockError | None = None
        """Why following has ended; None while it has not."""
        self._stream = stream
        self._rows = rows
        self._serve = serve
        self._withhold = withhold
        self._tell = tell
        self._is_wanted = is_wanted
        self._clock = SystemClock()
        self._opened = stream.open_topic(topic)
        self._feed: Feed | None = None
        self._next: dict[int, Pointer] = {}
        self._ends: dict[int, Pointer] = {}
        """What must have been read before the rows are served; empty once they are."""
        self._is_serving = False
        self._was_deleted = False
        self._checked_s = 0.0
        self._seen: tuple[int, dict[int, Pointer]] = (0, {})
        """When the ends of the topic were looked up last, and what they were."""
        self._retention_ms: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-table-{topic}", daemon=True)

    def start(self) -> None:
        """Begin to read. Raises what makes that impossible, such as UnknownTopicError."""
        try:
            settings = settings_of(self._stream, self.topic)
            if settings.get("cleanup.policy") == _UNCOMPACTED:
                logger.warning(
                    "topic %r is not compacted: rows that do not change are lost when their records expire. To keep "
                    "them, run: penstock topics alter %s --config cleanup.policy=compact",
                    self.topic,
                    self.topic,
                )
            self._retention_ms = milliseconds_in(settings, "delete.retention.ms")
            self._begin()
        except BaseException:
            self._close_feed()
            self._opened.close()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Stop reading, and wait until that is done."""
        self._stopping.set()
        feed = self._feed
        if feed is not None:
            feed.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._opened.close()

    def next(self) -> dict[int, Pointer]:
        """Where the rows end: all records before these pointers were applied."""
        return dict(self._next)

    def ends(self) -> dict[int, Pointer]:
        """Where the topic ends now."""
        return {partition: self._opened.span(partition)[1] for partition in self._opened.partitions()}

    def wait_until(self, wanted: Mapping[int, Pointer], timeout_s: float) -> None:
        """Return once everything before these pointers was applied. Raises TimeoutError, or why that cannot happen."""
        deadline_s = time.monotonic() + timeout_s
        with self.advanced:
            while True:  # ends at the deadline
                if self.error is not None:
                    raise self.error
                missing = {each: end for each, end in wanted.items() if self._next.get(each, -1) < end}
                if self._is_serving and not missing:
                    return
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    why = f": {self.problem}" if self.problem else ""
                    raise TimeoutError(f"the table of {self.topic!r} did not catch up within {timeout_s:g} s{why}")
                self.advanced.wait(left_s)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            try:
                if self._feed is None:
                    self._begin()
                self._read()
                pause_s = _FIRST_PAUSE_S
                continue
            except UnknownTopicError as error:
                self._was_deleted = True  # if it is created again, all rows are read again
                self._set_problem(str(error))
                self._stop_serving(error)
            except (OffsetOutOfRangeError, BrokerUnavailableError, StreamError) as error:
                self._set_problem(str(error))
            except PenstockError as error:
                self._end(error)
                return
            except Exception as error:  # the rows would silently grow stale
                logger.exception("the table of %r has ended", self.topic)
                self._end(StreamError(f"the table of {self.topic!r} has ended: {type(error).__name__}: {error}"))
                return
            self._close_feed()
            self._stopping.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._close_feed()

    def _begin(self) -> None:
        """Compare the topic with the rows, and open a feed where they end."""
        identity, partitions = self._look()
        rows = self._rows
        spans = {partition: self._opened.span(partition) for partition in partitions}
        reason = self._why_again(identity, spans)
        if reason is not None:
            if rows.identity is not None:
                logger.warning("the rows of topic %r are read again from the beginning: %s", self.topic, reason)
            self._stop_serving(None)
            rows.restart(identity)
            self._was_deleted = False
        self._next = {each: rows.pointers().get(each, start) for each, (start, _) in spans.items()}
        if not self._is_serving:
            self._ends = {partition: end for partition, (_, end) in spans.items()}
        self._feed = feed_of(self._opened)
        for partition, pointer in self._next.items():
            self._feed.add(partition, pointer)
        self._checked_s = time.monotonic()
        self._set_problem(None)
        self._serve_if_caught_up()

    def _look(self) -> tuple[Identity, Sequence[int]]:
        administered = capability(self._stream, HasAdmin)
        if administered is None:
            return Identity(self.topic, None), self._opened.partitions()
        described = administered.admin().describe(self.topic)
        return Identity(self.topic, described.id), described.partitions

    def _why_again(self, identity: Identity, spans: Mapping[int, tuple[Pointer, Pointer]]) -> str | None:
        """Why the rows cannot be continued; None if they can."""
        rows = self._rows
        if rows.identity != identity or self._was_deleted:
            return "the topic was deleted and created again, or the name leads to another one"
        for partition, pointer in rows.pointers().items():
            if partition not in spans:
                return f"partition {partition} is gone"
            start, end = spans[partition]
            if not start <= pointer <= end:
                what = "expired before they were read" if pointer < start else "are gone: the log was restored"
                return f"records of partition {partition} {what}"
        retention_ms = self._retention_ms
        away_ms = self._clock.wall_ms() - rows.fresh_ms
        if rows.pointers() and retention_ms is not None and away_ms > retention_ms:
            return (
                f"they were up to date {away_ms / 1000:.0f} s ago, and the topic keeps deletions for "
                f"{retention_ms / 1000:g} s (delete.retention.ms)"
            )
        return None

    def _read(self) -> None:
        feed = self._feed
        assert feed is not None
        batches = feed.poll(_AT_ONCE, _SLICE_S)
        if batches:
            self._apply(batches)
        if time.monotonic() - self._checked_s >= CHECK_S:
            self._check()

    def _apply(self, batches: Sequence[Batch]) -> None:
        filled = [batch for batch in batches if len(batch)]
        changes: Sequence[TableChange] = ()
        if filled:
            changes = self._rows.apply(filled, self._clock.wall_ms(), wanted=self._is_wanted())
        with self.advanced:
            for batch in batches:
                self._next[batch.partition] = batch.next
            self.advanced.notify_all()
        self._serve_if_caught_up()
        if changes:
            self._tell(changes)

    def _check(self) -> None:
        """Look whether the topic is still the same, and read new partitions."""
        identity, partitions = self._look()
        self._checked_s = time.monotonic()
        if identity != self._rows.identity:
            self._close_feed()
            self._begin()
            return
        assert self._feed is not None
        for partition in set(partitions) - self._next.keys():
            start, _ = self._opened.span(partition)
            self._feed.add(partition, start)
            self._next[partition] = start
        now_ms = self._clock.wall_ms()
        if self._is_serving and now_ms - self._rows.fresh_ms > _SAVE_FRESH_S * 1000:
            seen_ms, ends = self._seen
            if ends and all(self._next.get(each, -1) >= end for each, end in ends.items()):
                self._rows.touch(seen_ms)
            self._seen = now_ms, self.ends()

    def _serve_if_caught_up(self) -> None:
        if self._is_serving or any(self._next[each] < end for each, end in self._ends.items()):
            return
        self._rows.touch(self._clock.wall_ms())
        self._serve()
        with self.advanced:
            self._is_serving = True
            self.advanced.notify_all()

    def _stop_serving(self, error: PenstockError | None) -> None:
        with self.advanced:
            self._is_serving = False
        self._withhold(error)

    def _end(self, error: PenstockError) -> None:
        self._withhold(error)
        self._close_feed()
        with self.advanced:
            self.error = error
            self.problem = str(error)
            self._is_serving = False
            self.advanced.notify_all()

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None and problem != self.problem:
            logger.warning("the table of %r is not brought up to date, and will retry: %s", self.topic, problem)
        self.problem = problem

    def _close_feed(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            with contextlib.suppress(PenstockError):
                feed.close()
