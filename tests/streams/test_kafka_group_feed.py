"""A member of a Kafka group: partitions come and go, and none is anybody's twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

import penstock
from penstock.checkpoints.kafka.store import KafkaCheckpoints
from penstock.errors import (
    ConfigError,
    FencedError,
    GroupError,
    OffsetOutOfRangeError,
    StreamError,
    UnknownTopicError,
)
from penstock.model import Change, Checkpoint, CheckpointKey, Lease, Pointer
from penstock.streams.kafka.groups.group_feed import KafkaGroupFeed
from penstock.streams.kafka.stream import kafka_of
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.seeds import seed_of
from tests.servers import Penstock
from tests.streams.kafka_feeds import TIMEOUT_S, Collected, Share, fill, filled_topic
from tests.streams.test_kafka_feed import delete_before

SESSION_S: Final = 6.0
"""The shortest that brokers allow, unless they are told otherwise, as the embedded log of these tests was."""
SHORT_SESSION_S: Final = 1.0
SOON_S: Final = 2.0
"""Apache Kafka of these tests allows it, too."""
EVERY_ASSIGNOR: Final = ("range", "roundrobin", "sticky", "cooperative")


class Member:
    """A feed, its listener, and what came of it, driven by the test."""

    def __init__(
        self,
        connection: penstock.Connection,
        topic: str,
        group: str,
        assignor: str = "cooperative",
        *,
        session_s: float = SESSION_S,
        file: str | None = None,
        known: Sequence[int] = (),
        **progress: int,
    ) -> None:
        """`file` has its checkpoints, and one of each of the `known` partitions."""
        self.share = Share({int(name.removeprefix("p")): pointer for name, pointer in progress.items()})
        self.feed: KafkaGroupFeed = (
            kafka_of(connection)
            .open_topic(topic)
            .group_feed(group, self.share, member=fresh("member"), assignor=assignor, session_timeout_s=session_s)
        )
        self.collected = Collected(self.feed)
        if file is not None:
            self.feed.checkpoints_in(file, known.__contains__)

    def step(self) -> None:
        for batch in self.collected.step():
            assert batch.partition in self.share.owned, "a batch of a partition that is not ours"
            self.share.progress[batch.partition] = batch.next

    def close(self) -> None:
        self.feed.close()


def step_until(what: str, members: Sequence[Member], condition: Callable[[], object], timeout_s: float = 40.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s"
        for member in members:
            member.step()


@pytest.mark.parametrize("assignor", EVERY_ASSIGNOR)
def test_partitions_are_shared_out_and_nothing_is_lost_or_owned_twice(
    either: penstock.Connection, assignor: str
) -> None:
    topic, group = filled_topic(either, (100, 100, 100, 100)), fresh("group")
    first = Member(either, topic, group, assignor)
    step_until("the first has all", [first], lambda: first.collected.count() == 400)
    second = Member(either, topic, group, assignor)
    second.share.progress = first.share.progress  # what a checkpoint store would tell
    step_until("both have two", [first, second], lambda: len(first.share.owned) == 2 and len(second.share.owned) == 2)
    assert first.share.owned | second.share.owned == {0, 1, 2, 3}
    for partition in range(4):
        fill(either, topic, range(100, 110), partition)
    step_until(
        "both read their share", [first, second], lambda: first.collected.count() + second.collected.count() == 440
    )
    assert not any(second.collected.numbers(each)[0] != 100 for each in second.collected.values)
    second.close()
    assert second.share.told[-1][0] == "revoked"
    step_until("the first has all again", [first], lambda: len(first.share.owned) == 4)
    first.close()
    assert not first.share.owned


def test_cooperative_members_keep_what_they_have_while_others_join(either: penstock.Connection) -> None:
    topic, group = filled_topic(either, (1, 1, 1, 1)), fresh("group")
    first = Member(either, topic, group)
    step_until("the first has all", [first], lambda: len(first.share.owned) == 4)
    second = Member(either, topic, group)
    step_until("both have two", [first, second], lambda: len(second.share.owned) == 2)
    revoked = [partitions for what, partitions in first.share.told if what == "revoked"]
    assert sum(map(len, revoked)) == 2, first.share.told
    first.close()
    second.close()


def test_progress_can_be_seen_in_the_group(either: penstock.Connection) -> None:
    topic, group = filled_topic(either, (10, 10)), fresh("group")
    member = Member(either, topic, group)
    step_until("all is read", [member], lambda: member.collected.count() == 20)
    member.feed.commit({0: 4}, wait=True)
    member.feed.commit({1: 7}, wait=False)
    groups = either.group_admin()

    def committed() -> dict[int, int | None]:
        return {each.partition: each.committed for each in groups.describe(group).progress}

    step_until("the group shows it", [member], lambda: committed() == {0: 4, 1: 7})
    member.close()


def test_a_member_begins_where_its_listener_says_not_where_the_group_committed(either: penstock.Connection) -> None:
    topic, group = filled_topic(either, (10,)), fresh("group")
    member = Member(either, topic, group)
    step_until("all is read", [member], lambda: member.collected.count() == 10)
    member.feed.commit({0: 10}, wait=True)
    member.close()
    again = Member(either, topic, group, p0=5)
    step_until("it reads from there", [again], lambda: again.collected.count() == 5)
    assert again.collected.numbers() == [5, 6, 7, 8, 9]
    again.close()


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_seek_goes_on_elsewhere_and_the_others_stay_where_they_are(stream: penstock.Connection, assignor: str) -> None:
    topic = filled_topic(stream, (100, 100))
    member = Member(stream, topic, fresh("group"), assignor)
    step_until("all is read", [member], lambda: member.collected.count() == 200)
    member.feed.pause(1)
    member.feed.seek(1, 90)
    member.feed.seek(0, 95)
    member.collected = Collected(member.feed)
    fill(stream, topic, [100], 0)
    fill(stream, topic, [100], 1)
    step_until("one is read again", [member], lambda: len(member.collected.numbers(0)) == 6)
    assert 1 not in member.collected.values, "a paused partition stays paused when it is moved"
    member.feed.resume(1)
    step_until("so is the other", [member], lambda: len(member.collected.numbers(1)) == 11)
    assert member.collected.numbers(0) == list(range(95, 101))
    assert member.collected.numbers(1) == list(range(90, 101))
    with pytest.raises(GroupError, match="not in this member's share"):
        member.feed.seek(7, 0)
    member.close()


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_an_expired_offset_is_told_and_the_partition_can_be_put_elsewhere(
    either: penstock.Connection, assignor: str
) -> None:
    topic = filled_topic(either, (20, 20))
    delete_before(either, topic, 15)
    member = Member(either, topic, fresh("group"), assignor, p0=3, p1=0)
    with pytest.raises(OffsetOutOfRangeError) as raised:
        step_until("the error comes", [member], lambda: False)
    assert (raised.value.partition, raised.value.start) == (0, 15)
    member.feed.seek(0, 15)
    step_until("it goes on", [member], lambda: member.collected.count() == 25)
    assert member.collected.numbers(0) == list(range(15, 20))
    assert member.collected.numbers(1) == list(range(20))
    member.close()


def test_a_member_whose_share_is_paused_stays_in_the_group_and_hears_of_others(stream: penstock.Connection) -> None:
    topic, group = filled_topic(stream, (3000, 3000)), fresh("group")
    first = Member(stream, topic, group)
    step_until("the first has all", [first], lambda: len(first.share.owned) == 2)
    for partition in (0, 1):
        first.feed.pause(partition)
    before = first.collected.count()
    second = Member(stream, topic, group)
    step_until("both have one", [first, second], lambda: len(second.share.owned) == 1)
    assert first.collected.count() == before
    second.close()
    first.close()


def test_wake_ends_a_poll_that_waits(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (1,))
    member = Member(stream, topic, fresh("group"))
    step_until("its record comes", [member], lambda: member.collected.count() == 1)
    threading.Timer(0.2, member.feed.wake).start()
    begun_s = time.monotonic()
    assert not member.feed.poll(10, TIMEOUT_S)
    assert 0.1 < time.monotonic() - begun_s < 5
    member.close()


def test_a_slow_listener_does_not_cost_the_member_its_place(stream: penstock.Connection) -> None:
    """`revoked` takes longer than the session: heartbeats go on meanwhile, and nobody gets its partitions too early."""
    topic, group = filled_topic(stream, (10, 10)), fresh("group")
    first = Member(stream, topic, group, session_s=SHORT_SESSION_S)
    second_owned_during_revoke: list[set[int]] = []
    released = threading.Event()

    def slow(partitions: Sequence[int]) -> None:
        released.wait(SHORT_SESSION_S * 2.5)
        second_owned_during_revoke.append(set(second.share.owned))
        Share.revoked(first.share, partitions)

    step_until("the first has all", [first], lambda: len(first.share.owned) == 2)
    first.share.revoked = slow  # type: ignore[method-assign]
    second = Member(stream, topic, group, session_s=SHORT_SESSION_S)
    with driven(second):
        step_until("the second has one", [first], lambda: len(second.share.owned) == 1)
    assert second_owned_during_revoke == [set()]
    assert "lost" not in {what for what, _ in first.share.told}, first.share.told
    assert len(first.share.owned) == 1
    released.set()
    first.close()
    second.close()


@contextmanager
def driven(member: Member) -> Iterator[None]:
    """Step the member in a thread of its own."""
    stop = threading.Event()

    def drive() -> None:
        while not stop.is_set():
            member.step()

    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_a_member_that_does_not_poll_for_too_long_loses_its_share_and_comes_back(
    server: Penstock, assignor: str
) -> None:
    options = {"max.poll.interval.ms": 1500}
    with penstock.connect(f"kafka://{server.bootstrap}", librdkafka=options) as connection:
        topic, group = filled_topic(connection, (10, 10)), fresh("group")
        sleeper = Member(connection, topic, group, assignor, session_s=SHORT_SESSION_S)
        step_until("it has all", [sleeper], lambda: sleeper.collected.count() == 20)
        groups = connection.group_admin()
        eventually("the group goes on without it", lambda: not groups.describe(group).members)
        heir = Member(connection, topic, group, assignor, session_s=SHORT_SESSION_S)
        heir.share.progress = sleeper.share.progress
        step_until("the other one has all", [heir], lambda: len(heir.share.owned) == 2)
        assert len(sleeper.share.owned) == 2, "it has not been told yet"
        with pytest.raises(FencedError):
            sleeper.feed.commit({0: 1}, wait=True)
        with driven(heir):
            step_until("it hears of it", [sleeper], lambda: ("lost", (0, 1)) in sleeper.share.told)
            step_until("it comes back", [sleeper], lambda: len(sleeper.share.owned) == 1)
        sleeper.close()
        heir.close()


class Register:
    """Who owns what, across members: nobody may own what another one still has."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owners: dict[int, object] = {}
        self.progress: dict[int, Pointer] = {}
        self.read: dict[int, list[int]] = {}
        self.problems: list[str] = []


