"""The Kafka store: transactions in which outputs and checkpoint count together, and owners that die in the middle."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from penstock.checkpoints.kafka import writing
from penstock.checkpoints.kafka.entries import PIECE_BYTES, partition_of
from penstock.checkpoints.kafka.store import TOPIC, KafkaCheckpoints
from penstock.checkpoints.kafka.writing import LeaseWriter
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    FencedError,
    StoreUnavailableError,
    TransactionAbortedError,
    TransactionError,
    TransactionLostError,
)
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, NewRecord, Status
from penstock.streams.kafka.producing import transactions
from penstock.streams.kafka.producing.transactions import TransactionalProducer, start_transactional
from penstock.testing import TcpProxy
from tests.checkpoints import kafka_mover
from tests.clients.conftest import SETTINGS, loaded_kafka
from tests.clients.names import fresh
from tests.clients.shared_server import shared
from tests.clients.waiting import eventually
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import Penstock, Server

TIMEOUT_S: Final = 60.0
SLOW_ANSWER_S: Final = 1.3


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    arguments = [word for name, value in SETTINGS.items() for word in ("--config", f"{name}={value}")]
    with Penstock(tmp_path_factory.mktemp("kafka-store"), *arguments) as running:
        yield running


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Server]:
    own_folder = tmp_path_factory.getbasetemp()
    folder = (own_folder if worker_id == "master" else own_folder.parent) / "apache-kafka"
    with shared(folder, lambda: loaded_kafka(folder)) as running:
        yield running


@pytest.fixture
def connection(broker: Penstock) -> Iterator[penstock.Connection]:
    with penstock.connect(f"kafka://{broker.bootstrap}") as connected:
        yield connected


@pytest.fixture(params=["embedded log", "Apache Kafka"])
def either(request: pytest.FixtureRequest) -> Iterator[penstock.Connection]:
    chosen: Server = request.getfixturevalue("broker" if request.param == "embedded log" else "apache_kafka")
    with penstock.connect(f"kafka://{chosen.bootstrap}") as connected:
        yield connected


def new_topic(connection: penstock.Connection, records: int = 0) -> str:
    topic = fresh()
    connection.create_topic(topic)
    receipts = connection.open_topic(topic).append([NewRecord(topic, b"%d" % number) for number in range(records)])
    for receipt in receipts:
        receipt.result(TIMEOUT_S)
    return topic


def values_in(connection: penstock.Connection, topic: str) -> list[bytes | None]:
    """What a reader sees, now: what is committed."""
    with connection.read(topic) as reader:
        return [record.value for record in reader]


def eventually_holds(connection: penstock.Connection, topic: str, expected: list[bytes]) -> None:
    """Apache Kafka lets readers see a transaction a moment after it has told its producer that it counts."""
    eventually(f"there are {len(expected)} records", lambda: len(values_in(connection, topic)) >= len(expected))
    assert values_in(connection, topic) == expected


def claimed(store: KafkaCheckpoints, key: CheckpointKey, owner: str = "a") -> Lease:
    seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
    lease = store.claim(key.group, key.lease_name, owner, seen)
    assert lease is not None
    return lease


def at(pointer: int) -> Change:
    return Change(Checkpoint(pointer, pointer))


def test_outputs_and_checkpoint_and_group_offset_count_together(either: penstock.Connection) -> None:
    source, target = new_topic(either), new_topic(either)
    key = CheckpointKey(fresh("group"), source, 0)
    store = KafkaCheckpoints(either, partitions=2)
    lease = claimed(store, key)
    with store.begin(lease) as transaction:
        transaction.append([NewRecord(target, b"a"), NewRecord(target, b"b", b"key", (("h", b"1"),))])
        transaction.save(lease, key, at(7))
        assert values_in(either, target) == []
        assert KafkaCheckpoints(either).load(key) is None
    eventually_holds(either, target, [b"a", b"b"])
    assert store.load(key) == at(7).checkpoint
    described = either.group_admin().describe(key.group)
    assert [(each.topic, each.partition, each.committed) for each in described.progress] == [(source, 0, 7)]
    store.close()


def test_offsets_are_committed_by_a_broker_that_takes_its_time(tmp_path: Path) -> None:
    """Each answer takes longer than the library waits at first."""
    with TcpProxy(0) as proxy, Penstock(tmp_path, "--advertise", proxy.address) as server:
        proxy.server = ("127.0.0.1", server.port)
        with penstock.connect(f"kafka://{proxy.address}") as stream:
            key = CheckpointKey("group", new_topic(stream), 0)
            store = KafkaCheckpoints(stream, partitions=1, timeout_s=20)
            lease = claimed(store, key)
            store.save(lease, key, at(1))
            proxy.delay_s = SLOW_ANSWER_S
            store.save(lease, key, at(2))
            proxy.delay_s = 0
            assert store.load(key) == at(2).checkpoint
            assert [each.committed for each in stream.group_admin().describe("group").progress] == [2]
            store.close()


def test_nothing_of_an_aborted_transaction_is_ever_seen(either: penstock.Connection) -> None:
    target, key = new_topic(either), CheckpointKey(fresh("group"), fresh(), 0)
    store = KafkaCheckpoints(either, partitions=2)
    lease = claimed(store, key)
    store.save(lease, key, at(1))
    transaction = store.begin(lease)
    transaction.append([NewRecord(target, b"never")])
    transaction.save(lease, key, at(2))
    transaction.abort()
    with contextlib.suppress(ZeroDivisionError), store.begin(lease) as transaction:
        transaction.append([NewRecord(target, b"never either")])
        raise ZeroDivisionError
    with store.begin(lease) as transaction:
        transaction.append([NewRecord(target, b"this")])
    eventually_holds(either, target, [b"this"])
    assert store.load(key) == at(1).checkpoint
    store.close()


def test_a_transaction_ends_once_and_belongs_to_its_lease(connection: penstock.Connection) -> None:
    key = CheckpointKey(fresh("group"), fresh(), 0)
    store = KafkaCheckpoints(connection, partitions=2, timeout_s=0.5)
    lease = claimed(store, key)
    transaction = store.begin(lease)
    with pytest.raises(StoreUnavailableError, match="transaction open"):
        store.renew(lease)
    with pytest.raises(FencedError):
        transaction.save(replace(lease, epoch=2), key, at(1))
    with pytest.raises(FencedError):
        transaction.save(lease, replace(key, partition=1), at(1))
    transaction.save(lease, key, at(1))
    with pytest.raises(TransactionError, match="already"):
        transaction.save(lease, key, at(2))
    transaction.commit()
    for use in (transaction.commit, transaction.abort, lambda: transaction.append([])):
        with pytest.raises(TransactionError, match="ended"):
            use()
    assert store.load(key) == at(1).checkpoint
    with pytest.raises(FencedError):
        store.begin(replace(lease, owner="b"))
    store.close()


def test_the_owner_before_is_fenced_in_the_middle_of_its_transaction(either: penstock.Connection) -> None:
    target, key = new_topic(either), CheckpointKey(fresh("group"), fresh(), 0)
    old, new = KafkaCheckpoints(either, partitions=2), KafkaCheckpoints(either, partitions=2)
    lease = claimed(old, key)
    transaction = old.begin(lease)
    transaction.append([NewRecord(target, b"late")])
    transaction.save(lease, key, at(99))
    eventually("the claim before is seen", lambda: new.leases(key.group) == [lease])
    heir = claimed(new, key, "b")
    assert new.load(key) is None
    with pytest.raises(FencedError):
        transaction.commit()
    with pytest.raises(FencedError):
        old.begin(lease)
    with new.begin(heir) as transaction:
        transaction.append([NewRecord(target, b"in time")])
        transaction.save(heir, key, at(3))
    with pytest.raises(FencedError):
        old.save(lease, key, at(100))
    eventually_holds(either, target, [b"in time"])
    assert old.load(key) == at(3).checkpoint
    old.close()
    new.close()


def test_who_is_fenced_only_because_somebody_looked_goes_on(connection: penstock.Connection) -> None:
    """A claim that comes too late starts a producer before it sees that; the owner notices, and begins again."""
    target, key = new_topic(connection), CheckpointKey(fresh("group"), fresh(), 0)
    store, other = KafkaCheckpoints(connection, partitions=2), KafkaCheckpoints(connection, partitions=2)
    lease = claimed(store, key)
    writer = other._writer_of(key.group, key.lease_name)
    writer.ready()
    store.save(lease, key, at(1))
    writer.discard()
    writer.ready()
    transaction = store.begin(lease)
    transaction.append([NewRecord(target, b"first try")])
    transaction.save(lease, key, at(2))
    with pytest.raises(TransactionAbortedError, match="repeat it"):
        transaction.commit()
    with store.begin(lease) as transaction:
        transaction.append([NewRecord(target, b"second try")])
        transaction.save(lease, key, at(2))
    eventually_holds(connection, target, [b"second try"])
    assert store.renew(lease).beat == 1
    store.close()
    other.close()


class Hanging:
    """A client of librdkafka whose call never returns, as when the group's coordinator is gone."""

    def __init__(self, client: Any, released: threading.Event) -> None:
        self._client = client
        self._released = released

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self._released.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def test_a_save_goes_on_with_another_producer_when_librdkafka_never_returns(
    connection: penstock.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_GRACE_S", 0.2)
    released = threading.Event()
    started: list[TransactionalProducer] = []

    def start(*given: Any, **more: Any) -> TransactionalProducer:
        producer = start_transactional(*given, **more)
        if len(started) == 1:  # the first claims the lease
            producer._living = Hanging(producer.client, released)  # type: ignore[assignment]
        started.append(producer)
        return producer

    monkeypatch.setattr(writing, "start_transactional", start)
    source = new_topic(connection)
    key = CheckpointKey(fresh("group"), source, 0)
    with closing(KafkaCheckpoints(connection, partitions=2)) as store:
        lease = claimed(store, key)
        store._writer_of(key.group, key.lease_name).discard()
        store.save(lease, key, at(5))
        assert store.load(key) == at(5).checkpoint
    described = connection.group_admin().describe(key.group)
    assert [(each.topic, each.committed) for each in described.progress] == [(source, 5)]
    assert len(started) == 3
    released.set()


def test_a_commit_whose_answer_was_lost_is_found_to_count(
    connection: penstock.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, key = new_topic(connection), CheckpointKey(fresh("group"), fresh(), 0)
    store = KafkaCheckpoints(connection, partitions=2)
    lease = claimed(store, key)
    commit = TransactionalProducer.commit

    def lose_the_answer(self: TransactionalProducer) -> None:
        commit(self)
        monkeypatch.setattr(TransactionalProducer, "commit", commit)
        raise TransactionLostError("the connection broke")

    monkeypatch.setattr(TransactionalProducer, "commit", lose_the_answer)
    with store.begin(lease) as transaction:
        transaction.append([NewRecord(target, b"once")])
        transaction.save(lease, key, at(5))
    monkeypatch.setattr(TransactionalProducer, "commit", lose_the_answer)
    line = HistoryEntry(0, 5, Status.SUCCEEDED, 1, "", 1, 2, "a", "h")
    store.save(lease, key, replace(at(6), history=(line,)))
    monkeypatch.setattr(TransactionalProducer, "commit", lose_the_answer)
    with store.begin(lease) as transaction:
        transaction.append([NewRecord(target, b"without a checkpoint")])
    eventually_holds(connection, target, [b"once", b"without a checkpoint"])
    assert store.load(key) == at(6).checkpoint
    assert store.history(key) == [line]
    store.close()


def test_a_checkpoint_larger_than_a_record_is_kept_in_pieces_and_may_shrink(connection: penstock.Connection) -> None:
    key = CheckpointKey(fresh("group"), fresh(), 0)
    store = KafkaCheckpoints(connection, partitions=2)
    lease = claimed(store, key)
    rng = random.Random(seed_of())
    for runs in (300_000, 3, 0):
        edges, pointer = [], 1
        for _ in range(runs):
            first = pointer + rng.randrange(1, 5000)
            pointer = first + rng.randrange(1, 5000)
            edges.append((first, pointer))
        checkpoint = Checkpoint(0, pointer, tuple(edges))
        state = {b"large": rng.randbytes(2 * PIECE_BYTES + 5) if runs else None}
        store.save(lease, key, Change(checkpoint, state=state))
        with_fresh_eyes = KafkaCheckpoints(connection)
        assert with_fresh_eyes.load(key) == checkpoint
        assert with_fresh_eyes.state(key) == {name: value for name, value in state.items() if value is not None}
        with_fresh_eyes.close()
    store.close()


def test_the_dangling_transaction_of_another_owner_does_not_hold_up_a_claim_for_long(
    connection: penstock.Connection,
) -> None:
    """It keeps the topic's partition from being read, as nobody knows yet whether it counts; so it is ended."""
    topic, group = fresh("checkpoints"), fresh("group")
    store = KafkaCheckpoints(connection, topic=topic, partitions=1)
    dead, other = CheckpointKey(group, "t", 0), CheckpointKey(group, "t", 1)
    lease = claimed(store, dead)
    store.save(lease, dead, at(1))
    writer: LeaseWriter = store._writer_of(group, dead.lease_name)
    writer.producer.begin()
    writer.producer.produce(topic, b"half of it", b"no entry", 0)
    writer.producer.flush(TIMEOUT_S)
    second = KafkaCheckpoints(connection, topic=topic)
    begun_s = time.monotonic()
    second.save(claimed(second, other, "b"), other, at(2))
    assert time.monotonic() - begun_s < 20
    assert second.load(other) == at(2).checkpoint
    store.close()
    second.close()


def test_a_store_goes_on_when_the_broker_is_back(tmp_path: Path) -> None:
    key = CheckpointKey(fresh("group"), fresh(), 0)
    with Penstock(tmp_path / "own") as own, penstock.connect(f"kafka://{own.bootstrap}") as connection:
        target = new_topic(connection)
        store = KafkaCheckpoints(connection, partitions=2)
        lease = claimed(store, key)
        store.save(lease, key, at(1))
        for number in (2, 3):
            transaction = store.begin(lease)
            transaction.append([NewRecord(target, b"%d" % number)])
            own.process.kill()
            own.restart()
            transaction.save(lease, key, at(number))
            try:
                transaction.commit()
            except TransactionAbortedError:
                with store.begin(lease) as again:
                    again.append([NewRecord(target, b"%d" % number)])
                    again.save(lease, key, at(number))
            assert store.load(key) == at(number).checkpoint
        eventually_holds(connection, target, [b"2", b"3"])
        store.close()


def test_a_broker_that_does_not_answer_is_told_within_the_timeout(tmp_path: Path) -> None:
    key = CheckpointKey(fresh("group"), fresh(), 0)
    with Penstock(tmp_path / "own") as own, penstock.connect(f"kafka://{own.bootstrap}") as connection:
        store = KafkaCheckpoints(connection, partitions=2, timeout_s=1.0)
        lease = claimed(store, key)
        own.process.popen.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailableError):
                store.save(lease, key, at(1))
        finally:
            own.process.popen.send_signal(signal.SIGCONT)
        store.save(lease, key, at(2))
        assert store.load(key) == at(2).checkpoint
        store.close()


def test_a_closed_store_says_so_and_what_cannot_be_is_refused(connection: penstock.Connection) -> None:
    with pytest.raises(ConfigError, match="positive"):
        KafkaCheckpoints(connection, partitions=0)
    store = KafkaCheckpoints(connection, partitions=2)
    store.close()
    store.close()
    with pytest.raises(ConnectionClosedError):
        store.leases("g")
    assert TOPIC in connection.topics(), "the connection is still open"


class Mover:
    """The program of kafka_mover, and what it says."""

    def __init__(self, connection: penstock.Connection, source: str, target: str, group: str, **settings: str) -> None:
        owner, count, pause = fresh("owner"), settings.get("count", "100"), settings.get("pause", "")
        words = [connection.bootstrap, source, target, group, owner, count, pause]
        self.process = subprocess.Popen(
            [sys.executable, "-m", kafka_mover.__name__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )

    def wait_until_said(self, word: str, timeout_s: float = TIMEOUT_S) -> list[str]:
        timer = threading.Timer(timeout_s, self.process.kill)
        timer.start()
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                words = line.split()
                if words[0] == word:
                    return words
            raise AssertionError(f"it ended with {self.process.wait(10)} before it said {word!r}")
        finally:
            timer.cancel()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.parametrize("step", kafka_mover.STEPS)
def test_a_mover_killed_at_any_step_is_taken_over_at_once_and_moves_each_record_once(
    connection: penstock.Connection, step: str
) -> None:
    source, target, group = new_topic(connection, 100), new_topic(connection), fresh("group")
    victim = Mover(connection, source, target, group, pause=step)
    try:
        victim.wait_until_said("paused")
        os.kill(victim.process.pid, signal.SIGKILL)
        before = values_in(connection, target)
        heir = Mover(connection, source, target, group)
        try:
            _, begun_at = heir.wait_until_said("claimed", timeout_s=20)
            assert int(begun_at) == len(before), "it begins behind what was moved, and nothing else is to be seen"
            heir.wait_until_said("done")
        finally:
            heir.end()
    finally:
        victim.end()
    eventually_holds(connection, target, [b"%d" % number for number in range(100)])


@pytest.mark.parametrize("step", ["appended", "saved"])
def test_a_mover_that_was_stopped_and_wakes_up_late_is_fenced(connection: penstock.Connection, step: str) -> None:
    source, target, group = new_topic(connection, 100), new_topic(connection), fresh("group")
    sleeper = Mover(connection, source, target, group, pause=step)
    try:
        sleeper.wait_until_said("paused")
        sleeper.process.send_signal(signal.SIGSTOP)
        heir = Mover(connection, source, target, group)
        try:
            heir.wait_until_said("done")
        finally:
            heir.end()
        sleeper.go_on()
        sleeper.process.send_signal(signal.SIGCONT)
        sleeper.wait_until_said("fenced")
    finally:
        sleeper.end()
    eventually_holds(connection, target, [b"%d" % number for number in range(100)])


def test_movers_killed_at_random_move_each_record_once(either: penstock.Connection) -> None:
    rng = random.Random(seed_of())
    count = 400
    source, target, group = new_topic(either, count), new_topic(either), fresh("group")
    for _ in range(times(2, soak=20)):
        victim = Mover(either, source, target, group, count=str(count))
        try:
            victim.wait_until_said("claimed")
            for _ in range(rng.randrange(1, 25)):
                assert victim.process.stdout is not None
                victim.process.stdout.readline()
            wait_until_dead_after(victim, rng.uniform(0, 0.02), timeout_s=TIMEOUT_S)
        finally:
            victim.end()
    last = Mover(either, source, target, group, count=str(count))
    try:
        last.wait_until_said("done")
    finally:
        last.end()
    eventually_holds(either, target, [b"%d" % number for number in range(count)])


def wait_until_dead_after(mover: Mover, delay_s: float, timeout_s: float) -> None:
    """Kill it a random moment later, wherever that finds it."""
    timer = threading.Timer(delay_s, mover.process.kill)
    timer.start()
    timer.join(timeout_s)
    mover.process.wait(timeout_s)


def test_leases_are_spread_over_the_partitions_of_the_topic() -> None:
    places = {partition_of("billing", CheckpointKey("billing", "orders", each).lease_name, 16) for each in range(64)}
    assert len(places) == 16
