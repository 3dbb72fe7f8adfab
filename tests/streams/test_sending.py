"""Sending: what is stored is what was sent, and what is not stored is told."""

from __future__ import annotations

import datetime
import logging
import os
import threading
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

import penstock
from penstock.errors import ConnectionClosedError, InvalidTopicError, SerdeError
from tests.clients.names import fresh
from tests.servers import Penstock

TIMEOUT_S = 20.0
WHEN = datetime.datetime(2024, 11, 15, 8, 0, 0, 250_000, tzinfo=datetime.UTC)


@dataclass
class Order:
    customer: str
    amount: float


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (b"\x00\xff", b"\x00\xff"),
        ("gr\u00fc\u00dfe", "gr\u00fc\u00dfe".encode()),
        (bytearray(b"abc"), b"abc"),
        (memoryview(b"abc"), b"abc"),
        ({"a": [1, None, "x"]}, b'{"a":[1,null,"x"]}'),
        (Order("ada", 12.5), b'{"customer":"ada","amount":12.5}'),
        (7, b"7"),
        (b"", b""),
        (None, None),
    ],
)
def test_keys_and_values_are_stored_as_given_or_as_json(
    stream: penstock.Connection, topic: str, value: Any, stored: bytes | None
) -> None:
    stream.send(topic, value, key=value).result(TIMEOUT_S)
    (record,) = stream.read(topic)
    assert (record.key, record.value) == (stored, stored)


def test_a_record_comes_back_whole(stream: penstock.Connection, topic: str) -> None:
    headers: list[tuple[str, str | bytes | None]] = [
        ("trace", "abc"),
        ("trace", b"\xff"),
        ("empty", b""),
        ("none", None),
    ]
    place = stream.send(topic, "v", key="k", headers=headers, timestamp=WHEN, partition=0).result(TIMEOUT_S)
    (record,) = stream.read(topic)
    assert record == penstock.Record(
        topic,
        0,
        0,
        b"k",
        b"v",
        (("trace", b"abc"), ("trace", b"\xff"), ("empty", b""), ("none", None)),
        int(WHEN.timestamp() * 1000),
    )
    assert record.place == place
    assert record.pointer == "0"
    assert record.timestamp == WHEN


def test_a_record_without_a_timestamp_gets_the_present(stream: penstock.Connection, topic: str) -> None:
    before = datetime.datetime.now(datetime.UTC)
    stream.send(topic, "v", headers={"a": "b"}).result(TIMEOUT_S)
    (record,) = stream.read(topic)
    assert record.headers == (("a", b"b"),)
    assert record.timestamp is not None
    assert abs(record.timestamp - before) < datetime.timedelta(seconds=TIMEOUT_S)


def test_records_of_one_key_stay_in_one_partition_and_in_order(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, partitions=4)
    for number in range(400):
        stream.send(topic, str(number), key=f"key-{number % 10}")
    stream.flush(TIMEOUT_S)
    records = list(stream.read(topic))
    assert len(records) == 400
    assert len({record.partition for record in records}) > 1
    for key in {record.key for record in records}:
        of_key = [record for record in records if record.key == key]
        assert len({record.partition for record in of_key}) == 1
        numbers = [int(record.value or b"") for record in of_key]
        assert numbers == sorted(numbers)


