"""A gateway carries every record from one system to another, maps it on the way, and survives bad ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import penstock as ps
from penstock.abc import Channel, Feature, Features
from penstock.channels import inbox as inbox_module
from penstock.channels import open_channel
from penstock.channels.inbox import Inbox
from penstock.consuming.options import PositionChoice
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    GuaranteeError,
    RecordTooLargeError,
    StreamError,
    UrlError,
)
from penstock.gateway import Gateway, endpoint_of
from penstock.model import NewRecord, Record
from penstock.observe.metrics import registry
from penstock.queues import MemoryQueue, open_queue
from tests.consuming.eventually import wait_until
from tests.forking import FORKING
from tests.observe.samples import Samples

WAIT_S = 60.0


def fill(url: str, topic: str, count: int, partitions: int = 2) -> None:
    with ps.connect(url) as stream:
        stream.create_topic(topic, partitions)
        for number in range(count):
            stream.send(topic, str(number), f"k{number % 5}", headers={"n": str(number)}, timestamp=1_700_000_000_000)


def values(url: str, topic: str) -> list[str]:
    with ps.connect(url) as stream:
        return [(record.value or b"").decode() for record in stream.read(topic)]


class TestEndpoints:
    @pytest.mark.parametrize(
        ("text", "kind", "name"),
        [
            ("log:./data#orders", "topic", "orders"),
            ("kafka://127.0.0.1:9092", "topic", ""),
            ("amqp://localhost/orders", "queue", "orders"),
            ("http://127.0.0.1:8080/hooks/orders?secret_env=S", "channel", "orders"),
            ("udp://239.1.2.3:5000", "channel", ""),
            ("memory:jobs", "queue", "jobs"),
            ("memory:jobs#orders", "topic", "orders"),
        ],
    )
    def test_the_scheme_says_what_a_url_is(self, text: str, kind: str, name: str) -> None:
        found = endpoint_of(text)
        assert (found.kind, found.name) == (kind, name)

    def test_what_is_not_a_url_names_the_installed_schemes(self) -> None:
        with pytest.raises(UrlError, match=r"streams .*kafka:.*queues .*amqp:.*channels .*udp:"):
            endpoint_of("carrier-pigeon://coop")

    def test_passwords_are_not_shown(self) -> None:
        assert "secret" not in endpoint_of("redis://me:secret@localhost/0#orders").shown

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("kafka://127.0.0.1:9092", "memory:a#t"), "has no topic: name it"),
            (("memory:a#t", "memory:a#t"), "both source and sink"),
            (("amqp://localhost/orders#t", "memory:a#t"), "omit the #"),
            (("udp://239.1.2.3:5000", "log:./data"), "no name for one: write log:./data#TOPIC"),
        ],
    )
    def test_what_cannot_work_is_refused_at_once(self, arguments: tuple[str, str], message: str) -> None:
        with pytest.raises((UrlError, ConfigError), match=message):
            Gateway(*arguments)

    def test_options_that_mean_nothing_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="partitions=3"):
            Gateway("memory:a#t", "memory:jobs", partitions=3)
        with pytest.raises(ConfigError, match="start="):
            Gateway("memory:jobs", "memory:a#t", start="latest")
        with pytest.raises(ConfigError, match="must be a function"):
            Gateway("memory:jobs", "memory:a#t", map="upper")  # type: ignore[arg-type]


def test_a_topic_is_carried_to_another_system_with_key_headers_and_time(tmp_path: Path) -> None:
    source, sink = f"sqlite:{tmp_path}/a.db", f"file:{tmp_path}/files"
    fill(source, "orders", 200)
    Gateway(f"{source}#orders", sink).run(end="latest")
    with ps.connect(sink) as stream:
        records = list(stream.read("orders"))
    assert sorted(int(record.value or b"") for record in records) == list(range(200))
    for record in records:
        number = int(record.value or b"")
        assert record.key == f"k{number % 5}".encode()
        assert record.headers == (("n", str(number).encode()),)
        assert record.timestamp_ms == 1_700_000_000_000
    by_key = [[int(r.value or b"") for r in records if r.key == f"k{key}".encode()] for key in range(5)]
    assert all(numbers == sorted(numbers) for numbers in by_key)


def test_a_second_run_carries_only_what_is_new(tmp_path: Path) -> None:
    source, sink = f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db"
    fill(source, "orders", 10)
    Gateway(f"{source}#orders", f"{sink}#copies", partitions=3).run(end="latest")
    with ps.connect(source) as stream:
        stream.send("orders", "new").result(WAIT_S)
    Gateway(f"{source}#orders", f"{sink}#copies").run(end="latest")
    assert sorted(values(sink, "copies")) == sorted([*map(str, range(10)), "new"])
    with ps.connect(sink) as stream:
        assert len(stream.admin().partitions_of("copies")) == 3


def test_a_map_changes_drops_and_multiplies_records_and_bad_ones_are_dead_letters(tmp_path: Path) -> None:
    source, sink = f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db"
    fill(source, "orders", 6)

    def mapped(record: Record) -> object:
        number = int(record.value or b"")
        results: Sequence[object] = [
            None,
            b"bytes",
            "text",
            {"n": number},
            [NewRecord("elsewhere", b"one", b"key"), "two"],
        ]
        return results[number] if number < 5 else 1 / 0

    gateway = Gateway(f"{source}#orders", f"{sink}#out", map=mapped, retry=2)
    gateway.run(end="latest")
    assert sorted(values(sink, "out")) == sorted(["bytes", "text", '{"n":3}', "one", "two"])
    with ps.connect(source) as stream:
        [letter] = list(stream.read("orders.dlq"))
    assert letter.value == b"5"
    assert gateway.progress().dead_letters == 1


def test_within_one_stream_exactly_once_is_possible_and_elsewhere_it_is_refused(tmp_path: Path) -> None:
    url = f"log:{tmp_path}/data"
    fill(url, "orders", 50)
    Gateway(f"{url}#orders", f"{url}#copies", guarantee="exactly-once").run(end="latest")
    assert sorted(map(int, values(url, "copies"))) == list(range(50))
    with pytest.raises(GuaranteeError, match="no transaction can include both"):
        Gateway(f"{url}#orders", f"sqlite:{tmp_path}/b.db", guarantee="exactly-once").run(end="latest")


def test_a_queue_is_carried_to_a_topic_and_a_topic_to_a_queue(tmp_path: Path) -> None:
    sink = f"sqlite:{tmp_path}/a.db"
    jobs = open_queue("memory:gateway-jobs")
    jobs.send([NewRecord("queue", str(number).encode(), b"k") for number in range(20)])
    free = threading.Event()

    def mapped(record: Record) -> Record:
        assert free.wait(WAIT_S)
        return record

    gateway = Gateway("memory:gateway-jobs", f"{sink}#jobs", map=mapped)
    thread = threading.Thread(target=gateway.run)
    thread.start()
    try:
        wait_until(lambda: gateway.progress().waiting == 20, WAIT_S)
        free.set()
        wait_until(lambda: gateway.progress().delivered == 20, WAIT_S)
    finally:
        gateway.stop()
        thread.join(WAIT_S)
    assert sorted(map(int, values(sink, "jobs"))) == list(range(20))
    Gateway(f"{sink}#jobs", "memory:gateway-back").run(end="latest")
    back = open_queue("memory:gateway-back")
    assert len(back.receive(100, 1.0)) == 20
    back.close()
    jobs.close()


class FailingQueue(MemoryQueue):
    """Away for its first sends; then it refuses records of more than five bytes."""

    def __init__(self, away: int) -> None:
        super().__init__()
        self._away = away
        self.sent: list[bytes | None] = []

    def send(self, records: Sequence[NewRecord]) -> None:
        if self._away:
            self._away -= 1
            raise BrokerUnavailableError("the queue is away")
        if any(len(record.value or b"") > 5 for record in records):
            raise RecordTooLargeError("more than five bytes")
        self.sent += [record.value for record in records]


def test_a_sink_that_is_away_is_waited_for_and_only_what_it_refuses_is_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, queue = f"sqlite:{tmp_path}/a.db", FailingQueue(away=8)
    monkeypatch.setattr("penstock.gateway.open_destination", lambda url: queue)
    fill(source, "orders", 300, partitions=1)
    with ps.connect(source) as stream:
        stream.send("orders", "much too long").result(WAIT_S)
    gateway = Gateway(f"{source}#orders", "memory:jobs", retry=2)
    gateway.run(end="latest")
    assert queue.sent == [str(number).encode() for number in range(300)]
    assert values(source, "orders.dlq") == ["much too long"]


def test_nothing_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    source, sink = f"sqlite:{tmp_path}/a.db", f"sqlite:{tmp_path}/b.db"
    fill(source, "orders", 3_000)
    with ps.connect(sink) as stream:
        stream.create_topic("orders", 2)
    for enough in (300, 1_200):
        process = FORKING.Process(target=_carry, args=(f"{source}#orders", sink, None))
        process.start()
        wait_until(lambda enough=enough: len(values(sink, "orders")) >= enough, WAIT_S)  # type: ignore[misc]
        process.kill()
        process.join()
    _carry(f"{source}#orders", sink, "latest")
    carried = list(map(int, values(sink, "orders")))
    assert set(carried) == set(range(3_000))


def _carry(source: str, sink: str, end: PositionChoice | None) -> None:
    Gateway(source, sink).run(end=end)


class Line:
    """A channel in memory whose senders wait for an answer."""

    features: Features = frozenset({Feature.KEYS, Feature.HEADERS, Feature.ANSWERS})

    def __init__(self, name: str = "line") -> None:
        self.name = name
        self.arrived: list[Record] = []
        self.acknowledged: list[int] = []
        self.refused: list[tuple[int, str, bool]] = []
        self.on_listen: Callable[[], None] = lambda: None
        self.is_closed = False
        self._changed = threading.Condition()

    def arrive(self, *numbers: int) -> None:
        with self._changed:
            self.arrived += [
                Record(self.name, 0, number, b"k", str(number).encode(), (), 1_700_000_000_000) for number in numbers
            ]
            self._changed.notify_all()

    def listen(self, limit: int, wait_s: float) -> list[Record]:
        self.on_listen()
        with self._changed:
            self._changed.wait_for(lambda: bool(self.arrived), wait_s)
            taken, self.arrived = self.arrived[:limit], self.arrived[limit:]
            return taken

    def acknowledge(self, records: Sequence[Record]) -> None:
        self.acknowledged += [record.offset for record in records]

    def refuse(self, records: Sequence[Record], reason: str, *, again: bool) -> None:
        self.refused += [(record.offset, reason, again) for record in records]

    def send(self, records: Sequence[NewRecord]) -> None:
        raise ConfigError("this line only listens")

    def close(self) -> None:
        self.is_closed = True


class TestInbox:
    def test_senders_are_answered_when_their_records_are_stored(self, tmp_path: Path) -> None:
        line, url = Line(), f"log:{tmp_path}/inbox"
        inbox = Inbox(line, url)
        inbox.start()
        line.arrive(*range(100))
        wait_until(lambda: len(line.acknowledged) == 100, WAIT_S)
        inbox.stop()
        assert line.is_closed
        assert values(url, "line") == [str(number) for number in range(100)]

    def test_senders_are_told_what_could_not_be_stored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        line = Line()
        inbox = Inbox(line, f"log:{tmp_path}/inbox")

        def fail(*arguments: object, **options: object) -> None:
            raise StreamError("the disk is full")

        monkeypatch.setattr(inbox._connection, "send", fail)
        inbox.start()
        line.arrive(1, 2)
        wait_until(lambda: len(line.refused) == 2, WAIT_S)
        inbox.stop()
        assert line.refused == [(1, "the disk is full", True), (2, "the disk is full", True)]
        assert (line.acknowledged, inbox.counts.stored, inbox.counts.refused) == ([], 0, 2)

    def test_what_has_arrived_is_stored_before_the_end(self, tmp_path: Path) -> None:
        line, url = Line(), f"log:{tmp_path}/inbox"
        inbox = Inbox(line, url)
        line.on_listen = inbox._stopping.set
        line.arrive(*range(inbox_module.AT_ONCE + 500))
        inbox.start()
        inbox.stop()
        assert len(values(url, "line")) == inbox_module.AT_ONCE + 500

    def test_delivered_records_are_removed(self, tmp_path: Path) -> None:
        line, url = Line(), f"log:{tmp_path}/inbox"
        inbox = Inbox(line, url)
        inbox.start()
        line.arrive(*range(10))
        wait_until(lambda: len(line.acknowledged) == 10, WAIT_S)
        inbox.delete_before({0: 7})
        assert values(url, "line") == ["7", "8", "9"]
        inbox.stop()

    def test_a_channel_that_cannot_listen_ends_it_with_its_error(self, tmp_path: Path) -> None:
        line = Line()

        def taken() -> None:
            raise ConfigError("port 80 is taken")

        line.on_listen = taken
        inbox, ended = Inbox(line, f"log:{tmp_path}/inbox"), threading.Event()
        inbox.start(on_failure=ended.set)
        assert ended.wait(WAIT_S)
        inbox.stop()
        assert isinstance(inbox.error, ConfigError)


def test_a_channel_is_carried_through_its_inbox(tmp_path: Path) -> None:
    sink, metrics = f"sqlite:{tmp_path}/a.db", registry()
    gateway = Gateway("memory-channel:ticks?answers=true", f"{sink}#ticks", inbox=f"log:{tmp_path}/inbox")
    thread = threading.Thread(target=gateway.run)
    thread.start()
    sender = open_channel("memory-channel:ticks?answers=true")
    try:
        wait_until(lambda: _takes(sender, b"0"), WAIT_S)
        sender.send([NewRecord("", str(number).encode(), b"k") for number in range(1, 50)])
        wait_until(lambda: gateway.progress().delivered == 50, WAIT_S)
    finally:
        gateway.stop()
        thread.join(WAIT_S)
        sender.close()
    assert values(sink, "ticks") == [str(number) for number in range(50)]
    assert gateway.progress().received == 50
    assert Samples(metrics)("penstock_inbox_records_total", channel="ticks", outcome="stored") == 50


def test_a_topic_is_carried_to_a_channel(tmp_path: Path) -> None:
    source = f"sqlite:{tmp_path}/a.db"
    fill(source, "orders", 20, partitions=1)
    listener = open_channel("memory-channel:orders")
    listener.listen(1, 0.0)
    Gateway(f"{source}#orders", "memory-channel:orders").run(end="latest")
    received = listener.listen(100, WAIT_S)
    assert [(record.value, record.key) for record in received] == [
        (str(number).encode(), f"k{number % 5}".encode()) for number in range(20)
    ]
    listener.close()


def _takes(sender: Channel, value: bytes) -> bool:
    try:
        sender.send([NewRecord("", value, b"k")])
    except BrokerUnavailableError:
        return False
    return True
