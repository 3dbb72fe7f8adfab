"""The producer on the embedded log, with librdkafka underneath."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import penstock
from penstock.errors import BufferFullError, DeliveryError, FencedError, InvalidTopicError
from penstock.model import Receipt, RecordMetadata
from penstock.model.retry import Retry
from penstock.producing.kafka.choosing import PROGRESS_PREFIX
from penstock.producing.kafka.transactions import TransactionDelivery
from penstock.producing.producer import Producer
from penstock.producing.refused import read_refused
from penstock.producing.spooling import Spool
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.servers import Penstock


def values(stream: penstock.Connection, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in stream.read(topic)]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Penstock]:
    """A broker that a test may kill."""
    with Penstock(tmp_path / "server") as running:
        yield running


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"idempotent": False},
        {"compression": "lz4"},
        {"buffer": "spool"},
        {"buffer": "spool", "idempotent": False},
        {"buffer": "spool", "spool_flush": "fsync"},
        {"transactional_id": "ours"},
        {"buffer": "spool", "transactional_id": "ours-with-a-spool"},
    ],
    ids=str,
)
def test_records_arrive_once_in_order_with_all_they_have(
    settings: dict[str, object], url: str, stream: penstock.Connection, topic: str, tmp_path: Path
) -> None:
    if settings.get("buffer"):
        settings = settings | {"buffer": f"spool:{tmp_path / 'spool'}"}
    with Producer(url, **settings) as producer:  # type: ignore[arg-type]
        receipts = [
            producer.send(topic, str(number), "key", headers=[("h", b"1"), ("h", None)], timestamp=1_700_000_000_000)
            for number in range(500)
        ]
        producer.flush(30)
        places = [receipt.result(0) for receipt in receipts]
        assert producer.stats.delivered == 500
    records = list(stream.read(topic))
    assert [record.value for record in records] == [b"%d" % number for number in range(500)]
    assert [record.offset for record in records] == [place.offset for place in places]
    assert {(record.headers, record.timestamp_ms) for record in records} == {
        ((("h", b"1"), ("h", None)), 1_700_000_000_000)
    }


def test_an_impossible_topic_is_refused_by_send(url: str) -> None:
    with Producer(url) as producer, pytest.raises(InvalidTopicError):
        producer.send("no/such/name", "x")


def test_a_spool_outlives_an_outage_of_the_broker(own_server: Penstock, tmp_path: Path) -> None:
    topic = fresh()
    url = f"kafka://{own_server.bootstrap}"
    retry = Retry(None, first_delay_s=0.05, max_delay_s=0.2)
    with Producer(url, buffer=f"spool:{tmp_path / 'spool'}", retry=retry, linger_ms=1) as producer:
        producer.send(topic, "0").result(20)
        for outage in range(2):
            own_server.kill()
            receipts = [producer.send(topic, f"{outage} {number}", "key") for number in range(300)]
            own_server.start()
            producer.flush(60)
            assert all(receipt.result(0) for receipt in receipts)
    with penstock.connect(url) as stream:
        expected = ["0", *(f"{outage} {number}" for outage in range(2) for number in range(300))]
        assert values(stream, topic) == expected


def test_a_spool_is_filled_and_opened_while_there_is_no_broker(own_server: Penstock, tmp_path: Path) -> None:
    """What was not delivered is there; and it is delivered once the broker is, by another producer."""
    topic = fresh()
    url = f"kafka://{own_server.bootstrap}"
    spool = f"spool:{tmp_path / 'spool'}"
    retry = Retry(None, first_delay_s=0.05, max_delay_s=0.2)
    own_server.kill()
    producer = Producer(url, buffer=spool, retry=retry)
    receipts = [producer.send(topic, str(number), "key") for number in range(50)]
    producer.close(timeout_s=0.3)
    assert all("stays in the spool" in str(receipt.error) for receipt in receipts)
    own_server.start()
    with Producer(url, buffer=spool, retry=retry) as again:
        again.flush(60)
    with penstock.connect(url) as stream:
        assert values(stream, topic) == [str(number) for number in range(50)]


def test_memory_fails_in_time_when_the_broker_stays_away(own_server: Penstock) -> None:
    producer = Producer(f"kafka://{own_server.bootstrap}", delivery_timeout_s=1.0, buffer_records=10, max_block_s=0.1)
    own_server.kill()
    receipts = [producer.send("t", str(number)) for number in range(10)]
    with pytest.raises(BufferFullError):
        producer.send("t", "one too many")
    with pytest.raises(DeliveryError, match="no acknowledgement"):
        receipts[0].result(20)
    for receipt in receipts:
        eventually("all fail", lambda receipt=receipt: receipt.error)  # type: ignore[misc]
    producer.close()


@pytest.mark.parametrize("settings", [{}, {"idempotent": False}, {"transactional_id": "trickle"}], ids=str)
def test_receipts_do_not_wait_for_a_pause_of_the_sender(
    settings: dict[str, Any], url: str, topic: str, tmp_path: Path
) -> None:
    """With a sender that never stops, there is always something new to hand over."""
    buffer = "memory" if settings.get("transactional_id") else f"spool:{tmp_path / 'spool'}"
    with Producer(url, buffer=buffer, **settings) as producer:
        first = producer.send(topic, "first")
        assert wait_while_sending(producer, topic, first, attempts=2_000).partition == 0


def wait_while_sending(producer: Producer, topic: str, first: Receipt, attempts: int) -> RecordMetadata:
    """Wait for a receipt in small steps, and send a record after each."""
    for _ in range(attempts):
        producer.send(topic, "more")
        try:
            return first.result(0.001)
        except TimeoutError:
            continue
    raise AssertionError(f"not acknowledged while {attempts} records were sent behind it")


@pytest.mark.parametrize("idempotent", [None, False])
def test_the_innocent_in_a_refused_batch_are_delivered(
    url: str, stream: penstock.Connection, tmp_path: Path, idempotent: bool | None
) -> None:
    """A broker refuses a batch for one of its records. In a spool, each is judged alone."""
    topic = fresh()
    stream.create_topic(topic, 1, {"max.message.bytes": "2000"})
    with Producer(url, buffer=f"spool:{tmp_path / 'spool'}", idempotent=idempotent, linger_ms=50) as producer:
        small = [producer.send(topic, f"small {number}", "key") for number in range(5)]
        large = producer.send(topic, "x" * 3000, "key")
        small += [producer.send(topic, f"small {number}", "key") for number in range(5, 10)]
        with pytest.raises(DeliveryError, match="too large"):
            large.result(30)
        assert all(receipt.result(30) for receipt in small)
        assert producer.stats.refused == 1
    assert values(stream, topic) == [f"small {number}" for number in range(10)]
    assert [refused.record.value for refused in read_refused(tmp_path / "spool")] == [b"x" * 3000]


def test_a_compacted_topics_record_without_a_key_is_refused_alone(
    url: str, stream: penstock.Connection, tmp_path: Path
) -> None:
    topic = fresh()
    stream.create_topic(topic, 1, {"cleanup.policy": "compact"})
    with Producer(url, buffer=f"spool:{tmp_path / 'spool'}", linger_ms=50) as producer:
        good = [producer.send(topic, "1", "a"), producer.send(topic, "2", "b")]
        bad = producer.send(topic, "no key")
        good.append(producer.send(topic, "3", "c"))
        with pytest.raises(DeliveryError, match="needs a key"):
            bad.result(30)
        assert all(receipt.result(30) for receipt in good)
    assert values(stream, topic) == ["1", "2", "3"]


def test_a_transaction_is_there_whole_or_not_at_all(url: str, stream: penstock.Connection, topic: str) -> None:
    other = fresh()
    stream.create_topic(other)
    with Producer(url, transactional_id=fresh()) as producer:
        with producer.transaction():
            inside = [producer.send(topic, "a"), producer.send(other, "b")]
            assert not any(receipt.done for receipt in inside)
        assert all(receipt.result(0) for receipt in inside)
        lost: list[Receipt] = []

        def fail_in_the_middle() -> None:
            with producer.transaction():
                lost.append(producer.send(topic, "never"))
                raise ZeroDivisionError("in the middle")

        with pytest.raises(ZeroDivisionError):
            fail_in_the_middle()
        with pytest.raises(DeliveryError, match="in the middle"):
            lost[0].result(0)
        producer.send(topic, "c").result(20)
    assert values(stream, topic) == ["a", "c"]
    assert values(stream, other) == ["b"]


def test_a_transaction_in_a_spool_is_refused_whole(url: str, stream: penstock.Connection, tmp_path: Path) -> None:
    topic = fresh()
    stream.create_topic(topic, 1, {"max.message.bytes": "2000"})
    with Producer(url, buffer=f"spool:{tmp_path / 'spool'}", linger_ms=50) as producer:
        producer.send(topic, "before")
        with producer.transaction():
            together = [producer.send(topic, "small"), producer.send(topic, "x" * 3000)]
        producer.send(topic, "behind")
        for receipt in together:
            with pytest.raises(DeliveryError, match="too large"):
                receipt.result(30)
        producer.flush(30)
    assert values(stream, topic) == ["before", "behind"]
    assert len(read_refused(tmp_path / "spool")) == 2


def test_a_second_producer_of_the_same_name_fences_the_first(url: str, topic: str) -> None:
    name = fresh()
    first = Producer(url, transactional_id=name)
    first.send(topic, "a").result(20)
    with Producer(url, transactional_id=name) as second:
        second.send(topic, "b").result(20)
        with pytest.raises(DeliveryError, match="another producer"):
            first.send(topic, "c").result(20)
        eventually("it knows", lambda: isinstance(first._engine.pump.failure, FencedError))
        with pytest.raises(DeliveryError, match="can send no more"):
            first.send(topic, "d")
        first.close()


def test_a_spool_that_lost_its_name_takes_it_again_and_repeats_nothing(
    server: Penstock, url: str, stream: penstock.Connection, topic: str, tmp_path: Path
) -> None:
    """As after a long sleep of the machine: the brokers have given the producer up."""
    spool = Spool(tmp_path / "spool")
    retry = Retry(None, first_delay_s=0.01, max_delay_s=0.1)
    with Producer(url, buffer=spool, retry=retry) as producer:
        for turn in range(3):
            receipts = [producer.send(topic, f"{turn} {number}", "key") for number in range(20)]
            assert all(receipt.result(30) for receipt in receipts)
            usurper = confluent_kafka.Producer(
                {"bootstrap.servers": server.bootstrap, "transactional.id": PROGRESS_PREFIX + spool.id}
            )
            usurper.init_transactions(20)
        producer.send(topic, "last", "key").result(30)
    spool.close()
    assert values(stream, topic) == [*(f"{turn} {number}" for turn in range(3) for number in range(20)), "last"]


@pytest.mark.parametrize("was_committed", [True, False])
def test_a_commit_whose_answer_was_lost_is_looked_up_and_not_repeated(
    was_committed: bool,
    url: str,
    stream: penstock.Connection,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = TransactionDelivery._call
    lost: list[str] = []

    def lose_the_answer(self: TransactionDelivery, what: str, *arguments: Any, **options: Any) -> None:
        if "committed" in what and "progress" not in what and len(lost) < 3:
            lost.append(what)
            if was_committed:
                real(self, what, *arguments, **options)
            self._drop_producer()
            raise DeliveryError("the answer is lost", retriable=True)
        real(self, what, *arguments, **options)

    monkeypatch.setattr(TransactionDelivery, "_call", lose_the_answer)
    retry = Retry(None, first_delay_s=0.01, max_delay_s=0.1)
    with Producer(url, buffer=f"spool:{tmp_path / 'spool'}", retry=retry, batch_records=10) as producer:
        receipts = [producer.send(topic, str(number), "key") for number in range(100)]
        places = [receipt.result(30) for receipt in receipts]
    assert lost
    records = list(stream.read(topic))
    assert [record.value for record in records] == [b"%d" % number for number in range(100)]
    assert [place.offset for place in places] == [record.offset for record in records]


def test_in_memory_a_commit_whose_answer_was_lost_fails_and_is_not_repeated(
    url: str, stream: penstock.Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TransactionDelivery._call

    def lose_the_answer(self: TransactionDelivery, what: str, *arguments: Any, **options: Any) -> None:
        real(self, what, *arguments, **options)
        if "committed" in what:
            monkeypatch.undo()
            self._drop_producer()
            raise DeliveryError("the answer is lost", retriable=True)

    monkeypatch.setattr(TransactionDelivery, "_call", lose_the_answer)
    with Producer(url, transactional_id=fresh()) as producer:
        with pytest.raises(DeliveryError, match="may be stored or not"):
            producer.send(topic, "a").result(20)
        producer.send(topic, "b").result(20)
    assert values(stream, topic) == ["a", "b"]


def test_progress_of_a_spool_is_taken_from_the_stream_when_the_folder_forgot_it(
    url: str, stream: penstock.Connection, topic: str, tmp_path: Path
) -> None:
    """As after a power cut, which took the newest of the position file."""
    other = fresh()
    stream.create_topic(other)
    spool = Spool(tmp_path / "spool", segment_bytes=2_000)
    spool._delete_committed = lambda: None  # type: ignore[method-assign]
    position = (tmp_path / "spool" / "position").read_bytes()
    with Producer(url, buffer=spool, batch_records=10) as producer:
        for number in range(200):
            producer.send(topic if number < 100 else other, str(number))
        producer.flush(30)
    spool.close()
    (tmp_path / "spool" / "position").write_bytes(position)
    with Producer(url, buffer=f"spool:{tmp_path / 'spool'}") as again:
        again.send(topic, "200")
        again.flush(30)
        assert again.stats.delivered == 1
    assert values(stream, topic) == [*(str(number) for number in range(100)), "200"]
    assert values(stream, other) == [str(number) for number in range(100, 200)]