def test_keys_go_where_the_java_client_would_put_them(stream: penstock.Connection) -> None:
    """Kafka's own producer takes murmur2 of the key, which is -973932308 for "21" and -790332482 for "foobar"."""
    topic = fresh()
    stream.create_topic(topic, partitions=7)
    expected = {"21": (-973932308 & 0x7FFFFFFF) % 7, "foobar": (-790332482 & 0x7FFFFFFF) % 7}
    places = {key: stream.send(topic, "v", key=key).result(TIMEOUT_S).partition for key in expected}
    assert places == expected


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"value": object()}, "a value of type object cannot be sent"),
        ({"value": "v", "key": {1, lambda: 0}}, "a key of type set cannot be sent"),
        ({"value": "v", "timestamp": datetime.datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"value": "v", "timestamp": 0}, "must be after 1970"),
        ({"value": "v", "timestamp": 1.5}, "neither a datetime nor milliseconds"),
        ({"value": "v", "headers": {"a": 1}}, "the header 'a' has a value of type int"),
        ({"value": "v", "headers": [(b"a", b"b")]}, "must be text"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(
    stream: penstock.Connection, topic: str, arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises((penstock.ConfigError, SerdeError), match=complaint):
        stream.send(topic, **arguments)
    assert list(stream.read(topic)) == []


def test_a_record_that_is_too_large_names_the_setting_to_raise(stream: penstock.Connection, topic: str) -> None:
    receipt = stream.send(topic, b"x" * 2_000_000)
    with pytest.raises(penstock.DeliveryError, match=r"raise max\.message\.bytes"):
        receipt.result(TIMEOUT_S)
    stream.create_topic(f"{topic}-large", config={"max.message.bytes": "3000000"})
    assert stream.send(f"{topic}-large", b"x" * 2_000_000).result(TIMEOUT_S).offset == 0


def test_a_topic_that_cannot_be_is_refused_with_a_reason(stream: penstock.Connection) -> None:
    with pytest.raises(InvalidTopicError, match="'not a topic' is not a topic name"):
        stream.send("not a topic", "v")


def test_a_partition_that_is_not_there_is_told(stream: penstock.Connection, topic: str) -> None:
    stream.send(topic, "v").result(TIMEOUT_S)
    with pytest.raises(penstock.DeliveryError, match="no such partition"):
        stream.send(topic, "v", partition=9).result(TIMEOUT_S)


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, config={"cleanup.policy": "compact"})
    with pytest.raises(penstock.DeliveryError, match="each of its records needs a key"):
        stream.send(topic, "v").result(TIMEOUT_S)


def test_flush_raises_what_nobody_has_looked_at_once(server: Penstock) -> None:
    with penstock.connect(f"kafka://{server.bootstrap}") as stream:
        topic = fresh()
        stream.send(topic, "fits")
        for _ in range(3):
            stream.send(topic, b"x" * 2_000_000)
        with pytest.raises(penstock.DeliveryError, match=r"too large.*\(2 more were not delivered either\)"):
            stream.flush(TIMEOUT_S)
        stream.flush(TIMEOUT_S)
        assert [record.value for record in stream.read(topic)] == [b"fits"]


def test_leaving_the_with_block_raises_what_nobody_has_looked_at(server: Penstock) -> None:
    def send_and_forget() -> None:
        with penstock.connect(f"kafka://{server.bootstrap}") as stream:
            stream.send(fresh(), b"x" * 2_000_000)

    with pytest.raises(penstock.DeliveryError, match="too large"):
        send_and_forget()


def test_a_failure_that_was_looked_at_is_not_raised_again(server: Penstock) -> None:
    with penstock.connect(f"kafka://{server.bootstrap}") as stream:
        receipt = stream.send(fresh(), b"x" * 2_000_000)
        errors: list[penstock.DeliveryError | None] = []
        receipt.add_done_callback(lambda each: errors.append(each.error))
        stream.flush(TIMEOUT_S)
    assert len(errors) == 1
    assert isinstance(errors[0], penstock.DeliveryError)


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_every_kind_of_acknowledgement_delivers(server: Penstock, acks: Any) -> None:
    topic = fresh()
    with penstock.connect(f"kafka://{server.bootstrap}", acks=acks, compression="zstd") as stream:
        stream.create_topic(topic)
        for number in range(100):
            stream.send(topic, f"{number}")
        stream.flush(TIMEOUT_S)
        assert [int(record.value or b"") for record in stream.read(topic)] == list(range(100))


def test_many_threads_send_over_one_connection(stream: penstock.Connection, topic: str) -> None:
    def send_hundred(name: int) -> None:
        for number in range(100):
            stream.send(topic, f"{number}", key=str(name))

    threads = [threading.Thread(target=send_hundred, args=(name,)) for name in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    stream.flush(TIMEOUT_S)
    records = list(stream.read(topic))
    for name in range(5):
        assert [record.value for record in records if record.key == b"%d" % name] == [b"%d" % n for n in range(100)]


def test_a_full_buffer_makes_the_sender_wait_and_loses_nothing(server: Penstock) -> None:
    topic = fresh()
    small = {"queue.buffering.max.messages": 10}
    with penstock.connect(f"kafka://{server.bootstrap}", librdkafka=small) as stream:
        for number in range(500):
            stream.send(topic, str(number))
        stream.flush(TIMEOUT_S)
        assert [int(record.value or b"") for record in stream.read(topic)] == list(range(500))


def test_a_buffer_that_stays_full_is_an_error_that_says_how_many_wait(tmp_path: Any) -> None:
    patient = {"queue.buffering.max.messages": 1, "delivery.timeout.ms": 60_000}
    with Penstock(tmp_path) as own:
        stream = penstock.connect(f"kafka://{own.bootstrap}", librdkafka=patient, delivery_timeout_s=1)
        stream.send("orders", "before").result(TIMEOUT_S)
        own.kill()
        stream.send("orders", "first")
        with pytest.raises(penstock.DeliveryError, match="1 records wait for an acknowledgement"):
            stream.send("orders", "second")
    with pytest.raises(penstock.DeliveryError, match="the connection was closed before it was"):
        stream.close()


def test_a_closed_connection_refuses_to_send_and_to_read(server: Penstock) -> None:
    stream = penstock.connect(f"kafka://{server.bootstrap}")
    stream.close()
    stream.close()
    assert "(closed)" in repr(stream)
    for use in (lambda: stream.send("orders", "v"), lambda: stream.read("orders"), stream.topics, stream.flush):
        with pytest.raises(ConnectionClosedError, match="connect again"):
            use()


def test_a_forked_process_is_told_to_connect_itself(server: Penstock) -> None:
    with penstock.connect(f"kafka://{server.bootstrap}") as stream:
        stream.send(fresh(), "v").result(TIMEOUT_S)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process that has threads
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                stream.send("orders", "v")
            except ConnectionClosedError:
                stream.close()
                code = 42
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42


def test_a_connection_that_is_forgotten_still_delivers_and_says_so(server: Penstock) -> None:
    topic = fresh()

    def forget() -> None:
        stream = penstock.connect(f"kafka://{server.bootstrap}", linger_ms=1_000)
        stream.send(topic, "v")

    with pytest.warns(ResourceWarning, match="was not closed"):
        forget()
    with penstock.connect(f"kafka://{server.bootstrap}") as stream:
        assert [record.value for record in stream.read(topic)] == [b"v"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"acks": 2}, 'must be "all", 1 or 0'),
        ({"acks": True}, 'must be "all", 1 or 0'),
        ({"compression": "rar"}, "must be one of none, gzip, snappy, lz4, zstd"),
        ({"linger_ms": -1}, "linger_ms=-1 must be >= 0"),
        ({"delivery_timeout_s": 0}, "no record would ever be sent"),
        ({"exit_when_idle_s": 5}, "exit_when_idle_s is for log: URLs"),
        ({"librdkafka": {"bootstrap.servers": "b"}}, "comes from the URL"),
    ],
)
def test_an_option_that_is_not_allowed_is_refused_by_name(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(penstock.ConfigError, match=complaint):
        penstock.connect("kafka://127.0.0.1:1", **options)


def test_a_setting_that_librdkafka_does_not_know_is_refused(server: Penstock) -> None:
    with pytest.raises(penstock.ConfigError, match=r"no\.such\.setting"):
        penstock.connect(f"kafka://{server.bootstrap}", librdkafka={"no.such.setting": 1})


def test_what_librdkafka_says_goes_to_the_log_and_not_to_the_terminal(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG, "penstock.streams.kafka.librdkafka")
    with Penstock(tmp_path) as own, penstock.connect(f"kafka://{own.bootstrap}", delivery_timeout_s=5) as stream:
        stream.send("orders", "v").result(TIMEOUT_S)
        own.kill()
        with pytest.raises(penstock.DeliveryError, match="no acknowledgement came in time"):
            stream.send("orders", "v").result(TIMEOUT_S)
    assert "Connection refused" in caplog.text
    assert "rdkafka" not in capfd.readouterr().err
