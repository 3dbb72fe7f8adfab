"""The producer on streams in memory: what it takes, what it refuses, what it does when it is full, how it ends."""

from __future__ import annotations

import datetime
import gc
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import (
    BufferFullError,
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    GuaranteeError,
    InvalidTopicError,
    RecordTooLargeError,
    SerdeError,
    SpoolInUseError,
)
from penstock.model import Receipt
from penstock.model.retry import Retry
from penstock.producing.buffers import MemoryBuffer
from penstock.producing.producer import Producer
from penstock.producing.refused import read_refused
from penstock.producing.spooling import Spool
from penstock.serde import Topic
from penstock.streams.memory import MemoryStream
from tests.clients.waiting import eventually
from tests.producing.held_streams import HeldStreams, passing, refusing

QUICK = Retry(None, first_delay_s=0.001, max_delay_s=0.01)


@dataclass
class Order:
    customer: str
    amount: int


@pytest.fixture
def streams() -> HeldStreams:
    return HeldStreams()


def spool_of(folder: Path) -> str:
    return f"spool:{folder / 'spool'}"


def test_records_arrive_in_order_and_receipts_say_where() -> None:
    memory = MemoryStream()
    with Producer(memory) as producer:
        receipts = [producer.send("orders", f"value {number}", "key") for number in range(100)]
        places = [receipt.result(10) for receipt in receipts]
    assert [place.offset for place in places] == list(range(100))
    assert [record.value for record in memory.read("orders")] == [f"value {number}".encode() for number in range(100)]


def test_a_url_opens_the_stream_and_a_topic_encodes() -> None:
    topic = Topic("orders", Order, key=lambda order: order.customer)
    with Producer("memory:producer-topics") as producer:
        producer.send(topic, Order("ann", 3), headers={"trace": "1"}).result(10)
    (record,) = MemoryStream.named("producer-topics").read("orders")
    assert (record.key, topic.decode(record.value), record.headers) == (b"ann", Order("ann", 3), (("trace", b"1"),))


def test_options_of_connect_reach_the_brokers_of_a_url(tmp_path: Path) -> None:
    url = "kafka://127.0.0.1:9"
    with pytest.raises(ConfigError, match=r"setting group\.id is set by Penstock"):
        Producer(url, client={"librdkafka": {"group.id": "mine"}})
    with pytest.raises(ConfigError, match="pass linger_ms to the Producer itself"):
        Producer(url, client={"linger_ms": 1})
    with pytest.raises(ConfigError, match="exit_when_idle_s is for log: URLs"):
        Producer(url, buffer=spool_of(tmp_path), client={"exit_when_idle_s": 1})
    with pytest.raises(ConfigError, match="client is for a URL"):
        Producer(MemoryStream(), client={"acks": 1})


