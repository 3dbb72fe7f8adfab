"""Resetting and deleting groups: an app goes on exactly where it was moved to, whatever its checkpoint store."""

from __future__ import annotations

import datetime
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.abc import CheckpointStore, GroupAdmin
from penstock.checkpoints.kafka.store import KafkaCheckpoints
from penstock.checkpoints.opening import open_store
from penstock.errors import GroupError
from penstock.model import Change, Checkpoint, CheckpointKey
from penstock.model.administration import CHECKPOINTED
from penstock.model.checkpoint import Claim, Failing
from penstock.observe.group_moves import (
    OWNER,
    GroupProgress,
    Moved,
    Target,
    check_stopped,
    delete,
    find_progress,
    plan_reset,
    reset,
)
from penstock.observe.stream_observer import StreamObserver
from penstock.testing.clock import VirtualClock
from penstock.testing.conformance.child import Child, Parent
from tests.clients.names import fresh
from tests.clients.waiting import eventually

RECORDS = 12
SESSION_S = 3.0
"""How long the broker remembers a member that ends while the group is sharing out partitions."""
NOW = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)


@pytest.fixture(params=["sqlite", "file", "kafka", "memory"])
def store(request: pytest.FixtureRequest, stream: penstock.Connection, tmp_path: Path) -> Iterator[CheckpointStore]:
    urls = {"sqlite": f"sqlite:{tmp_path}/c.db", "file": f"file:{tmp_path}/c", "memory": "memory:"}
    opened = KafkaCheckpoints(stream) if request.param == "kafka" else open_store(urls[request.param])
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def groups(stream: penstock.Connection) -> GroupAdmin:
    return stream.group_admin()


@pytest.fixture
def topic(stream: penstock.Connection) -> str:
    """A topic of three partitions, with the records 0 to 11: four in each."""
    name = fresh()
    stream.create_topic(name, 3)
    for number in range(RECORDS):
        stream.send(name, str(number), partition=number % 3)
    stream.flush(20)
    return name


def handled(stream: penstock.Connection, topic: str, group: str, store: CheckpointStore | str) -> list[int]:
    """Run an app to the end of the topic, and give what its handler got."""
    app = penstock.App(stream.url, group=group, checkpoints=store)
    got: list[int] = []

    @app.handle(topic, end="latest", session_timeout_s=SESSION_S)
    def note(record: penstock.Record) -> None:
        assert record.value is not None
        got.append(int(record.value))

    app.run()
    groups = stream.group_admin()
    eventually("the app has left its group", lambda: not groups.describe(group).is_active)
    return sorted(got)


def moved(
    stream: penstock.Connection, store: CheckpointStore, group: str, to: str, topics: tuple[str, ...] = ()
) -> tuple[GroupProgress, Moved]:
    groups = stream.group_admin()
    progress = find_progress(groups, {"store": store}, group, may_be_new=bool(topics))
    moves = plan_reset(stream.admin(), progress, Target.parse(to, NOW), topics)
    check_stopped(progress, patience_s=0)
    return progress, reset(groups, progress, moves, 1)


@pytest.mark.sampled(2, each="store")
@pytest.mark.parametrize(
    ("to", "expected"),
    [("earliest", range(RECORDS)), ("2", range(6, RECORDS)), ("-1", range(9, RECORDS)), ("latest", ())],
)
def test_an_app_handles_exactly_the_records_from_where_it_was_moved_to(
    stream: penstock.Connection, topic: str, store: CheckpointStore, to: str, expected: range
) -> None:
    group = fresh("group")
    assert handled(stream, topic, group, store) == list(range(RECORDS))
    assert handled(stream, topic, group, store) == []
    _, done = moved(stream, store, group, to)
    assert done.partitions == (0 if to == "latest" else 3)
    assert done.where == "checkpoints in store, the Kafka group's offsets"
    observer = StreamObserver(stream, checkpoints=store)
    try:
        assert observer.look().groups[group].lag == len(expected)
    finally:
        observer.close()
    assert stream.group_admin().describe(group).lag == len(expected), "Kafka shows the same"
    assert handled(stream, topic, group, store) == list(expected)
    assert handled(stream, topic, group, store) == []


