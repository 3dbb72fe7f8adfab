"""Names of headers that are no UTF-8: the record comes, with every header, and so do those behind it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import ConfigError, DeliveryError
from penstock.model import UNKNOWN_HEADER, NewRecord, Record, header_name
from tests.clients.names import fresh
from tests.clients.raw_headers import LATIN, RawHeaders, send_raw

MANY = 300
"""So many that the interpreter has sped the code up, and finds the client's mistake later than it was made."""
VISIBLE = r"gr\xf6\xdfe"


def odd(number: int) -> tuple[bytes, RawHeaders]:
    return b"%d" % number, [(b"id", b"%d" % number), (LATIN, b"x"), (b"none", None), ("größe".encode(), b"")]


def expected(number: int) -> tuple[bytes, tuple[tuple[str, bytes | None], ...]]:
    return b"%d" % number, (("id", b"%d" % number), (VISIBLE, b"x"), ("none", None), ("größe", b""))


def seen(record: Record) -> tuple[bytes | None, tuple[tuple[str, bytes | None], ...]]:
    return record.value, record.headers


@pytest.fixture
def odd_topic(stream: penstock.Connection, topic: str) -> str:
    """A topic of records with such a name each, and one without at its end."""
    send_raw(stream.bootstrap, topic, [odd(number) for number in range(MANY)])
    stream.send(topic, "plain", headers={"a": "b"}).result(20)
    return topic


ALL = [*map(expected, range(MANY)), (b"plain", (("a", b"b"),))]


def test_a_reader_gives_every_record_with_all_its_headers(stream: penstock.Connection, odd_topic: str) -> None:
    assert [seen(record) for record in stream.read(odd_topic)] == ALL


def test_a_group_gives_every_record(stream: penstock.Connection, odd_topic: str) -> None:
    with stream.read_as_member(fresh("group"), odd_topic, timeout_s=30) as reader:
        assert [seen(record) for record in reader] == ALL


@pytest.mark.parametrize("first_asked", ["which have headers", "records"])
def test_a_batch_gives_every_record(stream: penstock.Connection, odd_topic: str, first_asked: str) -> None:
    source = stream.open_topic(odd_topic)
    at, found = 0, []
    while at <= MANY:
        batch = source.read(0, at, 1_000, 20)
        if first_asked == "which have headers":
            assert list(batch.with_headers()) == list(range(len(batch)))
        found += [seen(batch[index]) for index in range(len(batch))]
        assert list(batch.with_headers()) == list(range(len(batch)))
        assert [seen(record) for record in batch] == found[-len(batch) :]
        at = batch.next
    source.close()
    assert found == ALL


def test_an_app_handles_every_record(stream: penstock.Connection, odd_topic: str) -> None:
    app = penstock.App(stream, group=fresh("group"), checkpoints="memory:")
    found = []

    @app.handle(odd_topic, end="latest", order="partition")
    def handle(value: bytes, context: penstock.Context) -> None:
        found.append(seen(context.record))

    app.run()
    assert found == ALL


def test_a_second_such_name_in_a_record_is_not_known_but_its_value_is(stream: penstock.Connection, topic: str) -> None:
    raw: RawHeaders = [(b"\xff", b"1"), (b"a", b"2"), (b"\xfe", b"3"), (b"\xfd", None)]
    send_raw(stream.bootstrap, topic, [(b"v", raw)] * 20)
    for record in stream.read(topic):
        assert record.headers == ((r"\xff", b"1"), ("a", b"2"), (UNKNOWN_HEADER, b"3"), (UNKNOWN_HEADER, None))


def test_what_was_read_can_be_sent(stream: penstock.Connection, odd_topic: str) -> None:
    copy = fresh()
    stream.create_topic(copy)
    (record,) = stream.read(odd_topic, limit=1)
    stream.send(copy, record.value, headers=record.headers).result(20)
    (copied,) = stream.read(copy)
    assert seen(copied) == seen(record) == expected(0)


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_names_that_are_no_utf8_differ_as_text_as_well(one: bytes, other: bytes) -> None:
    for raw in (one, other):
        try:
            assert header_name(raw) == raw.decode()
        except UnicodeDecodeError:
            assert header_name(raw).isprintable() or header_name(raw).encode() != raw
            continue
        return
    assert (header_name(one) == header_name(other)) == (one == other)


def test_a_name_that_cannot_be_encoded_is_refused(stream: penstock.Connection, topic: str) -> None:
    with pytest.raises(ConfigError, match="udcff"):
        stream.send(topic, "v", headers={"\udcff": "x"})
    with pytest.raises(ConfigError, match="'a' cannot be sent"):
        stream.send(topic, "v", headers={"a": "\udcff"})
    (receipt,) = stream.open_topic(topic).append([NewRecord(topic, b"v", headers=(("\udcff", b"x"),))])
    with pytest.raises(DeliveryError, match="udcff"):
        receipt.result(20)


def test_the_client_does_what_all_this_is_about(stream: penstock.Connection, odd_topic: str) -> None:
    """Should it ever be mended there, this tells us."""
    program = (
        "import sys, confluent_kafka as ck\n"
        "client = ck.Consumer({'bootstrap.servers': sys.argv[1], 'group.id': 'g'})\n"
        "client.assign([ck.TopicPartition(sys.argv[2], 0, 0)])\n"
        "message = client.poll(20)\n"
        "try:\n    print(message.headers())\nexcept SystemError:\n    print('raised')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, stream.bootstrap, odd_topic], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "raised"
