"""The consumer that calls: one handler on one topic, as a member of a group."""

from __future__ import annotations

import concurrent.futures
import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.abc import (
    CheckpointStore,
    Clock,
    DeadLetters,
    Feature,
    GroupFeed,
    HostStore,
    StoreCheckingFeed,
    Stream,
    TopicStream,
)
from penstock.consuming.defaults import Checkpoints, Opened, open_checkpoints
from penstock.consuming.guarantees import (
    CommitMode,
    check_batch,
    check_effects,
    check_snapshots,
    commit_mode_of,
    keeps_groups,
)
from penstock.consuming.handlers import Handler, handler_of
from penstock.consuming.health import Health, health_of
from penstock.consuming.lease_groups.group import LeaseGroupFeed
from penstock.consuming.lease_groups.membership import member_name
from penstock.consuming.loop.checkpointing import CheckpointSaver
from penstock.consuming.loop.dedup import Deduplication
from penstock.consuming.loop.failures import FailureHandler
from penstock.consuming.loop.loop import Commit, Loop
from penstock.consuming.loop.ownership import Ownership
from penstock.consuming.loop_consumer import LoopConsumer
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.stages import Stages
from penstock.consuming.topic_wait import wait_for_topic
from penstock.consuming.workers.lanes import Lanes
from penstock.consuming.workers.pool import Workers
from penstock.consuming.workers.processes import check_importable
from penstock.consuming.workers.runners import CallBuilder, OutputCollector, Report, Runner
from penstock.consuming.workers.snapshots import SnapshotRunner, Snapshots, restore
from penstock.consuming.workers.sql_runner import TransactionRunner
from penstock.dead_letters.opening import open_dead_letters
from penstock.errors import ConfigError, OffsetOutOfRangeError
from penstock.model import CheckpointKey, Guarantee, HistoryEntry, Ordering, Pointer
from penstock.serde import Topic
from penstock.streams.aliases import current_topic
from penstock.streams.capability import pointer_text_of


