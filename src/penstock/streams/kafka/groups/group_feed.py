"""The feed of a group member: the partitions that are assigned to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.abc import GroupListener
from penstock.errors import ConfigError, FencedError, GroupError, StreamError
from penstock.model import Batch, Pointer
from penstock.model.administration import checkpoint_metadata, checkpoint_place, is_checkpoint_metadata
from penstock.streams.kafka.administration.topics import TopicAdministration
from penstock.streams.kafka.failures import reason_of, refused
from penstock.streams.kafka.groups.leaving import GroupExit
from penstock.streams.kafka.reading.polling import PolledFeed
from penstock.streams.kafka.settings import member_configuration
from penstock.streams.options import Options

logger = logging.getLogger(__name__)

ASSIGNORS: Final = {
    "range": "range",
    "roundrobin": "roundrobin",
    "sticky": "cooperative-sticky",
    "cooperative": "cooperative-sticky",
}
"""Our names of assignors, and librdkafka's."""

COMMITTED_TIMEOUT_S: Final = 3.0
"""How long an assignment may wait to learn what the group has committed."""

_STALE: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._FENCED,
    }
)
"""The group continues without this member, or is about to."""


class KafkaGroupFeed(PolledFeed):
    """`penstock.abc.GroupFeed` by a librdkafka consumer that is a member of a Kafka group.

    `assignor` is range, roundrobin, sticky or cooperative. librdkafka has no eager sticky assignor, so sticky is
    cooperative, too. All members of a group must use the same.

    The listener is called inside `poll` and `close`. While it handles `revoked`, heartbeats keep the member in the
    group for up to `max.poll.interval.ms`, which can be set with the connection's `librdkafka` options, as can
    `group.instance.id` for static membership. An error of the listener is raised by `poll` or `close`; after that, the
    feed can only be closed, because the state of those partitions is unknown.
    """

    def __init__(
        self,
        bootstrap: str,
        options: Options,
        topic: str,
        topics: TopicAdministration,
        group: str,
        listener: GroupListener,
        *,
        member: str,
        assignor: str,
        session_timeout_s: float,
    ) -> None:
        if assignor not in ASSIGNORS:
            raise ConfigError(f"the assignor {assignor!r} is not one of {', '.join(ASSIGNORS)}")
        if not group:
            raise GroupError("a group needs a name")
        strategy = ASSIGNORS[assignor]
        configuration = member_configuration(
            bootstrap, options, group, member=member, strategy=strategy, session_timeout_s=session_timeout_s
        )
        super().__init__({**configuration, "on_commit": self._on_commit}, topic, topics)
        self._group = group
        self._listener = listener
        self._is_cooperative = strategy == "cooperative-sticky"
        self._share: set[int] = set()
        self._unsettled: set[int] = set()
        """Partitions that were assigned, revoked or moved in the last call. Messages of that call are read again."""
        self._place: str | None = None
        """In which file of this host the member keeps its checkpoints; None: in a store that all hosts share."""
        self._has_checkpoint: Callable[[int], bool] = lambda _: True
        self._failure: BaseException | None = None
        self._leaving: Consumer | None = None
        """Set while the feed closes, so that the listener can still commit for the partitions that it hands back."""
        self._exit = GroupExit(self._open_consumer(), topic, is_cooperative=self._is_cooperative)
        with self._refusals(f"topic {topic!r} cannot be read by group {group!r}"):
            self._open_consumer().subscribe(
                [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )

    def checkpoints_in(self, place: str, has_checkpoint: Callable[[int], bool]) -> None:
        """See `penstock.abc.StoreCheckingFeed`."""
        self._place, self._has_checkpoint = place, has_checkpoint

    def add(self, partition: int, start: Pointer) -> None:
        raise StreamError(f"group {self._group!r} decides which partitions are read: use seek to continue elsewhere")

    def remove(self, partition: int) -> None:
        raise StreamError(f"group {self._group!r} decides which partitions are read: use pause to stop one")

    def seek(self, partition: int, start: Pointer) -> None:
        with self._lock:
            if partition not in self._share:
                raise GroupError(f"{self._topic}-{partition} is not in this member's share of group {self._group!r}")
            paused = partition in self._intake.readings and self._intake.readings[partition].paused
            self._move(partition, start)
            if paused:
                self._intake.pause(partition)

    def commit(self, pointers: Mapping[int, Pointer], wait: bool) -> None:
        """Commit offsets to the group. With `wait`, raises FencedError if the group continued without this member.

        Without `wait`, errors are only logged: the offset only shows progress, and the next commit corrects it.
        """
        with self._lock:
            consumer = self._leaving or self._open_consumer()
            ours = [
                TopicPartition(self._topic, each, offset, checkpoint_metadata(self._place))
                for each, offset in pointers.items()
                if each in self._share
            ]
            if wait and len(ours) < len(pointers):
                gone = min(set(pointers) - self._share)
                raise FencedError(f"{self._topic}-{gone} does not belong to this member of group {self._group!r}")
            if not ours:
                return
            try:
                if wait:
                    committed = consumer.commit(offsets=ours, asynchronous=False)
                else:
                    consumer.commit(offsets=ours, asynchronous=True)
                    committed = []
            except KafkaException as error:
                self._commit_failed(error, wait)
                return
        for place in committed:
            if place.error is not None:
                self._commit_failed(KafkaException(place.error), wait)

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        """The next batches, as in `penstock.abc.Feed.poll`. Call it more often than `max.poll.interval.ms`, even if
        all partitions are paused."""
        if self._failure is not None:
            raise StreamError(f"this member of group {self._group!r} has failed: close it") from self._failure
        return super().poll(limit, wait_s)

    def _fetch(self, consumer: Consumer, limit: int, deadline_s: float) -> list[Message]:
        messages = super()._fetch(consumer, limit, deadline_s)
        if self._failure is not None:
            raise self._failure
        if self._unsettled:
            messages = self._settle(messages)
        return messages

    def _settle(self, messages: list[Message]) -> list[Message]:
        """Drop messages of partitions that changed in the same call, and read those that are ours again.

        Such messages may be from before the change or from after it.
        """
        unsettled, self._unsettled = self._unsettled, set()
        doubtful = {message.partition() for message in messages} & unsettled
        for partition in doubtful & self._intake.readings.keys():
            assert partition is not None
            self._move(partition, self._intake.readings[partition].next)
        return [message for message in messages if message.partition() not in doubtful]

    def _rest(self, consumer: Consumer, slice_s: float) -> list[Message]:
        """Serve the group while all partitions are paused. A message that comes is held."""
        if not self._intake.readings:
            message = consumer.poll(max(0.0, slice_s))
        else:
            self._woken.wait(max(0.0, slice_s))
            message = consumer.poll(0)
        return [] if message is None else [message]

    def _let_go(self, consumer: Consumer) -> None:
        before = self._failure
        self._leaving = consumer
        try:
            self._exit.close()
        finally:
            self._leaving = None
        if self._failure is not None and self._failure is not before:
            raise self._failure

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        if self._exit.is_closing:
            self._hand_back(self._share, is_lost=False)
            self._exit.answer(is_assignment=True)
            return
        partitions = sorted(place.partition for place in places)
        starts: Mapping[int, Pointer] = {}
        try:
            if partitions:
                starts = self._listener.assigned(dict.fromkeys(partitions))
                missing = set(partitions) - starts.keys()
                if missing:
                    raise GroupError(f"the listener did not say where to start in {self._topic}-{min(missing)}")
                try:
                    self._check_stores(consumer, starts)
                except ConfigError:
                    self._listener.lost(partitions)  # saves nothing, and commits nothing
                    raise
        except BaseException as error:
            self._fail(error)
            starts = {}
            partitions = []
        begun = [TopicPartition(self._topic, partition, starts[partition]) for partition in partitions]
        if self._is_cooperative:
            consumer.incremental_assign(begun)
        else:
            consumer.assign(begun)
        for partition in partitions:
            self._share.add(partition)
            self._unsettled.add(partition)
            self._intake.add(partition, starts[partition])

    def _check_stores(self, consumer: Consumer, starts: Mapping[int, Pointer]) -> None:
        """Raise ConfigError if this member is the first of its file in a partition that others have begun with theirs.

        Warn if the group is otherwise further than the checkpoints: offsets are committed only after checkpoints are
        saved. A file that was moved has the checkpoints; one that lost the last of them in a power failure has others.
        """
        try:
            places = consumer.committed([TopicPartition(self._topic, each) for each in starts], COMMITTED_TIMEOUT_S)
        except KafkaException as error:
            logger.info("group %r: committed offsets of topic %r are not known: %s", self._group, self._topic, error)
            return
        for each in places:
            self._check_store(each, starts[each.partition])
        behind = [
            each for each in places if is_checkpoint_metadata(each.metadata) and each.offset > starts[each.partition]
        ]
        if behind:
            logger.warning(
                "group %r has committed offset %d of %s-%d, but the checkpoint of this member ends at %d; %d other "
                "partitions differ, too. The records in between are handled again. If members of the group run on "
                "several hosts, give all of them one checkpoint store, such as checkpoints='kafka:' or "
                "'postgresql://...': files (sqlite:, file:) are on one host",
                self._group,
                behind[0].offset,
                self._topic,
                behind[0].partition,
                starts[behind[0].partition],
                len(behind) - 1,
            )

    def _check_store(self, committed: TopicPartition, start: Pointer) -> None:
        other = checkpoint_place(committed.metadata)
        if self._place is None or other in (None, self._place) or start == committed.offset:
            return
        if self._has_checkpoint(committed.partition):
            return
        what = "handle again" if start < committed.offset else "leave out"
        raise ConfigError(
            f"{self._topic}-{committed.partition} was handled up to offset {committed.offset} by a member of group "
            f"{self._group!r} whose checkpoints are in {other}. This member keeps its own in {self._place}, where it "
            f"would begin at offset {start}, and {what} the records in between. Give all members one checkpoint store, "
            "such as checkpoints='kafka:' or 'postgresql://...'; or move the file here. To begin with this file, stop "
            f"all members, and say where: penstock groups reset {self._group} --topic {self._topic} --to OFFSET "
            "--checkpoints STORE --execute"
        )

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._give_back(consumer, places, is_lost=False)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._give_back(consumer, places, is_lost=True)

    def _give_back(self, consumer: Consumer, places: list[TopicPartition], is_lost: bool) -> None:
        if self._exit.is_closing:
            self._hand_back(self._share, is_lost)
            self._exit.answer(is_assignment=False)
            return
        self._hand_back(self._share & {place.partition for place in places}, is_lost)
        if self._is_cooperative:
            consumer.incremental_unassign(places)
        else:
            consumer.unassign()

    def _hand_back(self, share: set[int], is_lost: bool) -> None:
        """Take partitions from the listener. On close, the first callback takes all: its answer leaves the group."""
        partitions = sorted(share)
        try:
            if partitions:
                (self._listener.lost if is_lost else self._listener.revoked)(partitions)
        except BaseException as error:
            self._fail(error)
        for partition in partitions:
            self._share.discard(partition)
            self._unsettled.add(partition)
            self._intake.remove(partition)

    def _fail(self, error: BaseException) -> None:
        """Keep an error of the listener. Raised inside librdkafka's callback, it would discard messages."""
        if self._failure is None:
            self._failure = error

    def _move(self, partition: int, start: Pointer) -> None:
        with self._refusals(f"{self._topic}-{partition} cannot be read from offset {start}"):
            consumer = self._open_consumer()
            self._intake.add(partition, start)
            if self._is_cooperative:
                consumer.incremental_unassign([TopicPartition(self._topic, partition)])
                consumer.incremental_assign([TopicPartition(self._topic, partition, start)])
            else:
                self._restart_all(consumer)

    def _restart_all(self, consumer: Consumer) -> None:
        """An eager assignor assigns all partitions at once, so they can only be moved at once."""
        readings = self._intake.readings
        for partition, reading in list(readings.items()):
            paused = reading.paused
            self._intake.add(partition, reading.next)
            if paused:
                self._intake.pause(partition)
        consumer.assign(
            [TopicPartition(self._topic, partition, reading.next) for partition, reading in readings.items()]
        )

    def _drop(self, partition: int) -> None:
        """The partition stays assigned, idle, until it is moved or revoked."""
        self._intake.remove(partition)

    def _commit_failed(self, error: KafkaException, wait: bool) -> None:
        reason = reason_of(error)
        if reason is not None and reason.code() == KafkaError._NO_OFFSET:
            return
        if not wait:
            logger.info("group %r: offsets of topic %r were not committed: %s", self._group, self._topic, error)
            return
        what = f"group {self._group!r} could not commit its progress in topic {self._topic!r}"
        if reason is not None and reason.code() in _STALE:
            raise FencedError(f"{what}: the group continued without this member ({reason.str()})") from error
        raise refused(what, error) from error

    def _on_commit(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """The outcome of an asynchronous commit."""
        for problem in (error, *(place.error for place in places)):
            if problem is not None:
                self._commit_failed(KafkaException(problem), wait=False)
                return