class Registered(Share):
    def __init__(self, register: Register) -> None:
        super().__init__()
        self.register = register
        self.progress = register.progress

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        with self.register.lock:
            for partition in partitions:
                if partition in self.register.owners:
                    self.register.problems.append(f"{partition} was given away while somebody had it")
                self.register.owners[partition] = self
            return super().assigned(partitions)

    def _give_back(self, partitions: Sequence[int]) -> None:
        with self.register.lock:
            for partition in partitions:
                if self.register.owners.pop(partition, None) is not self:
                    self.register.problems.append(f"{partition} was given back by one who did not have it")
            super()._give_back(partitions)


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_while_members_come_and_go_each_record_is_read_once_by_one_of_them(
    stream: penstock.Connection, assignor: str
) -> None:
    rng = random.Random(seed_of())
    partitions, each = 6, 3000
    topic, group, register = filled_topic(stream, (each,) * partitions), fresh("group"), Register()

    def live(polls: int, limit: int) -> None:
        """A member that leaves after so many polls with something in them."""
        feed = (
            kafka_of(stream)
            .open_topic(topic)
            .group_feed(group, Registered(register), member=fresh("m"), assignor=assignor, session_timeout_s=SESSION_S)
        )
        try:
            deadline_s = time.monotonic() + TIMEOUT_S
            while polls > 0 and sum(map(len, register.read.values())) < partitions * each:
                assert time.monotonic() < deadline_s, "there is no progress"
                for batch in feed.poll(limit, 0.05):
                    polls -= 1
                    register.read.setdefault(batch.partition, []).extend(int(value or b"") for value in batch.values())
                    register.progress[batch.partition] = batch.next
        except BaseException as error:
            register.problems.append(repr(error))
            raise
        finally:
            feed.close()

    threads: list[threading.Thread] = []
    for _ in range(8):
        threads.append(threading.Thread(target=live, args=(rng.randrange(1, 60), rng.randrange(20, 200))))
        threads[-1].start()
        threads[max(0, len(threads) - 3)].join(rng.uniform(0, 0.5))
    last = threading.Thread(target=live, args=(1_000_000, 500))
    last.start()
    for thread in (*threads, last):
        thread.join(TIMEOUT_S)
        assert not thread.is_alive(), "a member did not end"
    assert not register.problems, register.problems[:5]
    assert register.read == {partition: list(range(each)) for partition in range(partitions)}
    assert not register.owners


