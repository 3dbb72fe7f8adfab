"""The feed of a group's member: its share of the partitions, which grows and shrinks as members come and go."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.abc import GroupListener
from penstock.errors import ConfigError, FencedError, GroupError, StreamError
from penstock.model import Batch, Pointer
from penstock.streams.kafka.failures import reason_of, refused
from penstock.streams.kafka.polling import PolledFeed
from penstock.streams.kafka.settings import member_configuration
from penstock.streams.kafka.topics import TopicAdministration
from penstock.streams.options import Options

logger = logging.getLogger(__name__)

ASSIGNORS: Final = {
    "range": "range",
    "roundrobin": "roundrobin",
    "sticky": "cooperative-sticky",
    "cooperative": "cooperative-sticky",
}
"""Our names for the ways to share partitions out, and librdkafka's."""

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
"""The group has gone on without this member, or is about to."""


class KafkaGroupFeed(PolledFeed):
    """`penstock.abc.GroupFeed` through a librdkafka consumer that is a member of a Kafka group.

    `assignor` is range, roundrobin, sticky or cooperative; librdkafka has no sticky way that takes everything back
    first, so sticky is cooperative, too. All members of a group must use the same.

    The listener is called in the thread that polls or closes, inside of it. While it takes its time over `revoked`, the
    member stays in the group: heartbeats go on by themselves, for as long as `max.poll.interval.ms`, which can be set
    through the connection's `librdkafka` options, as can `group.instance.id` for a member that keeps its share over a
    restart. An error that the listener raises comes out of `poll` or `close`, and after it the feed can only be closed:
    nobody knows what was begun with those partitions.
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
        super().__init__({**configuration, "on_commit": self._heard_of_commit}, topic, topics)
        self._group = group
        self._listener = listener
        self._is_cooperative = strategy == "cooperative-sticky"
        self._share: set[int] = set()
        self._unsettled: set[int] = set()
        """Partitions that came, went or moved since librdkafka was last asked: what came with that is read again."""
        self._failure: BaseException | None = None
        self._leaving: Consumer | None = None
        """While the feed is closed, the listener may still commit for the partitions that it hands back."""
        with self._refusals(f"topic {topic!r} cannot be read by group {group!r}"):
            self._open_consumer().subscribe(
                [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )

    def add(self, partition: int, start: Pointer) -> None:
        raise StreamError(f"group {self._group!r} decides which partitions are read: use seek to go on elsewhere")

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
        """Commit offsets to the group. With `wait`, FencedError tells that the group has gone on without us.

        Without it nothing is raised: an offset that does not get there is shown late, and nothing else hangs on it.
        """
        with self._lock:
            consumer = self._leaving or self._open_consumer()
            ours = [
                TopicPartition(self._topic, each, offset) for each, offset in pointers.items() if each in self._share
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
        """See `penstock.abc.Feed.poll`. Call it more often than `max.poll.interval.ms`, also while all is paused."""
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
        """Leave out messages of partitions that came in the same call as news about them.

        They may be from before it or after it, which nobody can tell. So those that are ours are begun anew.
        """
        unsettled, self._unsettled = self._unsettled, set()
        doubtful = {message.partition() for message in messages} & unsettled
        for partition in doubtful & self._intake.readings.keys():
            assert partition is not None
            self._move(partition, self._intake.readings[partition].next)
        return [message for message in messages if message.partition() not in doubtful]

    def _rest(self, consumer: Consumer, slice_s: float) -> list[Message]:
        """While nothing is wanted, the group still is served: a message that comes by is held back."""
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
            consumer.close()
        finally:
            self._leaving = None
        if self._failure is not None and self._failure is not before:
            raise self._failure

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        partitions = sorted(place.partition for place in places)
        starts: Mapping[int, Pointer] = {}
        try:
            if partitions:
                starts = self._listener.assigned(dict.fromkeys(partitions))
                missing = set(partitions) - starts.keys()
                if missing:
                    raise GroupError(f"the listener did not say where to begin in {self._topic}-{min(missing)}")
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

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._give_back(consumer, places, is_lost=False)

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._give_back(consumer, places, is_lost=True)

    def _give_back(self, consumer: Consumer, places: list[TopicPartition], is_lost: bool) -> None:
        partitions = sorted({place.partition for place in places} & self._share)
        try:
            if partitions:
                (self._listener.lost if is_lost else self._listener.revoked)(partitions)
        except BaseException as error:
            self._fail(error)
        for partition in partitions:
            self._share.discard(partition)
            self._unsettled.add(partition)
            self._intake.remove(partition)
        if self._is_cooperative:
            consumer.incremental_unassign(places)
        else:
            consumer.unassign()

    def _fail(self, error: BaseException) -> None:
        """Keep an error of the listener: raised inside librdkafka's callback, it would take messages with it."""
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
                self._begin_all_anew(consumer)

    def _begin_all_anew(self, consumer: Consumer) -> None:
        """Where partitions are given all at once, they can only be moved all at once."""
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
        """It stays in our share, idle, until it is moved or taken back."""
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
            raise FencedError(f"{what}: the group has gone on without this member ({reason.str()})") from error
        raise refused(what, error) from error

    def _heard_of_commit(self, error: KafkaError | None, places: Sequence[TopicPartition]) -> None:
        """librdkafka's answer to a commit that nobody waits for."""
        for problem in (error, *(place.error for place in places)):
            if problem is not None:
                self._commit_failed(KafkaException(problem), wait=False)
                return