def test_an_app_whose_group_was_deleted_begins_again(
    stream: penstock.Connection, groups: GroupAdmin, topic: str, store: CheckpointStore
) -> None:
    group = fresh("group")
    handled(stream, topic, group, store)
    progress = find_progress(groups, {"store": store}, group)
    check_stopped(progress)
    assert delete(groups, progress) == "checkpoints in store, the Kafka group's offsets"
    assert group not in store.groups()
    with pytest.raises(GroupError, match="there is no group"):
        find_progress(groups, {"store": store}, group)
    assert handled(stream, topic, group, store) == list(range(RECORDS))


def test_what_was_finished_ahead_and_what_failed_is_forgotten_by_a_move(
    stream: penstock.Connection, topic: str, store: CheckpointStore
) -> None:
    """Also by one to where the group stands: it has read further than that."""
    key = CheckpointKey(fresh("group"), topic, 0)
    lease = store.claim(key.group, key.lease_name, "killed", None)
    assert lease is not None
    failing = (Failing(1, 2, "ValueError: no", 1, 2),)
    store.save(lease, key, Change(Checkpoint(1, 4, ((2, 4),), failing, restarts=2, processed=6, delivered=3)))
    progress, done = moved(stream, store, key.group, "1")
    assert [(move.partition, move.again) for move in done.moves] == [(0, True), (1, False), (2, False)]
    assert store.load(key) == Checkpoint(1, 1, processed=6, delivered=3, saved_ms=1)
    assert progress.starts == {(topic, 0): 1}
    assert not any(lease.owner for lease in store.leases(key.group))
    assert handled(stream, topic, key.group, store) == [3, 4, 5, 6, 7, 8, 9, 10, 11]


def test_a_running_app_is_named_and_nothing_is_moved(
    stream: penstock.Connection, groups: GroupAdmin, topic: str, tmp_path: Path
) -> None:
    group, url = fresh("group"), f"sqlite:{tmp_path}/c.db"
    app = penstock.App(stream.url, group=group, checkpoints=url)
    refused: list[str] = []

    @app.handle(topic)
    def note(record: penstock.Record) -> None:
        try:
            with open_store(url) as store:  # type: ignore[attr-defined]
                check_stopped(find_progress(groups, {url: store}, group))
        except GroupError as error:
            refused.append(str(error))
        app.stop()

    app.run()
    assert "is stable with 1 member (" in refused[0]
    assert "stop them first" in refused[0]


class Passing(VirtualClock):
    """Who sleeps is woken at once, and the time has passed."""

    def sleep(self, duration_s: float) -> None:
        self.advance(duration_s)


def test_a_member_by_lease_runs_while_it_renews_and_is_dead_when_it_does_not(
    stream: penstock.Connection, groups: GroupAdmin, topic: str
) -> None:
    clock, store = Passing(), open_store("memory:")
    key = CheckpointKey(fresh("group"), topic, 0)
    member = store.claim(key.group, f"member:{topic}:host-1", "host-1/ab.1", None)
    lease = store.claim(key.group, key.lease_name, "host-1/ab.1", None)
    assert member is not None
    assert lease is not None
    store.save(lease, key, Change(Checkpoint(4, 4)))
    progress = find_progress(groups, {"store": store}, key.group)
    waited: list[str] = []
    held = member

    class Beating(Passing):
        def sleep(self, duration_s: float) -> None:
            super().sleep(duration_s)
            store.renew(held)

    with pytest.raises(GroupError, match=r"has a member that runs: host-1/ab\.1"):
        check_stopped(progress, clock=Beating(), on_wait=waited.append)
    assert waited == ["host-1/ab.1 may still run: watching it for 30 s"]
    began_s = clock.monotonic_s()
    check_stopped(progress, clock=clock)
    assert clock.monotonic_s() >= began_s + 30
    assert reset(groups, progress, plan_reset(stream.admin(), progress, Target.parse("0", NOW)), 1).partitions
    with pytest.raises(penstock.errors.FencedError):
        store.save(lease, key, Change(Checkpoint(4, 4)))


def test_who_has_shared_records_in_hand_is_watched_for_as_long_as_it_may_keep_them(
    groups: GroupAdmin, topic: str
) -> None:
    clock, store = Passing(), open_store("memory:")
    key = CheckpointKey(fresh("group"), topic, 0)
    lease = store.claim(key.group, key.lease_name, "share/host-1", None)
    assert lease is not None
    claim = Claim(0, 2, "share/host-1", 1, 1, lasts_ms=90_000)
    store.save(lease, key, Change(Checkpoint(0, 2, claims=(claim,))))
    began_s = clock.monotonic_s()
    check_stopped(find_progress(groups, {"store": store}, key.group), clock=clock)
    assert clock.monotonic_s() >= began_s + 90


