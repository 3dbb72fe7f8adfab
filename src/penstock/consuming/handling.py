"""The consumer that calls: one handler on one topic, as a member of a group."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from penstock.abc import CheckpointStore, Clock, DeadLetters, Feature, GroupFeed, Grouping, Stream, Streams
from penstock.consuming.background import Background
from penstock.consuming.counts import Counts
from penstock.consuming.dead_letters.opening import open_dead_letters
from penstock.consuming.dedup import Deduplication
from penstock.consuming.defaults import Opened, open_checkpoints
from penstock.consuming.delivering import deliver
from penstock.consuming.giving_up import GivingUp
from penstock.consuming.guarantees import Means, check_batch, check_snapshots, means_of
from penstock.consuming.handlers import Handler, Wants, handler_of
from penstock.consuming.health import Health, health_of
from penstock.consuming.lanes import Lanes, Task
from penstock.consuming.lease_groups import LeaseGroupFeed
from penstock.consuming.loop import Loop
from penstock.consuming.members import member_name
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.owning import Owning
from penstock.consuming.processes import ProcessRunner, check_can_be_sent
from penstock.consuming.runners import BatchRunner, Caller, FullRunner, Gather, Report, Runner, TreeRunner, ValueRunner
from penstock.consuming.saving import Saving
from penstock.consuming.snapshots import SnapshotRunner, Snapshots, restore
from penstock.consuming.stages import Stages
from penstock.consuming.tracing import traced, traced_asking
from penstock.consuming.transactions import TransactionRunner
from penstock.consuming.workers import AsyncRunner, AsyncWorkers, ThreadWorkers, Workers
from penstock.errors import ConfigError, GroupError, OffsetOutOfRangeError
from penstock.model import CheckpointKey, Guarantee, Happening, Order, Pointer
from penstock.model.clock import SystemClock
from penstock.model.observing import OBSERVED
from penstock.serde import Topic
from penstock.streams.aliases import current_topic


class HandlerConsumer(Background):
    """Calls a handler for each record of a topic, as a member of a group.

    `run` does it in this thread until it is stopped, or has come to `end`; `start` does it in a thread of its own.
    Every option is explained at `ConsumerOptions`; `App` is the way to have several.
    """

    def __init__(
        self,
        streams: Streams,
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
    ) -> None:
        if not group or not isinstance(group, str):
            raise GroupError("a consumer needs a group: the name under which its progress is kept")
        self.options = options or ConsumerOptions()
        self.handler = handler if isinstance(handler, Handler) else handler_of(handler, topic)
        super().__init__(self.handler.name)
        self.group = group
        self.member = member or member_name()
        self._clock = clock or SystemClock()
        check_batch(self.handler)
        self._streams = streams
        self._stages = stages
        self._make_workers = make_workers
        self._snapshots = snapshots
        self.stream: Stream = streams.stream(current_topic(streams, self.handler.topic.name))
        self._opened: Opened = open_checkpoints(checkpoints, streams, self.handler, self.options)
        self.store: CheckpointStore = self._opened.store
        try:
            check_snapshots(self.handler, self.options, self.store, snapshots is not None)
            self._means = means_of(self.handler, self.options, self.store, self.stream)
            if self.options.processes:
                check_can_be_sent(self.handler)
            self.dead_letters = None if dead_letters is None else open_dead_letters(dead_letters, streams)
        except BaseException:
            self._opened.close()
            raise
        self._loop: Loop | None = None
        self.counts = Counts()
        """What it has done so far."""
        self._stopped = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Consume until `stop` is called, or `end` is reached. Raises what made it impossible to go on."""
        self.stream.partitions()  # UnknownTopicError now rather than later
        with self._lock:
            if self._loop is not None:
                raise ConfigError(f"the consumer of {self.handler.topic.name!r} has been run already: make another")
            self._loop = self._assembled()
            if self._stopped:
                self._loop.stop()
        OBSERVED.enter(self)
        try:
            if not self._loop.is_stopping:
                self._loop.run()
        finally:
            OBSERVED.leave(self)
            self._opened.close()

    def abandon(self) -> None:
        """It will not be run after all: let go of what was opened for it."""
        self._opened.close()

    def stop(self) -> None:
        """Stop reading, let handlers finish, save, leave the group. From any thread; it does not wait."""
        with self._lock:
            self._stopped = True
            loop = self._loop
        if loop is not None:
            loop.stop()

    def seek(self, partition: int, pointer: Pointer) -> None:
        """Go on elsewhere in a partition that is ours. What was known of it from there on is forgotten.

        OffsetOutOfRangeError when there is nothing to read at this place: it would be saved, and stop every restart.
        """
        if self._loop is None:
            raise ConfigError("seek needs a consumer that runs: start it first, or choose its start")
        earliest, end = self.stream.span(partition)
        if not earliest <= pointer <= end:
            raise OffsetOutOfRangeError(f"{self.stream.topic}-{partition}", pointer, earliest, end)
        self._loop.seek(partition, pointer)

    def commit(self, timeout: float | None) -> bool:
        """Have what is finished saved now. With a timeout, wait for it; False when it was not saved in time."""
        return self._loop is None or self._loop.commit(timeout)

    def health(self) -> Health:
        """Whether it gets on, and if not, why."""
        return health_of(self._loop, self.stream, self.handler, self.group, self._clock)

    def history(self, partition: int, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[Happening]:
        """What happened to a record, or in a partition, oldest first."""
        if Feature.HISTORY not in self.store.features:
            raise ConfigError(f"{type(self.store).__name__} has no {Feature.HISTORY}")
        return self.store.history(CheckpointKey(self.group, self.stream.topic, partition), pointer, limit)

    def _assembled(self) -> Loop:
        options, clock, handler = self.options, self._clock, self.handler
        lanes = Lanes(options.order, handler.batch or options.chunk, clock)
        saving = Saving(
            self.store,
            clock,
            lambda: self._loop is None or not self._loop.is_stopping,
            self.counts,
            with_effects=self._means is Means.SQL,
            with_outputs=self._means is Means.STREAM,
        )
        owning = Owning(
            self.stream,
            self.store,
            saving,
            options,
            handler,
            self.group,
            self.member,
            clock,
            dedup_window_s=options.idempotency_window_s,
        )
        dedup = Deduplication(self.store, self.group, self.stream.topic, options.idempotency_key, self.counts)
        return Loop(
            self.stream,
            options,
            self._join,
            lanes,
            lambda tell: self._workers(lanes, dedup, tell),
            GivingUp(handler, self.group, options, self.dead_letters, lanes, clock, self.counts),
            saving,
            owning,
            dedup,
            clock,
            self.counts,
            outputs_in_transaction=self._means is Means.STREAM,
            stages=self._stages,
            begin_share=None if self._snapshots is None else functools.partial(restore, self._snapshots),
        )

    def _join(self, listener: Loop) -> GroupFeed:
        """The group of the stream, or one by leases in the checkpoint store."""
        if Feature.GROUPS in self.stream.features and isinstance(self.stream, Grouping):
            return self.stream.group_feed(
                self.group,
                listener,
                member=self.member,
                assignor=self.options.assignor,
                session_timeout_s=self.options.session_timeout_s,
            )
        return LeaseGroupFeed(
            self.stream,
            self.store,
            self.group,
            listener,
            member=self.member,
            ttl_s=self.options.session_timeout_s,
            clock=self._clock,
        )

    def _workers(self, lanes: Lanes, dedup: Deduplication, tell: Callable[[Report], None]) -> Workers:
        if self._make_workers is not None:
            return self._make_workers(lanes, tell)
        options, tracer = self.options, OBSERVED.tracer
        handler = self.handler if options.processes else traced(self.handler, self.group, options, tracer)
        gather = Gather(handler, None if self._means is Means.STREAM else functools.partial(deliver, self._streams))
        with_state = options.order is not Order.NONE and Feature.STATE in self.store.features
        caller = Caller(handler, self.group, with_state, options.idempotency_key)
        name = handler.name
        if handler.is_async:
            return AsyncWorkers(options.workers, AsyncRunner(handler, gather, caller), lanes, tell, name)

        def make_runner() -> Runner:
            runner = make_plain_runner()
            return runner if self._snapshots is None else SnapshotRunner(runner, self._snapshots)

        def make_plain_runner() -> Runner:
            if self._is_root:
                assert self._stages is not None
                tree_runner = TreeRunner(handler, gather, caller, self._stages, options.tree_timeout_s)
                tree_runner.settled = self._tree_settled
                return tree_runner
            if self._means is Means.SQL:
                return TransactionRunner(handler, gather, caller, self.store, dedup, self._clock)  # type: ignore[arg-type]
            if options.processes:
                asking = None if tracer is None else traced_asking(handler, self.group, options, tracer)
                return ProcessRunner(handler, gather, asking)
            if handler.batch is not None:
                return BatchRunner(handler, gather, caller)
            if handler.wants == (Wants.VALUE,):
                return ValueRunner(handler, gather)
            return FullRunner(handler, gather, caller)

        return ThreadWorkers(options.workers, make_runner, lanes, tell, name)

    @property
    def _is_root(self) -> bool:
        """Whether records may fork here: the app has stages, and the handler takes a context to reach them."""
        return (
            self._stages is not None
            and Wants.CONTEXT in self.handler.wants
            and self._means is Means.CHECKPOINT
            and self.handler.batch is None
            and not self.handler.is_async
            and self.options.guarantee is not Guarantee.AT_MOST_ONCE
        )

    def _tree_settled(self, task: Task, index: int, error: BaseException | None) -> None:
        assert self._loop is not None
        self._loop.tree_settled(task, index, error)
