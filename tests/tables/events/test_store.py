"""Event sourcing on a real broker: appends with an expected version, snapshots, replay, old versions of events."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, EventsLostError, SerdeError, VersionConflictError
from penstock.streams import connect
from penstock.tables.events import Aggregate, EventStore, applies, upcasts
from tests.sampling import times
from tests.seeds import seed_of
from tests.servers import ApacheKafka, Penstock
from tests.tables.captured import wait_a_while, wait_until
from tests.tables.events.bank import Account, Deposited, Withdrawn

_names = itertools.count(1)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        yield f"kafka://{server.bootstrap}"


@pytest.fixture
def name() -> str:
    return f"accounts-{next(_names)}"


def test_events_are_appended_with_the_expected_version_and_folded(url: str, name: str) -> None:
    with EventStore(url, name, Account) as store:
        assert (store.load("a1").version, store.load("a1").state) == (0, Account(0))
        assert store.append("a1", [Deposited(5), Withdrawn(2)], expected_version=0) == 2
        assert store.append("a1", [Deposited(10)], expected_version=None) == 3
        with pytest.raises(VersionConflictError, match="expected to have version 2, and has 3") as caught:
            store.append("a1", [Deposited(1)], expected_version=2)
        assert (caught.value.expected, caught.value.actual) == (2, 3)
        assert store.load("a1").state == Account(13)
        assert [(each.version, each.event) for each in store.history("a1")] == [
            (1, Deposited(5)), (2, Withdrawn(2)), (3, Deposited(10)),
        ]  # fmt: skip
        assert store.replay("a1", version=2).state == Account(3)


def test_an_event_that_the_fold_refuses_is_not_stored(url: str, name: str) -> None:
    with EventStore(url, name, Account) as store:
        store.append("a1", [Deposited(5)], expected_version=0)
        with pytest.raises(ValueError, match="overdrawn"):
            store.append("a1", [Deposited(1), Withdrawn(7)], expected_version=1)
        with pytest.raises(ConfigError, match="Account does not apply int"):
            store.append("a1", [5], expected_version=1)
        assert (store.load("a1").version, store.load("a1").state) == (1, Account(5))


def test_a_second_store_sees_what_the_first_appended_and_may_append_itself(url: str, name: str) -> None:
    with EventStore(url, name, Account, partitions=1) as first, EventStore(url, name, Account) as second:
        first.append("a1", [Deposited(5)], expected_version=0)
        assert second.load("a1").version == 1
        second.append("a1", [Deposited(5)], expected_version=1)
        with pytest.raises(VersionConflictError):  # the first one still believes in version 1
            first.append("a1", [Deposited(1)], expected_version=1)
        assert first.append("a1", [Deposited(1)], expected_version=2) == 3
        assert second.load("a1").state == Account(11)


def test_a_writer_that_was_overtaken_does_not_refuse_on_outdated_knowledge(url: str, name: str) -> None:
    with EventStore(url, name, Account, partitions=1) as first, EventStore(url, name, Account) as second:
        for version in range(6):  # each takes the partition from the other, which does not know
            store = first if version % 2 else second
            assert store.append("a1", [Deposited(1)], expected_version=version) == version + 1
        first.append("a1", [Withdrawn(6), Deposited(9)], expected_version=6)
        assert second.append("a1", [Withdrawn(9)], expected_version=None) == 9


@pytest.mark.xdist_group("java")
def test_apache_kafka_keeps_events_as_the_embedded_log_does(tmp_path: Path, name: str) -> None:
    with ApacheKafka(tmp_path / "kafka") as server:
        url = f"kafka://{server.bootstrap}"
        with (
            EventStore(url, name, Account, partitions=1, snapshot_every=3) as first,
            EventStore(url, name, Account) as second,
        ):
            for version in range(5):
                store = first if version % 2 else second
                assert store.append("a1", [Deposited(1)], expected_version=version) == version + 1
            with pytest.raises(VersionConflictError):
                first.append("a1", [Deposited(1)], expected_version=4)
            assert first.snapshot_all() == 1
        with EventStore(url, name, Account) as store:
            assert store.load("a1").state == store.replay("a1").state == Account(5)


def test_threads_share_transactions_and_each_gets_its_own_outcome(url: str, name: str) -> None:
    stored: list[int] = []
    conflicts: list[VersionConflictError] = []
    with EventStore(url, name, Account, partitions=1) as store:
        store.append("a1", [Deposited(1)], expected_version=0)

        def append() -> None:
            try:
                stored.append(store.append("a1", [Deposited(1)], expected_version=1))
            except VersionConflictError as error:
                conflicts.append(error)

        threads = [threading.Thread(target=append) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (stored, len(conflicts)) == ([2], 19)
        assert store.change("a1", lambda account: [Withdrawn(account.cents)]).version == 3
        assert store.load("a1").state == Account(0)


def test_snapshots_spare_the_events_before_them(url: str, name: str) -> None:
    with EventStore(url, name, Account, snapshot_every=3, partitions=1) as store:
        for version in range(8):
            store.append("a1", [Deposited(1)], expected_version=version)
        store.append("a2", [Deposited(1)], expected_version=0)
        assert store.snapshot_all() == 2
        store.append("a2", [Deposited(1)], expected_version=1)
    with connect(url) as stream:
        snapshots = [json.loads(each.value or b"") for each in stream.read(f"{name}.snapshots")]
    assert [each["version"] for each in snapshots if "state" in each] == [3, 6, 8, 1]
    with EventStore(url, name, Account) as store:
        assert store.load("a1").state == Account(8)
        assert store.load("a2").state == Account(2)
        assert store._shards[0]._known["a2"].snapshot == 1
        assert store.replay("a1").state == Account(8)


class AccountInCents(Aggregate):
    """Counts what older snapshots do not."""

    snapshot_schema = 2
    cents: int = 0
    events: int = 0

    @applies(Deposited)
    def deposited(self, event: Deposited) -> None:
        self.cents += event.cents
        self.events += 1


def test_snapshots_of_another_schema_do_not_count(url: str, name: str) -> None:
    with EventStore(url, name, Account, snapshot_every=2, partitions=1) as store:
        store.append("a1", [Deposited(1)] * 5, expected_version=0)
        store.snapshot_all()
    with EventStore(url, name, AccountInCents) as store:
        assert store.load("a1").state == AccountInCents(5, 5)


@dataclass
class Opened:
    owner: str


@dataclass
class NewOpened:
    first: str
    last: str
    country: str


class Old(Aggregate):
    owner: str = ""

    @applies(Opened)
    def opened(self, event: Opened) -> None:
        self.owner = event.owner


class New(Aggregate):
    last: str = ""
    country: str = ""

    @applies(NewOpened, name="Opened")
    def opened(self, event: NewOpened) -> None:
        self.last, self.country = event.last, event.country

    @staticmethod
    @upcasts("Opened", 1)
    def split_name(data: dict[str, Any]) -> dict[str, Any]:
        first, _, last = data["owner"].partition(" ")
        return {"first": first, "last": last}

    @staticmethod
    @upcasts("Opened", 2)
    def add_country(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "country": "unknown"}


def test_old_events_are_upcast_step_by_step(url: str, name: str) -> None:
    with EventStore(url, name, Old, partitions=1) as store:
        store.append("a1", [Opened("Ada Lovelace")], expected_version=0)
    with EventStore(url, name, New) as store:
        assert store.load("a1").state == New("Lovelace", "unknown")
        store.append("a2", [NewOpened("Grace", "Hopper", "us")], expected_version=0)
    with EventStore(url, name, New) as store:
        assert [each.event for each in store.history()] == [
            NewOpened("Ada", "Lovelace", "unknown"), NewOpened("Grace", "Hopper", "us"),
        ]  # fmt: skip
    with EventStore(url, name, Old) as store, pytest.raises(SerdeError, match=r"schema 3.*newer program"):
        store.load("a2")


def test_events_that_were_removed_are_noticed(url: str, name: str) -> None:
    with EventStore(url, name, Account, partitions=1) as store:
        store.append("a1", [Deposited(1)], expected_version=0)
        store.append("a1", [Deposited(1)], expected_version=1)
    with connect(url) as stream:
        stream.backend.administration.delete_before(name, {0: 1})  # type: ignore[attr-defined]  # of Kafka alone
    with (
        EventStore(url, name, Account) as store,
        pytest.raises(EventsLostError, match="after version 0 of 'a1' comes 2"),
    ):
        store.load("a1")


def test_a_topic_that_would_lose_events_is_refused(url: str, name: str) -> None:
    with connect(url) as stream:
        stream.create_topic(name, 1)
    with pytest.raises(ConfigError, match=rf"{name}' has retention.ms=\d+, so it would lose events"):
        EventStore(url, name, Account)


def test_a_stream_without_transactions_is_refused_by_the_missing_feature() -> None:
    with pytest.raises(ConfigError, match="has no transactions"):
        EventStore("memory:", "accounts", Account)


def test_declarations_that_cannot_work_are_refused(url: str) -> None:
    class NoDefault(Aggregate):
        cents: int

        @applies(Deposited)
        def deposited(self, event: Deposited) -> None:
            self.cents += event.cents

    class NoEvents(Aggregate):
        cents: int = 0

    class Gap(Aggregate):
        cents: int = 0

        @applies(Deposited)
        def deposited(self, event: Deposited) -> None:
            self.cents += event.cents

        @staticmethod
        @upcasts("Deposited", 2)
        def later(data: dict[str, Any]) -> dict[str, Any]:
            return data

    for kind, problem in ((NoDefault, "needs a default"), (NoEvents, "applies no events"), (Gap, "no upcasts.*1")):
        with pytest.raises(ConfigError, match=problem):
            EventStore(url, "refused", kind)
    with pytest.raises(ConfigError, match="snapshot_every=0"):
        EventStore(url, "refused", Account, snapshot_every=0)


@pytest.mark.parametrize("case", range(3))
@pytest.mark.sampled(1)
def test_processes_that_append_at_once_and_are_killed_never_both_succeed(
    url: str, tmp_path_factory: pytest.TempPathFactory, case: int
) -> None:
    seed = seed_of() + case
    chance = random.Random(seed)
    with Penstock(tmp_path_factory.mktemp("broker")) as server:
        address = f"kafka://{server.bootstrap}"
        said: list[str] = []

        def start(number: int) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "tests.tables.events.bank", address, str(seed * 1000 + number)]
            return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def listen(process: subprocess.Popen[str]) -> threading.Thread:
            def read() -> None:
                assert process.stdout is not None
                said.extend(process.stdout)

            thread = threading.Thread(target=read)
            thread.start()
            return thread

        running = [start(number) for number in range(2)]
        listeners = [listen(process) for process in running]
        for number in range(times(3, soak=40)):
            before = len(said)
            wait_until(lambda before=before: len(said) >= before + 5, "the processes append", 180.0)  # type: ignore[misc]
            wait_a_while(chance.uniform(0.0, 0.05))
            victim = chance.randrange(len(running))
            running[victim].kill()
            running[victim].communicate()
            running[victim] = start(10 + number)
            listeners.append(listen(running[victim]))
        before = len(said)
        wait_until(lambda: len(said) >= before + 5, "the processes append", 180.0)
        for process in running:
            process.kill()
            process.wait()
        for listener in listeners:
            listener.join()
        stored = [line.split()[1:] for line in said if line.startswith("stored") and line.endswith("\n")]
        with EventStore(address, "accounts", Account) as store:
            assert len(stored) > 5
            for id in store.ids():
                events = list(store.history(id))
                assert [each.version for each in events] == list(range(1, len(events) + 1)), "a version is there twice"
                last = {each.event.mark: each.version for each in events}
                for _, mark, version in (each for each in stored if each[0] == id):
                    assert last.get(mark) == int(version), f"{mark} was acknowledged, and is not there"
                runs = [mark for mark, _ in itertools.groupby(each.event.mark for each in events)]
                assert len(runs) == len(set(runs)), "an append is there twice, or in parts"
                assert store.replay(id).state == store.load(id).state == Account(len(events))
        print(f"{len(stored)} appends, {sum(line.startswith('conflict') for line in said)} conflicts")
