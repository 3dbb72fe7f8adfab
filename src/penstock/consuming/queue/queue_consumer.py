"""Consumers of queues: a handler for the records of a queue, or of a topic that a group divides record by record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.abc import CheckpointStore, Clock, CountingWaiting, DeadLetters, Feature, Queue, Stream, TopicStream
from penstock.consuming.defaults import Opened, open_checkpoints
from penstock.consuming.handlers import Handler
from penstock.consuming.health import Health, PartitionHealth, health_of
from penstock.consuming.lease_groups.membership import member_name
from penstock.consuming.loop.dedup import Deduplication
from penstock.consuming.loop.failures import FailureHandler, LetterStore
from penstock.consuming.loop.loop import Loop
from penstock.consuming.loop_consumer import LoopConsumer
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.queue.settlement import DeliverySettler, QueueFeed
from penstock.consuming.queue.stream_queue import StreamQueue
from penstock.consuming.stages import Stages
from penstock.consuming.topic_wait import wait_for_topic
from penstock.consuming.workers.lanes import Lanes
from penstock.consuming.workers.processes import check_importable
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import ConfigError, GuaranteeError
from penstock.model import CheckpointKey, DeadLetter, Guarantee, HistoryEntry, Ordering, Pointer
from penstock.model.clock import SystemClock
from penstock.streams.aliases import current_topic
from penstock.streams.capability import pointer_text_of

DEFAULT_VISIBILITY_S: Final = 30.0
_PREFETCH: Final = 2
"""How many records are held for each worker, unless `in_flight` says otherwise."""
_STREAM_PREFETCH: Final = 20
_STREAM_PREFETCH_FAST: Final = 500
"""The same for a queue on a stream, where receiving costs a change of the checkpoint: with slow and with fast
handlers."""
_UNUSED: Final = (
    "batch", "snapshot", "end", "idempotency_key", "idempotency_window_s", "partition_in_flight", "revoke_s", "chunk",
    "assignor", "session_timeout_s", "on_assigned", "on_revoked", "on_lost",
)  # fmt: skip
"""Options of streams, which mean nothing where records are delivered one by one."""
_STREAM_ONLY: Final = ("shared", "start", "on_expired")


def queue_options(
    what: str, given: Mapping[str, Any], *, order: object, guarantee: object, workers: int, is_shared: bool
) -> dict[str, Any]:
    """The options of a handler whose records are delivered one by one, with the defaults that differ from a stream's.

    ConfigError or GuaranteeError for options that do not work there. `is_shared`: a topic with shared=True.
    """
    how = "shared=True" if is_shared else "a queue"
    if order not in (None, Ordering.NONE, "none"):
        raise ConfigError(f"{what}: {how} gives up order: omit order")
    if guarantee not in (Guarantee.AT_LEAST_ONCE, "at-least-once"):
        raise GuaranteeError(
            f"{what}: {how} is at-least-once: a record that is not settled in time is delivered again. Omit guarantee"
        )
    if not is_shared and given.get("checkpoints") is not None:
        raise ConfigError(f"{what}: a queue keeps its own progress: omit checkpoints")
    for name in _UNUSED if is_shared else (*_UNUSED, *_STREAM_ONLY):
        if given.get(name):
            raise ConfigError(f"{what}: {name} does not work with {how}: omit it")
    prefetch = (_STREAM_PREFETCH_FAST if is_shared else _PREFETCH) * workers if isinstance(workers, int) else 1
    return {"order": Ordering.NONE, "in_flight": max(1, prefetch)}


class QueueConsumer(LoopConsumer):
    """Call a handler for the records of a queue: settle what is done, let the queue deliver again what failed.

    `stream` is where outputs and dead letters in topics go; None: nowhere.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        *,
        group: str,
        options: ConsumerOptions,
        stream: Stream | None = None,
        dead_letters: str | DeadLetters | None = None,
        rejects: bool = False,
        clock: Clock | None = None,
        stages: Stages | None = None,
        owns_queue: bool = False,
    ) -> None:
        """`rejects`: records that are given up go to the queue's own dead letters, instead of `dead_letters`."""
        super().__init__(stream, handler, group=group, options=options, clock=clock, stages=stages)
        if options.end is not None:
            raise ConfigError(f"{handler.name}: a queue has no end: run the app without one")
        if options.processes:
            check_importable(handler)
        self.queue = queue
        self._owns_queue = owns_queue
        self.dead_letters: LetterStore | None = None
        if rejects:
            if Feature.DEAD_LETTERS not in queue.features:
                raise ConfigError(
                    f"{handler.name}: pass dead_letters='sqlite:./dead-letters.db', or False to stop instead: queue "
                    f"{queue.name!r} has no {Feature.DEAD_LETTERS} for records that cannot be handled"
                )
            self.dead_letters = RejectedByQueue()
        elif dead_letters is not None:
            self.dead_letters = open_dead_letters(dead_letters, stream)
        self._settler = DeliverySettler(queue, group, member_name(), handler.name, self._clock, self.counts)

    @property
    def stale(self) -> int:
        """Records that were settled too late: they are handled again."""
        return self._settler.stale

    def abandon(self) -> None:
        super().abandon()
        if self._owns_queue:
            self.queue.close()

    def health(self) -> Health:
        """Whether the consumer makes progress. The lag is what waits in the whole queue, if the queue counts it, and
        what this consumer has received and not finished."""
        queue = self.queue
        waiting = queue.waiting if isinstance(queue, CountingWaiting) else lambda: None
        return health_of(self._loop, queue.name, self.group, self._clock, lambda partition: None, waiting=waiting)

    def history(self, partition: int, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        raise ConfigError(f"queue {self.queue.name!r} has no {Feature.HISTORY}: it forgets what is settled")

    def _wait_until_ready(self) -> bool:
        to = self.handler.to
        if self._stream is not None and to is not None and to.partitions is not None:
            self._provide()(to)
        return not self._stopped.is_set()

    def _make_loop(self, least_in_flight: int | None = None) -> Loop:
        options, clock = self.options, self._clock
        lanes = Lanes(Ordering.NONE, 1, clock, unsaved=None if options.commit_interval_s else options.workers)
        return Loop(
            self.queue.name,
            options,
            lambda loop: QueueFeed(self.queue, self._settler, loop, options.in_flight, clock),
            lanes,
            lambda send_report: self._make_workers(lanes, send_report),
            FailureHandler(
                self.handler,
                self.group,
                options,
                self.dead_letters,
                lanes,
                clock,
                self.counts,
                pointer_text_of(self._stream) if isinstance(self.queue, StreamQueue) else str,
            ),
            self._settler,
            self._settler,
            Deduplication(lambda ids: frozenset(), self.group, None, self.counts),
            clock,
            self.counts,
            least_in_flight=least_in_flight,
            stages=self._stages,
        )


class RejectedByQueue:
    """Dead letters in the queue itself: settling with REJECT puts them there."""

    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Nothing to do: the consumer settles their records with REJECT now."""


class StreamQueueConsumer(QueueConsumer):
    """Call a handler for the records of a topic that its group divides one by one, as with a queue.

    More members than partitions can work, a slow record holds up only itself, and a record whose handler takes longer
    than `visibility_s` is given to another member. The price is order.
    """

    queue: StreamQueue
    _stream: Stream

    def __init__(
        self,
        stream: Stream,
        handler: Handler,
        *,
        group: str,
        options: ConsumerOptions,
        checkpoints: str | CheckpointStore | None = None,
        dead_letters: str | DeadLetters | None = None,
        clock: Clock | None = None,
        stages: Stages | None = None,
    ) -> None:
        options = replace(options, visibility_s=options.visibility_s or DEFAULT_VISIBILITY_S)
        self._opened: Opened = open_checkpoints(checkpoints, stream, handler, options)
        self.store: CheckpointStore = self._opened.store
        self.topic_stream: TopicStream = stream.open_topic(current_topic(stream, handler.topic.name))
        try:
            queue = StreamQueue(
                self.topic_stream,
                self.store,
                group,
                member=member_name(),
                visibility_s=options.visibility_s or DEFAULT_VISIBILITY_S,
                clock=clock or SystemClock(),
                start=options.start,
                on_expired=options.on_expired,
            )
            super().__init__(
                queue,
                handler,
                group=group,
                options=options,
                stream=stream,
                dead_letters=dead_letters,
                clock=clock,
                stages=stages,
                owns_queue=True,
            )
        except BaseException:
            self._opened.close()
            raise

    def _wait_until_ready(self) -> bool:
        return wait_for_topic(self._stream, self.topic_stream, self.handler, self._stopped.wait, ends=False)

    def _make_loop(self, least_in_flight: int | None = None) -> Loop:
        return super()._make_loop(_STREAM_PREFETCH * self.options.workers)

    def abandon(self) -> None:
        super().abandon()
        self._opened.close()

    def health(self) -> Health:
        """Whether the group makes progress, as far as its checkpoints show."""
        health = super().health()
        partitions = []
        for key, checkpoint in self.store.checkpoints(self.group).items():
            if key.topic == self.topic_stream.topic:
                end = self.topic_stream.span(key.partition)[1]
                failing = len(checkpoint.failing)
                is_counted = Feature.OFFSETS in self.topic_stream.features
                partitions.append(PartitionHealth(key.partition, checkpoint.start, end, 0, failing, 0.0, is_counted))
        return replace(health, partitions=tuple(partitions))

    def history(self, partition: int, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        """The history of a record, or of a partition, oldest first."""
        return self._opened.history(CheckpointKey(self.group, self.topic_stream.topic, partition), pointer, limit)
