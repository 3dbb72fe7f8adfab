"""A handler as it was declared, and the consumers that run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from penstock.abc import CheckpointStore, Clock, DeadLetters, Queue, Stream
from penstock.consuming.defaults import Checkpoints, checkpoints_of_topic, open_checkpoints
from penstock.consuming.destinations import Destination, open_destination
from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.handlers import Handler
from penstock.consuming.options import ConsumerOptions
from penstock.consuming.pattern_consumer import PatternConsumer
from penstock.consuming.queue.queue_consumer import QueueConsumer, StreamQueueConsumer
from penstock.consuming.stages import Stages
from penstock.consuming.workers.snapshots import Snapshots
from penstock.model import Ordering
from penstock.queues.opening import open_queue
from penstock.streams.aliases import current_topic
from penstock.streams.topic_patterns import DEAD_LETTER_SUFFIX, TopicPattern

MakeMember = Callable[[], str]
"""Returns a unique name for a member of a group."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A handler with its options."""

    handler: Handler
    group: str
    options: ConsumerOptions
    checkpoints: str | CheckpointStore | None
    dead_letters: str | DeadLetters | None
    snapshots: Snapshots | None
    queue: str | Queue | None = None
    """The queue that it handles, or its URL; None: a topic of the stream."""
    rejects: bool = False
    """Its dead letters are those of the queue itself."""
    destination: str | Destination | None = None
    """Where its results go, or its URL; None: a topic of the stream."""
    pattern: TopicPattern | None = None
    """Set for a handler of all topics that match. The topic of `handler` then only stands for them."""
    has_own_letters: bool = False
    """With a pattern: each topic has its own dead letters, `TOPIC.dlq`."""

    def for_topic(self, name: str) -> Declared:
        """The same for one of the topics that match. It exists: a topic that was deleted is not created again."""
        assert self.pattern is not None
        handler = replace(self.handler, topic=self.pattern.topic(name), is_topic_declared=False)
        letters = f"{name}{DEAD_LETTER_SUFFIX}" if self.has_own_letters else self.dead_letters
        return replace(self, handler=handler, dead_letters=letters, pattern=None)

    def found(self, stream: Stream) -> list[Declared]:
        """One for each topic that there is now; itself for a handler of one topic."""
        return [self] if self.pattern is None else [self.for_topic(name) for name in self.pattern.find(stream)]

    @property
    def may_keep_state(self) -> bool:
        """Whether `ctx.state` works, if the checkpoint store keeps state."""
        options = self.options
        return (
            self.queue is None and not options.shared and not options.processes and options.order is not Ordering.NONE
        )

    def consumer(
        self,
        stream: Stream | None,
        stages: Stages | None,
        clock: Clock | None,
        stale: Checkpoints | None = None,
        make_member: MakeMember | None = None,
    ) -> HandlerConsumer | QueueConsumer:
        """The consumer of a topic or queue, which sends its results to its destination if it has one. `make_member`
        gives it the name by which other members find its state."""
        consumer = self._consumer(stream, stages, clock, stale, make_member)
        if (to := self.destination) is not None:
            try:
                opened = open_destination(to) if isinstance(to, str) else to
                consumer.send_results_to(opened, owned=opened is not to)
            except BaseException:
                consumer.abandon()
                raise
        return consumer

    def pattern_consumer(
        self,
        stream: Stream,
        stages: Stages | None,
        clock: Clock | None,
        is_excluded: Callable[[str], bool],
        make_member: MakeMember | None = None,
    ) -> PatternConsumer[HandlerConsumer | QueueConsumer]:
        """The consumer of all topics that match and are not excluded."""
        assert self.pattern is not None
        probe = self._consumer(stream, stages, clock, None, None)
        probe.abandon()  # it has shown that the options are possible, before the first topic appears

        def load(name: str) -> Checkpoints:
            opened = open_checkpoints(self.checkpoints, stream, self.handler, self.options)
            return checkpoints_of_topic(opened, self.group, name)

        return PatternConsumer(
            stream,
            self.pattern,
            self.handler,
            lambda name, stale: self.for_topic(name).consumer(stream, stages, clock, stale, make_member),
            load,
            is_excluded=lambda name: is_excluded(name) or current_topic(stream, name) != name,
            ends=self.options.end is not None,
        )

    def _consumer(
        self,
        stream: Stream | None,
        stages: Stages | None,
        clock: Clock | None,
        stale: Checkpoints | None,
        make_member: MakeMember | None,
    ) -> HandlerConsumer | QueueConsumer:
        common: dict[str, Any] = {
            "group": self.group,
            "options": self.options,
            "dead_letters": self.dead_letters,
            "clock": clock,
            "stages": stages,
        }
        if self.queue is not None:
            queue = open_queue(self.queue) if isinstance(self.queue, str) else self.queue
            is_ours = queue is not self.queue
            try:
                return QueueConsumer(
                    queue, self.handler, stream=stream, rejects=self.rejects, owns_queue=is_ours, **common
                )
            except BaseException:
                if is_ours:
                    queue.close()
                raise
        assert stream is not None
        if self.options.shared:
            return StreamQueueConsumer(stream, self.handler, checkpoints=self.checkpoints, **common)
        return HandlerConsumer(
            stream,
            self.handler.topic,
            self.handler,
            checkpoints=self.checkpoints,
            snapshots=self.snapshots,
            stale=stale,
            member=None if make_member is None else make_member(),
            serves_state=make_member is not None,
            **common,
        )