class HandlerConsumer(LoopConsumer):
    """Call a handler for each record of a topic, as a member of a group.

    `run` consumes in the calling thread until stopped or until `end`; `start` does so in a thread of its own.
    `ConsumerOptions` explains the options; `App` runs several of these.
    """

    _stream: Stream

    def __init__(
        self,
        stream: Stream,
        topic: str | Topic[Any],
        handler: Callable[..., Any] | Handler,
        *,
        group: str,
        options: ConsumerOptions | None = None,
        checkpoints: str | CheckpointStore | None = None,
        dead_letters: str | DeadLetters | None = None,
        member: str | None = None,
        clock: Clock | None = None,
        stages: Stages | None = None,
        snapshots: Snapshots | None = None,
        make_workers: Callable[[Lanes, Callable[[Report], None]], Workers] | None = None,
        stale: Checkpoints | None = None,
        serves_state: bool = False,
    ) -> None:
        """`stale` are checkpoints of a deleted topic of the same name, which do not count. `saved_state` needs
        `serves_state`."""
        super().__init__(
            stream,
            handler if isinstance(handler, Handler) else handler_of(handler, topic),
            group=group,
            options=options or ConsumerOptions(),
            clock=clock,
            stages=stages,
        )
        self.member = member or member_name()
        check_batch(self.handler)
        self._given_workers = make_workers
        self._snapshots = snapshots
        self._stale = stale or {}
        self._serves_state = serves_state
        self._leases: LeaseGroupFeed | None = None
        self.topic_stream: TopicStream = stream.open_topic(current_topic(stream, self.handler.topic.name))
        check_effects(self.handler, self.options, self.topic_stream)
        self._opened: Opened = open_checkpoints(checkpoints, stream, self.handler, self.options)
        self.store: CheckpointStore = self._opened.store
        try:
            check_snapshots(self.handler, self.options, self.store, snapshots is not None)
            self._commit_mode = commit_mode_of(self.handler, self.options, self.store, self.topic_stream)
            if self.options.processes:
                check_importable(self.handler)
            self.dead_letters = None if dead_letters is None else open_dead_letters(dead_letters, stream)
        except BaseException:
            self._opened.close()
            raise

    def _wait_until_ready(self) -> bool:
        ends = self.options.end is not None
        return wait_for_topic(self._stream, self.topic_stream, self.handler, self._stopped.wait, ends=ends)

    def abandon(self) -> None:
        super().abandon()
        self._opened.close()

    def seek(self, partition: int, pointer: Pointer) -> None:
        """Continue at `pointer` in an assigned partition, and forget what is known about it from there on.

        OffsetOutOfRangeError when no record can be read there: once saved, that pointer would fail every restart.
        """
        if self._loop is None:
            raise ConfigError("seek needs a running consumer: start it first, or pass `start`")
        earliest, end = self.topic_stream.span(partition)
        if not earliest <= pointer <= end:
            raise OffsetOutOfRangeError(f"{self.topic_stream.topic}-{partition}", pointer, earliest, end)
        self._loop.seek(partition, pointer)

    def commit(self) -> Commit:
        """Save finished records now. The future resolves to the saved pointer of each partition."""
        if self._loop is not None:
            return self._loop.commit()
        nothing: Commit = concurrent.futures.Future()
        nothing.set_result({})
        return nothing

    def health(self) -> Health:
        """Whether the consumer makes progress, and the problems if it does not."""
        stream = self.topic_stream
        return health_of(
            self._loop,
            stream.topic,
            self.group,
            self._clock,
            lambda partition: stream.span(partition)[1],
            is_counted=Feature.OFFSETS in stream.features,
        )

    @property
    def keeps_state(self) -> bool:
        """Whether the handler can have state by key."""
        options = self.options
        return options.order is not Ordering.NONE and not options.processes and Feature.STATE in self.store.features

    def saved_state(self, partition: int) -> Mapping[bytes, bytes] | None:
        """The keyed state of a partition as of its last checkpoint; None unless this member has it. Thread-safe."""
        loop = self._loop
        if loop is None or not loop.has_run_within(self.options.session_timeout_s):
            return None
        assigned = loop.partitions.get(partition)
        if assigned is None or assigned.closed or (self._leases is not None and not self._leases.holds(partition)):
            return None
        return assigned.tracker.saved_state

    def history(self, partition: int, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        """The history of a record, or of a partition, oldest first."""
        return self._opened.history(CheckpointKey(self.group, self.topic_stream.topic, partition), pointer, limit)

    def _make_loop(self) -> Loop:
        options, clock, handler = self.options, self._clock, self.handler
        saves_each = options.commit_interval_s == 0 and options.guarantee is not Guarantee.AT_MOST_ONCE
        if saves_each and self._given_workers is None:
            lanes = Lanes(options.order, handler.batch or 1, clock, unsaved=options.workers)
        else:
            lanes = Lanes(options.order, handler.batch or options.chunk, clock)
        saver = CheckpointSaver(
            self.store,
            clock,
            lambda: self._loop is None or not self._loop.is_stopping,
            self.counts,
            with_effects=self._commit_mode is CommitMode.SQL,
            with_outputs=self._commit_mode is CommitMode.STREAM,
        )
        ownership = Ownership(
            self.topic_stream,
            self.store,
            saver,
            options,
            handler,
            self.group,
            self.member,
            clock,
            dedup_window_s=options.idempotency_window_s,
            stale=self._stale,
            serves_state=self._serves_state and self.keeps_state,
        )
        handled = functools.partial(self.store.handled, self.group, self.topic_stream.topic)
        self._dedup = dedup = Deduplication(handled, self.group, options.idempotency_key, self.counts)
        return Loop(
            self.topic_stream.topic,
            options,
            self._join_group,
            lanes,
            functools.partial(self._workers, lanes),
            FailureHandler(
                handler,
                self.group,
                options,
                self.dead_letters,
                lanes,
                clock,
                self.counts,
                pointer_text_of(self._stream),
            ),
            saver,
            ownership,
            dedup,
            clock,
            self.counts,
            outputs_in_transaction=self._commit_mode is CommitMode.STREAM,
            stream=self.topic_stream,
            stages=self._stages,
            restore_state=None if self._snapshots is None else functools.partial(restore, self._snapshots),
        )

    def _join_group(self, listener: Loop) -> GroupFeed:
        """The stream's own consumer group, or one by leases in the checkpoint store."""
        if keeps_groups(self.topic_stream):
            feed = self.topic_stream.group_feed(
                self.group,
                listener,
                member=self.member,
                assignor=self.options.assignor,
                session_timeout_s=self.options.session_timeout_s,
            )
            if isinstance(feed, StoreCheckingFeed) and isinstance(self.store, HostStore):
                feed.checkpoints_in(f"{socket.gethostname()}:{self.store.host_path}", self._has_checkpoint)
            return feed
        self._leases = LeaseGroupFeed(
            self.topic_stream,
            self.store,
            self.group,
            listener,
            member=self.member,
            ttl_s=self.options.session_timeout_s,
            clock=self._clock,
            start=self.options.start,
        )
        return self._leases

    def _has_checkpoint(self, partition: int) -> bool:
        return self.store.load(CheckpointKey(self.group, self.topic_stream.topic, partition)) is not None

    def _workers(self, lanes: Lanes, send_report: Callable[[Report], None]) -> Workers:
        if self._given_workers is not None:
            return self._given_workers(lanes, send_report)
        return self._make_workers(
            lanes,
            send_report,
            sends_outputs=self._commit_mode is not CommitMode.STREAM,
            with_state=self.keeps_state,
        )

    def _make_runner(self, handler: Handler, collector: OutputCollector, call_builder: CallBuilder) -> Runner:
        if self._commit_mode is CommitMode.SQL:
            return TransactionRunner(handler, collector, call_builder, self.store, self._dedup, self._clock)  # type: ignore[arg-type]
        runner = super()._make_runner(handler, collector, call_builder)
        return runner if self._snapshots is None else SnapshotRunner(runner, self._snapshots)

    @property
    def _is_root(self) -> bool:
        return super()._is_root and self._commit_mode is CommitMode.CHECKPOINT
