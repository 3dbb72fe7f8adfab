"""Leaving a Kafka group: it takes no longer when a rebalance callback is due, and the last commit is kept."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

import penstock
from penstock.model import Lease, Pointer
from penstock.streams.kafka.groups.group_feed import KafkaGroupFeed
from penstock.streams.kafka.groups.leaving import GroupExit
from penstock.streams.kafka.stream import kafka_of
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.seeds import seed_of
from tests.streams.kafka_feeds import Collected, Share, filled_topic

SESSION_S: Final = 60.0
"""A member that does not leave stays in the group for this long: longer than any test waits."""


def group_feed(
    connection: penstock.Connection, topic: str, group: str, listener: Share, assignor: str = "cooperative"
) -> KafkaGroupFeed:
    return (
        kafka_of(connection)
        .open_topic(topic)
        .group_feed(group, listener, member=fresh("member"), assignor=assignor, session_timeout_s=SESSION_S)
    )


def wait_until_shared_out(connection: penstock.Connection, group: str, members: int = 1) -> None:
    """Wait until the broker has told the members their shares, which they learn from their next poll."""
    groups = connection.group_admin()

    def is_shared_out() -> bool:
        if group not in {each.name for each in groups.all()}:
            return False
        description = groups.describe(group)
        return description.state == "stable" and len(description.members) == members

    eventually("the partitions are shared out", is_shared_out)


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_a_feed_that_is_closed_before_it_hears_of_its_share_takes_none_of_it(
    either: penstock.Connection, assignor: str
) -> None:
    topic, group, listener = filled_topic(either, (1, 1, 1)), fresh("group"), Share()
    feed = group_feed(either, topic, group, listener, assignor)
    wait_until_shared_out(either, group)
    feed.close()
    assert not listener.told
    assert not either.group_admin().describe(group).members


class Saving(Share):
    """Commits where it has got to when its share is revoked, as an app does."""

    feed: KafkaGroupFeed

    def revoked(self, partitions: Sequence[int]) -> None:
        self.feed.commit({partition: self.progress[partition] for partition in partitions}, wait=True)
        super().revoked(partitions)


def has_all(listener: Share) -> bool:
    return listener.owned == {0, 1}


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_what_is_committed_for_a_share_that_is_handed_back_gets_there_and_the_group_is_left(
    either: penstock.Connection, assignor: str
) -> None:
    topic, group = filled_topic(either, (30, 30)), fresh("group")
    groups = either.group_admin()
    for committed in range(1, 11):
        listener = Saving({0: committed, 1: 2 * committed})
        listener.feed = feed = group_feed(either, topic, group, listener, assignor)
        Collected(feed).step_until("it has its share", functools.partial(has_all, listener))
        feed.close()
        assert listener.told == [("assigned", (0, 1)), ("revoked", (0, 1))]
        assert groups.committed(group) == {(topic, 0): committed, (topic, 1): 2 * committed}
        assert not groups.describe(group).members


class Refusing(Share):
    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        raise RuntimeError("no room")


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_a_member_that_took_nothing_can_leave_in_the_middle_of_a_rebalance(
    stream: penstock.Connection, assignor: str
) -> None:
    """librdkafka revokes partitions that were never assigned."""
    topic, group, listener = filled_topic(stream, (1, 1)), fresh("group"), Share()
    refusing = group_feed(stream, topic, group, Refusing(), assignor)
    with pytest.raises(RuntimeError, match="no room"):
        Collected(refusing).step_until("the error comes", lambda: False)
    other = group_feed(stream, topic, group, listener, assignor)
    if assignor == "cooperative":
        wait_until_shared_out(stream, group, members=2)
    refusing.close()
    Collected(other).step_until("the other one has all", functools.partial(has_all, listener))
    other.close()


@pytest.mark.parametrize(
    ("strategy", "called"), [("range", ["assigned"]), ("cooperative-sticky", ["assigned", "revoked"])]
)
def test_callbacks_that_are_due_when_a_consumer_is_closed_are_answered(
    either: penstock.Connection, strategy: str, called: list[str]
) -> None:
    topic, group = filled_topic(either, (1, 1)), fresh("group")
    consumer = Consumer(
        {
            "bootstrap.servers": either.bootstrap,
            "group.id": group,
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": round(SESSION_S * 1000),
        }
    )
    leaving = GroupExit(consumer, topic, is_cooperative=strategy == "cooperative-sticky")
    told: list[str] = []

    def assigned(_: Consumer, places: list[TopicPartition]) -> None:
        told.append("assigned")
        leaving.answer(is_assignment=True)

    def revoked(_: Consumer, places: list[TopicPartition]) -> None:
        told.append("revoked")
        leaving.answer(is_assignment=False)

    consumer.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    wait_until_shared_out(either, group)
    leaving.close()
    assert told == called
    assert not either.group_admin().describe(group).members


QUICK_MEMBERS: Final = """
import random, sys
import penstock
from penstock.streams.kafka.stream import kafka_of
from tests.streams.kafka_feeds import Share
bootstrap, topic, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = random.Random(seed)
with penstock.connect("kafka://" + bootstrap) as connection:
    for number in range(count):
        group = f"quick-{seed}-{number // 2}"
        assignor = rng.choices(["range", "cooperative", "a reader"], [5, 10, 1])[0]
        if assignor == "a reader":
            reader = connection.read_as_member(f"{group}-read", topic, follow=True, timeout_s=rng.uniform(0.0, 0.1))
            next(reader, None)
            reader.close()
            continue
        listener = Share()
        feed = kafka_of(connection).open_topic(topic).group_feed(
            f"{group}-{assignor}", listener, member="m", assignor=assignor, session_timeout_s=6.0)
        for _ in range(rng.randrange(4)):
            feed.poll(10, rng.uniform(0.0, 0.05))
        feed.close()
        assert not listener.owned, listener.told
print("all have left")
"""


def test_members_that_join_and_leave_quickly_do_not_hang(stream: penstock.Connection) -> None:
    """They run in a child process: a hang inside librdkafka stops every Python thread of its process."""
    topic = filled_topic(stream, (3, 3, 3))
    child = subprocess.run(
        [sys.executable, "-c", QUICK_MEMBERS, stream.bootstrap, topic, "200", str(seed_of())],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.stdout == "all have left\n", child.stderr