def test_checkpoints_in_kafka_can_be_saved_for_a_group_with_members(either: penstock.Connection) -> None:
    topic, group = filled_topic(either, (10,)), fresh("group")
    member = Member(either, topic, group)
    step_until("all is read", [member], lambda: member.collected.count() == 10)
    store, key = KafkaCheckpoints(either, partitions=2), CheckpointKey(group, topic, 0)
    lease = store.claim(group, key.lease_name, "a", None)
    assert lease is not None
    store.save(lease, key, Change(Checkpoint(4, 10)))
    groups = either.group_admin()
    # Apache Kafka shows offsets of a transaction a moment after it has acknowledged its commit.
    eventually("the group shows it", lambda: [place.committed for place in groups.describe(group).progress] == [4])
    assert len(groups.describe(group).members) == 1
    member.close()
    store.close()


def test_a_topic_that_is_not_there_is_an_error(either: penstock.Connection) -> None:
    feed = (
        kafka_of(either)
        .open_topic(fresh())
        .group_feed(fresh("group"), Share(), member="m", assignor="range", session_timeout_s=SESSION_S)
    )
    with pytest.raises(UnknownTopicError):
        Collected(feed).step_until("the error comes", lambda: False)
    feed.close()


def test_a_commit_of_somebody_elses_partition_is_refused_when_waited_for(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (1,))
    member = Member(stream, topic, fresh("group"))
    with pytest.raises(FencedError):
        member.feed.commit({0: 1}, wait=True)
    member.feed.commit({0: 1}, wait=False)
    step_until("it has its share", [member], lambda: member.share.owned)
    member.feed.commit({0: 1}, wait=True)
    member.close()


