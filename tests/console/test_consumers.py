"""Consumers of the library in the console: what they have in flight, what failed, and what happened to a record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.checkpoints.opening import open_store
from penstock.console.service import Service
from penstock.console.views import Person
from penstock.errors import GroupError
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Status
from penstock.model.checkpoint import Failing
from tests.clients.names import fresh
from tests.console.conftest import SELDOM_S
from tests.console.letters_of_tests import GROUP, letter
from tests.servers import Penstock

KEY = CheckpointKey(GROUP, "orders", 0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/checkpoints.sqlite"


@pytest.fixture
def console(server: Penstock, tmp_path: Path, url: str) -> Iterator[Service]:
    letters = f"sqlite:{tmp_path}/letters.db"
    with Service(
        f"kafka://{server.bootstrap}",
        state=tmp_path / "state",
        checkpoints=url,
        dead_letters=[letters],
        every_s=SELDOM_S,
    ) as service:
        yield service


def save_checkpoint(url: str) -> None:
    """Of the records from 100 to 110, all but 100, 103 and 109 are finished; 103 has failed twice."""
    store = open_store(url)
    lease = store.claim(GROUP, KEY.lease_name, "worker-1", None)
    assert lease is not None
    checkpoint = Checkpoint(
        start=100,
        next=110,
        finished=((101, 103), (104, 109)),
        failing=(Failing(103, 2, "ValueError: bad", 1_000, 2_000),),
        restarts=1,
        processed=112,
        delivered=108,
        saved_ms=3_000,
    )
    failure = HistoryEntry(103, 104, Status.FAILED, 2, "ValueError: bad", 1_500, 2_000, "worker-1", "bill")
    store.save(lease, KEY, Change(checkpoint, (failure,)))
    store.close()


def test_a_group_shows_what_it_has_in_hand(console: Service, url: str) -> None:
    save_checkpoint(url)
    (facts,) = console.consumers()
    assert (facts.group, facts.topics, facts.partitions, facts.store) == (GROUP, ("orders",), 1, url)
    assert (facts.in_flight, facts.failing, facts.processed, facts.delivered) == (3, 1, 112, 108)
    detail = console.consumer(GROUP)
    (partition,) = detail.partitions
    assert (partition.in_flight, partition.finished_ahead) == (3, 7)
    assert partition.lease is not None
    assert partition.lease.owner == "worker-1"
    assert partition.checkpoint.failing[0].attempts == 2
    assert detail.has_history


def test_the_history_of_a_record_is_found(console: Service, url: str) -> None:
    save_checkpoint(url)
    (line,) = console.history_of(GROUP, "orders", 0, 103)
    assert (line.status, line.attempt, line.error) == (Status.FAILED, 2, "ValueError: bad")
    assert console.history_of(GROUP, "orders", 0, 50) == []
    assert len(console.history_of(GROUP, "orders", 0, None)) == 1


def test_a_dead_letter_tells_what_happened_to_its_record(console: Service, url: str, tmp_path: Path) -> None:
    from penstock.dead_letters import open_dead_letters

    save_checkpoint(url)
    spec = f"sqlite:{tmp_path}/letters.db"
    place = open_dead_letters(spec)
    place.put([letter("orders", 103)])
    place.close()
    assert [each.attempt for each in console.letter(spec, letter("orders", 103).id).history] == [2]


def test_a_group_that_no_store_knows_is_told(console: Service, url: str) -> None:
    save_checkpoint(url)
    with pytest.raises(GroupError, match="no checkpoint store has"):
        console.consumer("nobody")


def test_a_group_of_the_library_is_moved_by_its_checkpoints(
    console: Service, ann: Person, stream: penstock.Connection, topic: str, url: str
) -> None:
    for number in range(10):
        stream.send(topic, str(number), partition=number % 2)
    stream.flush(30)
    group = fresh("group")
    handled: list[bytes | None] = []
    app = penstock.App(stream.url, group=group, checkpoints=url)

    @app.handle(topic)
    def note(record: penstock.Record) -> None:
        handled.append(record.value)
        if len(handled) in (10, 14):
            app.stop()

    app.run()
    assert len(handled) == 10
    assert console.look_now().groups[group].is_library
    planned = console.plan_reset(group, "3", [topic], [0, 1])
    assert [(move.partition, move.committed, move.to) for move in planned] == [(0, 5, 3), (1, 5, 3)]
    moved = console.reset(ann, group, "3", [topic], [0, 1])
    assert list(moved.moves) == planned
    assert str(moved) == f"Moved {group} in 2 partitions: checkpoints in {url}, the Kafka group's offsets."
    facts = console.look_now().groups[group]
    assert (facts.lag, facts.stores) == (4, (url,))
    starts = {each.partition: each.checkpoint.start for each in console.consumer(group).partitions}
    assert (starts[0], starts[1]) == (3, 3)
    again = penstock.App(stream.url, group=group, checkpoints=url)

    @again.handle(topic)
    def note_again(record: penstock.Record) -> None:
        handled.append(record.value)
        if len(handled) == 14:
            again.stop()

    again.run()
    assert set(handled[10:]) == {b"6", b"7", b"8", b"9"}
    where = console.delete_group(ann, group)
    assert where == f"checkpoints in {url}, the Kafka group's offsets"
    assert group not in console.look_now().groups
    with pytest.raises(GroupError, match="no checkpoint store has"):
        console.consumer(group)


def test_looking_makes_no_store(service: Service, server: Penstock) -> None:
    before = set(service.look_now().topics)
    assert service.consumers() == []
    assert set(service.look_now().topics) == before