def test_the_timestamp_is_when_it_was_sent_unless_it_is_given() -> None:
    memory = MemoryStream()
    when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    before_ms = time.time_ns() // 1_000_000
    with Producer(memory) as producer:
        producer.send("t", "now")
        producer.send("t", "then", timestamp=when)
    now, then = memory.read("t")
    assert before_ms <= (now.timestamp_ms or 0) <= time.time_ns() // 1_000_000
    assert then.timestamp == when


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"when_full": "explode"}, "when_full"),
        ({"batch_records": 0}, "batch_records"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"in_flight": 6}, "in_flight"),
        ({"in_flight": 2, "idempotent": False}, "in_flight"),
        ({"buffer": "paper"}, "paper"),
        ({"buffer": "spool:"}, "spool:"),
        ({"spool_flush": "fsync"}, "spool_flush"),
        ({"spool_flush": "never", "buffer": "spool:x"}, "never"),
        ({"compression": "lz4"}, "compression"),
        ({"compression": "rar"}, "rar"),
        ({"partitioner": "random"}, "random"),
        ({"on_delivery": 3}, "on_delivery"),
        ({"retry": 3}, "retry"),
        ({"transactional_id": ""}, "transactional_id"),
        ({"transactional_id": "x", "idempotent": False}, "transactional_id"),
        ({"delivery_timeout_s": 0.001}, "delivery_timeout_s"),
        ({"max_request_bytes": 2000, "buffer_bytes": 1000}, "max_request_bytes"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Producer(MemoryStream(), **settings)  # type: ignore[arg-type]


def test_what_the_stream_cannot_do_is_refused_when_the_producer_is_made(tmp_path: Path) -> None:
    with pytest.raises(GuaranteeError, match="it has no transactions"):
        Producer(MemoryStream(), transactional_id="x")
    with pytest.raises(GuaranteeError, match="it has no transactions"):
        Producer(MemoryStream(), buffer=spool_of(tmp_path), idempotent=True)
    with pytest.raises(GuaranteeError, match="it has no protection against a record being stored twice"):
        Producer(HeldStreams(frozenset()), idempotent=True)
    with pytest.raises(ConfigError, match="it has no way to choose the partition"):
        Producer(HeldStreams(frozenset()), partitioner="sticky")
    with (
        Producer(MemoryStream()) as producer,
        pytest.raises(ConfigError, match="transactional_id"),
        producer.transaction(),
    ):
        pass
    Producer(MemoryStream(), buffer=spool_of(tmp_path)).close()


def test_records_that_could_never_be_sent_are_refused_at_once() -> None:
    with Producer(MemoryStream(), max_request_bytes=1000) as producer:
        with pytest.raises(SerdeError):
            producer.send("t", object())
        with pytest.raises(SerdeError):
            producer.send(Topic("t", Order), 3)  # type: ignore[misc]
        with pytest.raises(RecordTooLargeError, match="max_request_bytes=1000"):
            producer.send("t", b"x" * 1001)
        with pytest.raises(RecordTooLargeError, match="max_request_bytes"):
            producer.send("t", b"x", headers={"h": b"x" * 1000})
        with pytest.raises(ConfigError, match="time zone"):
            producer.send("t", b"x", timestamp=datetime.datetime(2026, 1, 1))  # noqa: DTZ001
        with pytest.raises(ConfigError, match="-1 is not a partition"):
            producer.send("t", b"x", partition=-1)
        with pytest.raises(InvalidTopicError, match="not a topic"):
            producer.send("", b"x")
        assert producer.stats.sent == 0


def test_what_fails_for_a_while_is_tried_again_in_order(streams: HeldStreams) -> None:
    streams.verdicts += [passing, passing, passing]
    with Producer(streams, retry=QUICK) as producer:
        receipts = [producer.send("t", str(number), "key") for number in range(50)]
        producer.flush(10)
        assert all(receipt.result(0) for receipt in receipts)
        assert producer.stats.retried >= 3
    assert streams.values() == [b"%d" % number for number in range(50)]


def test_only_what_failed_is_tried_again(streams: HeldStreams) -> None:
    streams.verdicts.append(lambda record: passing(record) if record.value == b"3" else None)
    with Producer(streams, retry=QUICK, linger_ms=50) as producer:
        for number in range(6):
            producer.send("t", str(number))
    assert sorted(streams.values()) == [b"0", b"1", b"2", b"3", b"4", b"5"]  # type: ignore[type-var]


def test_a_record_in_memory_fails_when_its_time_is_over(streams: HeldStreams) -> None:
    streams.verdicts += [passing] * 100_000
    with Producer(streams, retry=QUICK, delivery_timeout_s=0.1) as producer:
        receipt = producer.send("t", "x")
        with pytest.raises(DeliveryError, match="busy"):
            receipt.result(20)
        assert producer.stats.failed == 1
        streams.verdicts.clear()
        producer.send("t", "y").result(10)


def test_a_refused_record_fails_alone(streams: HeldStreams) -> None:
    streams.verdicts.append(refusing(b"bad"))
    with Producer(streams, linger_ms=50) as producer:
        good, bad, also_good = (producer.send("t", value) for value in ("good", "bad", "also good"))
        assert good.result(10)
        with pytest.raises(DeliveryError, match="does not want it"):
            bad.result(10)
        assert also_good.result(10)
        assert producer.stats.refused == 1


def test_failures_that_nobody_saw_are_raised_by_flush_and_close(streams: HeldStreams) -> None:
    streams.verdicts += [refusing(b"bad"), refusing(b"bad")]
    producer = Producer(streams)
    producer.send("t", "bad")
    with pytest.raises(DeliveryError, match="does not want it"):
        producer.flush(10)
    producer.flush(10)
    producer.send("t", "bad")
    with pytest.raises(DeliveryError, match="does not want it"):
        producer.close()


def test_a_refused_record_does_not_wedge_the_spool_and_is_kept_beside_it(streams: HeldStreams, tmp_path: Path) -> None:
    bad = refusing(b"bad")
    streams.verdicts += [bad] * 10
    with Producer(streams, buffer=spool_of(tmp_path), linger_ms=20, retry=QUICK) as producer:
        producer.send("t", "before", "key")
        receipt = producer.send("t", "bad", "key", headers={"h": "1"})
        producer.send("t", "behind", "key")
        with pytest.raises(DeliveryError, match="does not want it"):
            receipt.result(10)
        producer.flush(10)
        assert producer.stats.refused == 1
        assert producer.stats.buffered == 0
    assert streams.values() == [b"before", b"behind"]
    (refused,) = read_refused(tmp_path / "spool")
    assert (refused.record.value, refused.record.key, refused.record.headers) == (b"bad", b"key", (("h", b"1"),))
    assert "does not want it" in refused.reason


def test_a_full_buffer_blocks_until_there_is_room(streams: HeldStreams) -> None:
    streams.shut()
    with Producer(streams, buffer_records=10) as producer:
        for number in range(10):
            producer.send("t", str(number))
        blocked = threading.Thread(target=producer.send, args=("t", "last"))
        blocked.start()
        eventually("the sender waits", lambda: len(streams.batches) == 0 and blocked.is_alive())
        streams.release()
        blocked.join(10)
        assert not blocked.is_alive()
    assert streams.values()[-1] == b"last"
    assert len(streams.values()) == 11


def test_a_buffer_that_stays_full_is_an_error_that_says_what_to_do(streams: HeldStreams) -> None:
    streams.shut()
    with Producer(streams, buffer_records=3, max_block_s=0.05) as producer:
        for number in range(3):
            producer.send("t", str(number))
        with pytest.raises(BufferFullError, match=r"full for 0\.05 s.*buffer_records"):
            producer.send("t", "one too many")
        streams.release()
    assert len(streams.values()) == 3


def test_error_raises_at_once(streams: HeldStreams) -> None:
    streams.shut()
    with Producer(streams, buffer_records=1, when_full="error") as producer:
        producer.send("t", "x")
        with pytest.raises(BufferFullError):
            producer.send("t", "y")
        streams.release()


def test_drop_newest_counts_and_tells(streams: HeldStreams, caplog: pytest.LogCaptureFixture) -> None:
    streams.shut()
    with Producer(streams, buffer_records=2, when_full="drop_newest") as producer, caplog.at_level(logging.WARNING):
        kept = [producer.send("t", "a"), producer.send("t", "b")]
        dropped = [producer.send("t", str(number)) for number in range(100)]
        assert all(receipt.done for receipt in dropped)
        assert isinstance(dropped[0].error, DeliveryError)
        assert producer.stats.dropped == 100
        assert caplog.text.count("dropping records (drop_newest)") == 1
        streams.release()
        assert all(receipt.result(10) for receipt in kept)
    assert streams.values() == [b"a", b"b"]


@pytest.mark.parametrize("kind", ["memory", "spool"])
def test_drop_oldest_drops_what_is_not_under_way(streams: HeldStreams, tmp_path: Path, kind: str) -> None:
    streams.shut()
    buffer = "memory" if kind == "memory" else spool_of(tmp_path)
    with Producer(
        streams, buffer=buffer, buffer_records=10, when_full="drop_oldest", batch_records=2, in_flight=1, linger_ms=0
    ) as producer:
        receipts = [producer.send("t", str(number)) for number in range(2)]
        eventually("they are under way", lambda: producer._engine.pump.taken >= 0)
        taken = 1 + producer._engine.pump.taken
        receipts += [producer.send("t", str(number)) for number in range(2, 30)]
        assert producer.stats.dropped == 20
        assert producer.stats.buffered == 10
        streams.release()
        producer.flush(10)
    left = [*range(taken), *range(20 + taken, 30)]
    assert streams.values() == [b"%d" % number for number in left]
    assert [number for number, receipt in enumerate(receipts) if receipt.error is None] == left
    assert not any("dropped" not in str(receipt.error) for receipt in receipts if receipt.error)


def test_records_linger_and_go_at_once_when_somebody_waits(streams: HeldStreams) -> None:
    with Producer(streams, linger_ms=60_000) as producer:
        started_s = time.monotonic()
        receipts = [producer.send("t", str(number)) for number in range(10)]
        receipts[-1].result(10)
        assert time.monotonic() - started_s < 10
    assert sum(map(len, streams.batches)) == 10
    assert len(streams.batches) < 4


def test_batches_keep_to_their_limits(streams: HeldStreams) -> None:
    streams.shut()
    with Producer(streams, batch_records=7, linger_ms=0) as producer:
        for number in range(50):
            producer.send("t", str(number))
        streams.release()
    assert max(map(len, streams.batches)) <= 7
    sized = HeldStreams()
    sized.shut()
    with Producer(sized, batch_bytes=1000, linger_ms=0) as producer:
        for _ in range(20):
            producer.send("t", b"x" * 400)
        sized.release()
    assert max(map(len, sized.batches)) <= 2


def test_callbacks_hear_of_every_record(streams: HeldStreams) -> None:
    heard: list[Receipt] = []
    streams.verdicts.append(refusing(b"2"))
    with Producer(streams, on_delivery=heard.append, linger_ms=20) as producer:
        sent = [producer.send("t", str(number)) for number in range(5)]
        eventually("all are heard of", lambda: len(heard) == 5)
        assert set(heard) == set(sent)
        assert [receipt for receipt in heard if receipt.error] == [sent[2]]


def test_close_gives_memory_up_at_its_deadline(streams: HeldStreams) -> None:
    streams.verdicts += [passing] * 100_000
    producer = Producer(streams, retry=QUICK)
    receipts = [producer.send("t", str(number)) for number in range(5)]
    started_s = time.monotonic()
    with pytest.raises(DeliveryError, match=r"was not delivered.*4 more"):
        producer.close(timeout_s=0.2)
    assert time.monotonic() - started_s < 10
    assert all(receipt.done and isinstance(receipt.error, DeliveryError) for receipt in receipts)
    with pytest.raises(ConnectionClosedError, match="closed"):
        producer.send("t", "x")
    producer.close()


def test_what_a_spool_holds_at_the_deadline_is_delivered_by_the_next(streams: HeldStreams, tmp_path: Path) -> None:
    streams.verdicts += [passing] * 100_000
    producer = Producer(streams, buffer=spool_of(tmp_path), retry=QUICK)
    receipts = [producer.send("t", str(number), "key") for number in range(5)]
    producer.close(timeout_s=0.1)
    assert all("stays in the spool" in str(receipt.error) for receipt in receipts)
    assert streams.values() == []
    streams.verdicts.clear()
    with Producer(streams, buffer=spool_of(tmp_path)) as again:
        again.send("t", "5", "key")
        again.flush(10)
        assert again.stats.delivered == 6
        assert again.stats.sent == 1
    assert streams.values() == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_second_producer_on_a_spool_is_refused_and_lets_go_of_everything(tmp_path: Path) -> None:
    with (
        Producer(MemoryStream(), buffer=spool_of(tmp_path)),
        pytest.raises(SpoolInUseError, match=f"process {os.getpid()}"),
    ):
        Producer("memory:second-owner", buffer=spool_of(tmp_path))
    Producer(MemoryStream(), buffer=spool_of(tmp_path)).close()


def test_a_buffer_of_the_users_own_is_used_and_left_open(streams: HeldStreams, tmp_path: Path) -> None:
    class Counting(MemoryBuffer):
        puts = 0

        def put(self, records: object) -> int:
            self.puts += 1
            return super().put(records)  # type: ignore[arg-type]

    class Foreign:
        """Only what the contract asks for."""

        def __init__(self, inner: MemoryBuffer | Spool) -> None:
            for name in ("put", "peek", "commit", "drop", "close"):
                setattr(self, name, getattr(inner, name))
            self._inner = inner

        features = property(lambda self: self._inner.features)
        size_bytes = property(lambda self: self._inner.size_bytes)

        def __len__(self) -> int:
            return len(self._inner)

    counting = Counting()
    with Producer(streams, buffer=counting) as producer:
        producer.send("t", "x").result(10)
    assert counting.puts == 1
    with Producer(streams, buffer=Foreign(MemoryBuffer())) as producer:  # type: ignore[arg-type]
        producer.send("t", "y").result(10)
    spool = Spool(tmp_path / "spool")
    with Producer(streams, buffer=Foreign(spool)) as producer:  # type: ignore[arg-type]
        producer.send("t", "z").result(10)
    spool.close()
    assert streams.values() == [b"x", b"y", b"z"]


def test_a_forgotten_producer_delivers_what_it_has_and_complains(streams: HeldStreams) -> None:
    def forget() -> None:
        Producer(streams, linger_ms=1_000).send("t", "x")
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        forget()
    assert streams.values() == [b"x"]


def test_a_forked_process_cannot_use_the_producer_and_harms_nothing(streams: HeldStreams, tmp_path: Path) -> None:
    producer = Producer(streams, buffer=spool_of(tmp_path))
    producer.send("t", "x").result(10)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            producer.send("t", "y")
        except ConnectionClosedError:
            producer.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    producer.send("t", "z").result(10)
    producer.close()
    assert streams.values() == [b"x", b"z"]


def test_the_age_of_the_oldest_record_is_known(streams: HeldStreams) -> None:
    streams.shut()
    with Producer(streams) as producer:
        assert producer.stats.oldest_age_s == 0
        producer.send("t", "x")
        eventually("it grows old", lambda: producer.stats.oldest_age_s > 0.05)
        assert producer.stats.buffered_bytes > 0
        streams.release()
        producer.flush(10)
        assert producer.stats.oldest_age_s == 0


def test_many_threads_send(streams: HeldStreams, tmp_path: Path) -> None:
    with Producer(streams, buffer=spool_of(tmp_path)) as producer:

        def send(worker: int) -> None:
            for number in range(200):
                producer.send("t", f"{worker} {number}", str(worker))

        workers = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join(30)
        producer.flush(30)
        assert producer.stats.delivered == producer.stats.sent == 800
    for worker in range(4):
        ours = [record.value for record in streams.stored if record.key == b"%d" % worker]
        assert ours == [b"%d %d" % (worker, number) for number in range(200)]


def test_a_record_that_is_refused_over_and_over_is_still_only_one(streams: HeldStreams, tmp_path: Path) -> None:
    """A mixture of what fails for a while and what fails for good, in one batch, ends in order."""
    streams.verdicts += [
        lambda record: refusing(b"bad")(record) or (passing(record) if record.value in (b"1", b"4") else None),
        refusing(b"bad"),
        refusing(b"bad"),
        passing,
        refusing(b"bad"),
    ]
    with Producer(streams, buffer=spool_of(tmp_path), linger_ms=50, retry=QUICK) as producer:
        for value in ("0", "1", "bad", "3", "4"):
            producer.send("t", value)
        with pytest.raises(DeliveryError):
            producer.flush(10)
    assert sorted(streams.values()) == [b"0", b"1", b"3", b"4"]  # type: ignore[type-var]
    assert [refused.record.value for refused in read_refused(tmp_path / "spool")] == [b"bad"]