class Refusing(Share):
    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        raise RuntimeError("no room")


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
@pytest.mark.parametrize(("start", "told"), [(0, "and handle again"), (10, "and leave out")])
def test_a_member_with_a_file_of_its_own_is_refused_what_others_handled_with_theirs(
    either: penstock.Connection, assignor: str, start: int, told: str
) -> None:
    topic, group = filled_topic(either, (10,)), fresh("group")
    first = Member(either, topic, group, assignor, file="ann:/app/x.db")
    step_until("all is read", [first], lambda: first.collected.count() == 10)
    first.feed.commit({0: 8}, wait=True)
    first.close()
    assert either.group_admin().describe(group).is_checkpointed
    second = Member(either, topic, group, assignor, file="bob:/app/x.db", p0=start)
    with pytest.raises(ConfigError, match=rf"{topic}-0 was handled up to offset 8 .* ann:/app/x\.db\..*{told}"):
        step_until("it is refused", [second], lambda: False)
    assert not second.share.owned
    assert not second.collected.values
    second.close()
    assert either.group_admin().committed(group) == {(topic, 0): 8}, "it has committed nothing"


@pytest.mark.parametrize(
    "second",
    [
        {"file": "bob:/app/x.db", "p0": 8},
        {"file": "bob:/app/x.db", "p0": 5, "known": (0,)},
        {"file": "ann:/app/x.db", "p0": 5},
        {"p0": 5},
    ],
    ids=["begins where the others ended", "has a checkpoint", "the same file", "a store of all hosts"],
)
def test_a_member_that_may_know_what_was_handled_is_not_refused(
    either: penstock.Connection, second: dict[str, Any]
) -> None:
    topic, group = filled_topic(either, (10,)), fresh("group")
    first = Member(either, topic, group, file="ann:/app/x.db")
    step_until("all is read", [first], lambda: first.collected.count() == 10)
    first.feed.commit({0: 8}, wait=True)
    first.close()
    member = Member(either, topic, group, **second)
    step_until("it reads", [member], lambda: member.collected.count() == 10 - second["p0"])
    member.close()