def test_a_member_that_starts_in_between_is_left_alone(
    stream: penstock.Connection, groups: GroupAdmin, topic: str
) -> None:
    store, group = open_store("memory:"), fresh("group")
    handled(stream, topic, group, store)
    progress = find_progress(groups, {"store": store}, group)
    moves = plan_reset(stream.admin(), progress, Target.parse("earliest", NOW))
    key = CheckpointKey(group, topic, 1)
    seen = next(each for each in store.leases(group) if each.name == key.lease_name)
    lease = store.claim(group, key.lease_name, "newcomer", seen)
    assert lease is not None
    with pytest.raises(GroupError, match="was taken by newcomer just now"):
        reset(groups, progress, moves, 1)
    assert {each.start for each in store.checkpoints(group).values()} == {4}, "nothing was moved"
    store.save(lease, key, Change(Checkpoint(4, 4)))
    with pytest.raises(GroupError, match="newcomer"):
        delete(groups, progress)


class Dying:
    """A store whose second save ends the process."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._saves = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def save(self, *given: object) -> None:
        self._saves += 1
        if self._saves == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        self._store.save(*given)  # type: ignore[arg-type]


class Nothing:
    def close(self) -> None: ...


def reset_and_die(_: Nothing, parent: Parent, stream_url: str, store_url: str, group: str) -> None:
    with penstock.connect(stream_url) as stream:
        moved(stream, Dying(open_store(store_url)), group, "earliest")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_reset_that_was_killed_in_the_middle_is_finished_by_another(
    stream: penstock.Connection, groups: GroupAdmin, topic: str, tmp_path: Path, kind: str
) -> None:
    url, group = f"{kind}:{tmp_path}/c", fresh("group")
    handled(stream, topic, group, url)
    with Child(Nothing, reset_and_die, stream.url, url, group) as child:
        child.wait_until_killed()
    store = open_store(url)
    try:
        assert sorted(each.start for each in store.checkpoints(group).values()) == [0, 4, 4]
        assert {lease.owner for lease in store.leases(group)} == {OWNER}
        _, done = moved(stream, store, group, "earliest")
        assert done.partitions == 2
        assert handled(stream, topic, group, store) == list(range(RECORDS))
        progress = find_progress(groups, {"store": store}, group)
        delete(groups, progress)
        assert group not in store.groups()
    finally:
        store.close()


def test_an_app_whose_store_is_not_found_is_not_taken_for_a_group_of_kafka(
    stream: penstock.Connection, groups: GroupAdmin, topic: str, tmp_path: Path
) -> None:
    group = fresh("group")
    handled(stream, topic, group, f"sqlite:{tmp_path}/c.db")
    progress = find_progress(groups, {}, group)
    for act in (
        lambda: plan_reset(stream.admin(), progress, Target.parse("earliest", NOW)),
        lambda: delete(groups, progress),
    ):
        with pytest.raises(GroupError, match=r"belongs to an app.*--checkpoints"):
            act()
    assert groups.describe(group).is_checkpointed, CHECKPOINTED
    with open_store("memory:") as other, pytest.raises(GroupError, match=r"no checkpoints.*Kafka has a group of this"):  # type: ignore[attr-defined]
        find_progress(groups, {"memory:": other}, group, is_given=True)


def test_handlers_of_one_group_with_stores_of_their_own_are_moved_in_both(
    stream: penstock.Connection, groups: GroupAdmin, topic: str, tmp_path: Path
) -> None:
    group, other = fresh("group"), fresh()
    stream.create_topic(other, 1)
    stream.send(other, "100")
    stream.flush(20)
    with open_store(f"sqlite:{tmp_path}/a.db") as a, open_store(f"file:{tmp_path}/b") as b:  # type: ignore[attr-defined]
        handled(stream, topic, group, a)
        handled(stream, other, group, b)
        progress = find_progress(groups, {"a": a, "b": b}, group)
        moves = plan_reset(stream.admin(), progress, Target.parse("earliest", NOW))
        assert str(reset(groups, progress, moves, 1)) == (
            f"Moved {group} in 4 partitions: checkpoints in a, checkpoints in b, the Kafka group's offsets."
        )
        assert {key.topic for key in a.checkpoints(group)} == {topic}, "each store has what it had"
        assert handled(stream, other, group, b) == [100]
        assert handled(stream, topic, group, a) == list(range(RECORDS))
