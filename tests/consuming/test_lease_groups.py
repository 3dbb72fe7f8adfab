"""A feed of a group by lease, with its threads, on a real store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from penstock.abc import Feature, Features
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.consuming.lease_groups.group import LeaseGroupFeed
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    CorruptCheckpointError,
    GroupError,
    StoreUnavailableError,
)
from penstock.model import Batch, Lease, Pointer
from penstock.model.clock import SystemClock
from penstock.testing import MemoryStream
from tests.consuming.counting_stream import CountingStream
from tests.consuming.eventually import wait_until

TTL_S = 1.0


class Running:
    """A member and the thread that polls it."""

    def __init__(self, stream: CountingStream, store: MemoryCheckpoints, name: str, ttl_s: float = TTL_S) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.threads: set[str] = set()
        self.leases: dict[int, Lease] = {}
        self.came: dict[int, list[int]] = {}
        self.error: Exception | None = None
        self.complaints: list[Exception] = []
        self.feed = LeaseGroupFeed(stream, store, "billing", self, member=name, ttl_s=ttl_s, clock=SystemClock())
        self._ended = False
        self._thread = threading.Thread(target=self._poll, name=f"polls-{name}")
        self._thread.start()

    def _poll(self) -> None:
        try:
            while not self._ended:
                for batch in self.feed.poll(100, 20.0):
                    self.came.setdefault(batch.partition, []).extend(batch.pointers())
        except Exception as error:
            self.error = error

    def assigned(self, partitions: Mapping[int, Lease | None]) -> Mapping[int, Pointer]:
        self._note("assigned", list(partitions))
        if self.complaints:
            raise self.complaints.pop()
        self.leases.update({partition: lease for partition, lease in partitions.items() if lease is not None})
        return dict.fromkeys(partitions, 0)

    def revoked(self, partitions: Sequence[int]) -> None:
        self._note("revoked", partitions)
        for partition in partitions:
            del self.leases[partition]

    def lost(self, partitions: Sequence[int]) -> None:
        self._note("lost", partitions)
        for partition in partitions:
            del self.leases[partition]

    def _note(self, what: str, partitions: Sequence[int]) -> None:
        self.calls.append((what, sorted(partitions)))
        self.threads.add(threading.current_thread().name)

    def end(self) -> None:
        self.stop_polling()
        self.feed.close()

    def stop_polling(self) -> None:
        self._ended = True
        self.feed.wake()
        self._thread.join()


Join = Callable[..., Running]


@pytest.fixture
def stream() -> CountingStream:
    return CountingStream("orders", partitions=4, count=50)


@pytest.fixture
def store() -> MemoryCheckpoints:
    return MemoryCheckpoints()


@pytest.fixture
def join(stream: CountingStream, store: MemoryCheckpoints) -> Iterator[Join]:
    with ExitStack() as ends:

        def start(name: str, on: CountingStream = stream, ttl_s: float = TTL_S) -> Running:
            running = Running(on, store, name, ttl_s)
            ends.callback(running.end)
            return running

        yield start


def poll_until_something(feed: LeaseGroupFeed, attempts: int = 100) -> Sequence[Batch]:
    for _ in range(attempts):
        if batches := feed.poll(100, 0.1):
            return batches
    raise AssertionError("nothing came")


def test_a_member_alone_reads_everything(join: Join) -> None:
    alone = join("a")
    wait_until(lambda: {p: len(came) for p, came in alone.came.items()} == dict.fromkeys(range(4), 50))
    assert alone.calls == [("assigned", [0, 1, 2, 3])]
    assert alone.came[0] == list(range(50))


def test_a_second_member_gets_its_share_soon_and_the_listener_is_called_by_who_polls(join: Join) -> None:
    first = join("a", ttl_s=6.0)
    wait_until(lambda: len(first.leases) == 4)
    second = join("b", ttl_s=6.0)
    wait_until(lambda: (len(first.leases), len(second.leases)) == (2, 2), timeout_s=4.0)
    assert first.threads == {"polls-a"}
    assert second.threads == {"polls-b"}


def test_who_leaves_hands_over_at_once(join: Join, store: MemoryCheckpoints) -> None:
    first, second = join("a", ttl_s=6.0), join("b", ttl_s=6.0)
    wait_until(lambda: (len(first.leases), len(second.leases)) == (2, 2))
    second.end()
    assert second.calls[-1][0] == "revoked"
    wait_until(lambda: len(first.leases) == 4, timeout_s=4.0)
    assert [lease.name for lease in store.leases("billing") if lease.name.startswith("member")] == ["member:orders:a"]


def test_of_two_under_one_name_the_newer_one_stays(join: Join) -> None:
    older = join("a")
    wait_until(lambda: len(older.leases) == 4)
    newer = join("a")
    wait_until(lambda: len(newer.leases) == 4)
    wait_until(lambda: older.error is not None)
    assert isinstance(older.error, GroupError)
    assert "a unique name" in str(older.error)
    assert older.calls[-1][0] == "lost"
    assert not older.leases


def test_a_topic_that_is_not_there_yet_is_waited_for(join: Join) -> None:
    later = CountingStream("later", partitions=0, count=10)
    member = join("a", later)
    wait_until(lambda: member.feed._membership.state.view.members)
    assert member.calls == []
    later.grow(partitions=2)
    wait_until(lambda: {p: len(came) for p, came in member.came.items()} == {0: 10, 1: 10})


def test_a_stream_with_a_feed_of_its_own_is_read_by_it() -> None:
    streams, store = MemoryStream(), MemoryCheckpoints()
    streams.create_topic("orders", 2)
    for number in range(20):
        streams.send("orders", b"%d" % number, partition=number % 2)
    member = Running(streams.open_topic("orders"), store, "a")  # type: ignore[arg-type]
    try:
        wait_until(lambda: {p: len(came) for p, came in member.came.items()} == {0: 10, 1: 10})
    finally:
        member.end()


def test_groups_and_topics_of_one_store_do_not_mind_each_other(join: Join) -> None:
    orders = join("a")
    refunds = join("a", CountingStream("orders:a", partitions=3, count=1))
    wait_until(lambda: len(orders.leases) == 4)
    wait_until(lambda: len(refunds.leases) == 3)
    assert orders.error is None


def test_partitions_that_are_added_are_found(join: Join, stream: CountingStream) -> None:
    member = join("a")
    wait_until(lambda: len(member.leases) == 4)
    stream.grow(partitions=2)
    wait_until(lambda: len(member.leases) == 6)


def test_a_seek_goes_on_elsewhere_and_only_in_what_is_ours(join: Join) -> None:
    member = join("a")
    wait_until(lambda: len(member.came.get(3, [])) == 50)
    member.stop_polling()
    member.feed.seek(3, 45)
    (batch,) = poll_until_something(member.feed)
    assert batch.pointers() == [45, 46, 47, 48, 49]
    with pytest.raises(GroupError, match="is not assigned"):
        member.feed.seek(17, 0)
    with pytest.raises(GroupError, match="the group assigns partitions"):
        member.feed.add(0, 0)
    with pytest.raises(GroupError, match="the group assigns partitions"):
        member.feed.remove(0)
    assert member.feed.holds(3)
    assert member.feed.held == [0, 1, 2, 3]
    member.feed.commit({0: 1}, wait=True)


def test_a_listener_that_cannot_reach_the_store_is_asked_again(join: Join) -> None:
    other = join("b")
    wait_until(lambda: len(other.leases) == 4)
    member = join("a")
    member.complaints = [StoreUnavailableError("away"), StoreUnavailableError("away")]
    wait_until(lambda: len(member.leases) == 2)
    assert member.error is None
    assert [what for what, _ in member.calls].count("assigned") >= 3


def test_what_a_listener_raises_is_raised_and_others_get_the_partitions(join: Join) -> None:
    other = join("b")
    wait_until(lambda: len(other.leases) == 4)
    member = join("a")
    member.complaints = [CorruptCheckpointError("damaged")]
    wait_until(lambda: member.error is not None)
    assert isinstance(member.error, CorruptCheckpointError)
    member.feed.close()
    wait_until(lambda: len(other.leases) == 4)


class Unreachable(MemoryCheckpoints):
    """A store that can be taken away."""

    away = False

    def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
        self._check()
        return super().leases(group, prefix)

    def renew(self, lease: Lease) -> Lease:
        self._check()
        return super().renew(lease)

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        self._check()
        return super().claim(group, name, owner, seen)

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailableError("away")


def test_a_store_that_is_away_costs_the_partitions_and_they_come_back_with_it(stream: CountingStream) -> None:
    store = Unreachable()
    store.away = True
    member = Running(stream, store, "a")
    try:
        wait_until(lambda: member.feed._beat_failures > 0)
        store.away = False
        wait_until(lambda: len(member.leases) == 4)
        store.away = True
        wait_until(lambda: not member.leases)
        assert member.calls[-1] == ("lost", [0, 1, 2, 3])
        store.away = False
        wait_until(lambda: len(member.leases) == 4)
        assert member.error is None
    finally:
        member.end()


def test_an_error_that_no_attempt_can_mend_is_raised_by_poll(stream: CountingStream) -> None:
    class Broken(MemoryCheckpoints):
        def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
            raise CorruptCheckpointError("damaged")

    member = Running(stream, Broken(), "a")
    wait_until(lambda: member.error is not None)
    assert isinstance(member.error, CorruptCheckpointError)
    with pytest.raises(CorruptCheckpointError), closing_twice(member.feed):
        member.feed.poll(1, 0.0)


@contextmanager
def closing_twice(feed: LeaseGroupFeed) -> Iterator[None]:
    try:
        yield
    finally:
        try:
            feed.close()
        except CorruptCheckpointError:
            feed.close()


def test_a_closed_feed_is_not_polled_and_its_threads_end(join: Join) -> None:
    member = join("closing")
    wait_until(lambda: len(member.leases) == 4)
    member.end()
    member.feed.close()
    with pytest.raises(ConnectionClosedError):
        member.feed.poll(1, 0.0)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("penstock-heartbeat", "penstock-partitions"))]


class Private(MemoryCheckpoints):
    features: Features = MemoryCheckpoints.features - {Feature.LEASES}


@pytest.mark.parametrize(
    ("store", "group", "member", "ttl_s"),
    [(Private(), "g", "m", 1.0), (MemoryCheckpoints(), "", "m", 1.0), (MemoryCheckpoints(), "g", "", 1.0)]
    + [(MemoryCheckpoints(), "g", "m", ttl_s) for ttl_s in (0.0, -1.0, float("nan"))],
)
def test_what_cannot_work_is_refused(
    stream: CountingStream, store: MemoryCheckpoints, group: str, member: str, ttl_s: float
) -> None:
    with pytest.raises(ConfigError):
        LeaseGroupFeed(stream, store, group, object(), member=member, ttl_s=ttl_s, clock=SystemClock())  # type: ignore[arg-type]