@pytest.mark.parametrize("assignor", ["range", "cooperative"])
def test_an_error_of_the_listener_comes_out_of_poll_and_the_feed_can_be_closed(
    stream: penstock.Connection, assignor: str
) -> None:
    topic = filled_topic(stream, (1,))
    feed = (
        kafka_of(stream)
        .open_topic(topic)
        .group_feed(fresh("group"), Refusing(), member="m", assignor=assignor, session_timeout_s=SESSION_S)
    )
    collected = Collected(feed)
    with pytest.raises(RuntimeError, match="no room"):
        collected.step_until("the error comes", lambda: False)
    with pytest.raises(StreamError, match="close it"):
        feed.poll(1, 0)
    feed.close()
    assert not collected.values


class Clinging(Share):
    def revoked(self, partitions: Sequence[int]) -> None:
        raise RuntimeError("not now")


def test_an_error_of_the_listener_while_it_is_closed_comes_out_of_close(stream: penstock.Connection) -> None:
    topic = filled_topic(stream, (1,))
    feed = (
        kafka_of(stream)
        .open_topic(topic)
        .group_feed(fresh("group"), Clinging(), member="m", assignor="range", session_timeout_s=SESSION_S)
    )
    collected = Collected(feed)
    collected.step_until("its record comes", lambda: collected.count() == 1)
    with pytest.raises(RuntimeError, match="not now"):
        feed.close()
    feed.close()


def test_what_cannot_be_is_refused_by_name(stream: penstock.Connection) -> None:
    topic = kafka_of(stream).open_topic(filled_topic(stream, (1,)))
    with pytest.raises(ConfigError, match="'fair' is not one of range, roundrobin, sticky, cooperative"):
        topic.group_feed("g", Share(), member="m", assignor="fair", session_timeout_s=SESSION_S)
    with pytest.raises(GroupError, match="needs a name"):
        topic.group_feed("", Share(), member="m", assignor="range", session_timeout_s=SESSION_S)
    feed = topic.group_feed(fresh("group"), Share(), member="m", assignor="range", session_timeout_s=SESSION_S)
    with pytest.raises(StreamError, match="group"):
        feed.add(0, 0)
    with pytest.raises(StreamError, match="group"):
        feed.remove(0)
    feed.close()


MEMBER_PROGRAM: Final = """
import sys
import penstock
class Share:
    def assigned(self, partitions):
        print("assigned", *partitions, flush=True)
        return dict.fromkeys(partitions, 0)
    def revoked(self, partitions): pass
    def lost(self, partitions): pass
with penstock.connect("kafka://" + sys.argv[1]) as connection:
    feed = connection.open_topic(sys.argv[2]).group_feed(
        sys.argv[3], Share(), member="victim", assignor="cooperative", session_timeout_s=float(sys.argv[4]))
    while True:
        for batch in feed.poll(1000, 1.0):
            print("read", batch.partition, batch.next, flush=True)
"""


def test_the_share_of_a_killed_member_is_taken_over(either: penstock.Connection) -> None:
    topic, group = filled_topic(either, (5, 5)), fresh("group")
    victim = subprocess.Popen(
        [sys.executable, "-c", MEMBER_PROGRAM, either.bootstrap, topic, group, str(SOON_S)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert victim.stdout is not None
        read: set[str] = set()
        while len(read) < 2:
            words = victim.stdout.readline().split()
            assert words, "the member ended by itself"
            if words[0] == "read":
                read.add(words[1])
        heir = Member(either, topic, group, session_s=SOON_S)
        step_until("they share", [heir], lambda: len(heir.share.owned) == 1)
        os.kill(victim.pid, signal.SIGKILL)
        step_until("the other has all", [heir], lambda: len(heir.share.owned) == 2)
        step_until("and reads it", [heir], lambda: heir.collected.count() == 10)
        heir.close()
    finally:
        victim.kill()
        victim.communicate()
