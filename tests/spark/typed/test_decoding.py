"""Records to typed columns: what the library accepts and refuses is what comes out and what goes to dead letters."""

from __future__ import annotations

import copy
import datetime
import pickle
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import DeadLetter, DeadLetterFilter, open_dead_letters
from penstock.dead_letters import REDRIVE_GROUP_HEADER, REDRIVE_ID_HEADER
from penstock.errors import ConfigError, RegistryUnavailableError, SerdeError, StoreUnavailableError
from penstock.model.letter import letter_id
from penstock.serde import AvroSerde, Topic
from penstock.spark.values.columns import arrow_type_of
from penstock.spark.values.decoding import Decoder
from tests.seeds import seed_of
from tests.spark.typed.records import AT, KEY, fields_of, record_rows
from tests.spark.typed.values import ORDERS, Order

ORDERS_TOPIC = Topic("orders", Order)
URL = "kafka://127.0.0.1:1"
GOOD = b'{"id":1,"customer":"ada","amount":1.5,"at":"2026-11-15T08:00:00Z","lines":[{"item":"tea","cups":2}]}'

ODD = [
    GOOD,
    b" " + GOOD + b"\n",
    GOOD + b"x",
    GOOD + GOOD,
    GOOD[:-1],
    GOOD.replace(b"1.5", b"1"),
    GOOD.replace(b"1.5", b'"1.5"'),
    GOOD.replace(b"1.5", b"NaN"),
    GOOD.replace(b"1.5", b"1e400"),
    GOOD.replace(b"1.5", b"-0.0"),
    GOOD.replace(b'"id":1', b'"id":1.0'),
    GOOD.replace(b'"id":1', b'"id":1.5'),
    GOOD.replace(b'"id":1', b'"id":"1"'),
    GOOD.replace(b'"id":1', b'"id":true'),
    GOOD.replace(b'"id":1', b'"id":null'),
    GOOD.replace(b'"id":1', b'"id":9223372036854775807'),
    GOOD.replace(b'"id":1', b'"id":1,"id":2'),
    GOOD.replace(b'"id":1,', b""),
    GOOD.replace(b'"id":1', b'"id":1,"unknown":[{}]'),
    GOOD.replace(b"ada", b"\\ud83d\\ude00"),
    GOOD.replace(b"ada", b"\\ud83d"),
    GOOD.replace(b"ada", b"\xff"),
    GOOD.replace(b"ada", b"a\nb"),
    GOOD.replace(b"ada", "Žofie ☃".encode()),
    GOOD.replace(b"08:00:00Z", b"08:00:00+02:00"),
    GOOD.replace(b"08:00:00Z", b"08:00:00.123456789Z"),
    GOOD.replace(b"08:00:00Z", b"25:00:00Z"),
    GOOD.replace(b"2026-11-15T08:00:00Z", b"yesterday"),
    GOOD.replace(b'"2026-11-15T08:00:00Z"', b"1763193600"),
    GOOD.replace(b'"lines"', b'"size":"large","lines"'),
    GOOD.replace(b'"lines"', b'"size":"huge","lines"'),
    GOOD.replace(b'"lines"', b'"note":null,"best":null,"lines"'),
    GOOD.replace(b'"lines"', b'"paid":null,"lines"'),
    GOOD.replace(b'"lines"', b'"tags":{"a":1,"b":2},"lines"'),
    GOOD.replace(b'"lines"', b'"tags":{"a":"1"},"lines"'),
    GOOD.replace(b'"lines"', b'"best":{"item":"x"},"lines"'),
    GOOD.replace(b'{"item":"tea","cups":2}', b"null"),
    GOOD.replace(b'[{"item":"tea","cups":2}]', b"[]"),
    GOOD.replace(b'[{"item":"tea","cups":2}]', b"{}"),
    b"",
    b"null",
    b"[]",
    b"{}",
    b"\xef\xbb\xbf" + GOOD,
]


def expected_fields(order: Order | None) -> dict[str, Any]:
    """What the row of an order has to say, worked out from the order alone."""
    if order is None:
        return dict.fromkeys(Order.__dataclass_fields__)
    expected = asdict(order)
    expected["size"] = str(order.size)
    expected["tags"] = list(order.tags.items())
    expected["at"] = order.at.astimezone(datetime.UTC)
    return expected


def compare(values: Sequence[bytes | None], decoder: Decoder, folder: Path) -> None:
    """Row by row, with what the topic makes of the same bytes."""
    good, bad = {}, set()
    for pointer, data in enumerate(values):
        try:
            good[pointer] = expected_fields(ORDERS_TOPIC.decode(data))
        except SerdeError:
            bad.add(pointer)
    rows = decoder.decode(record_rows(values)).to_pylist()
    assert {row["pointer"]: fields_of(row) for row in rows} == good
    assert [row["pointer"] for row in rows] == sorted(good)
    assert {letter.record.offset for letter in letters_in(folder)} == bad


def letters_in(folder: Path) -> list[DeadLetter]:
    letters = open_dead_letters(f"sqlite:{folder / 'letters.db'}")
    try:
        return list(letters.browse(DeadLetterFilter(), limit=1000))
    finally:
        letters.close()


def decoder_for(folder: Path, topic: Topic[Any] = ORDERS_TOPIC) -> Decoder:
    return Decoder(topic, url=URL, dead_letters=f"sqlite:{folder / 'letters.db'}", group="usage", version="7")


def test_every_oddity_of_json_is_decided_as_the_library_decides(tmp_path: Path) -> None:
    compare([*ODD, None], decoder_for(tmp_path), tmp_path)


def test_bytes_broken_at_random_are_decided_as_the_library_decides(tmp_path: Path) -> None:
    chance = random.Random(seed_of())
    values: list[bytes] = []
    for _ in range(400):
        data = bytearray(chance.choice(ODD))
        for _ in range(chance.randrange(3)):
            if data:
                data[chance.randrange(len(data))] = chance.choice(b'0123456789"{}[],:.eE\\ \n\xff')
        if chance.random() < 0.2:
            data = data[: chance.randrange(len(data) + 1)]
        values.append(bytes(data))
    compare([data for data in values if not _has_no_place(data)], decoder_for(tmp_path), tmp_path)


def _has_no_place(data: bytes) -> bool:
    """Whether the library reads it, but a column cannot hold it: that is another test."""
    try:
        order = ORDERS_TOPIC.decode(data)
    except SerdeError:
        return False
    if order is None:
        return False
    numbers = [order.id, *(line.cups for line in order.lines), *order.tags.values()]
    return any(not -(2**63) <= number < 2**63 for number in numbers) or order.at.tzinfo is None


@settings(max_examples=60, deadline=None)
@given(orders=st.lists(ORDERS | st.none(), max_size=8))
def test_every_order_that_can_be_sent_is_a_row(orders: list[Order | None], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("letters")
    values = [None if order is None else ORDERS_TOPIC.new_record(order).value for order in orders]
    rows = decoder_for(folder).decode(record_rows(values)).to_pylist()
    assert [fields_of(row) for row in rows] == [expected_fields(order) for order in orders]


def test_a_row_says_where_its_record_came_from(tmp_path: Path) -> None:
    (row,) = decoder_for(tmp_path).decode(record_rows([GOOD], headers=[(("h", b"1"), ("h", None))])).to_pylist()
    assert (row["topic"], row["partition"], row["pointer"], row["key"]) == ("orders", 3, 0, KEY)
    assert (row["timestamp"], row["timestamp_type"]) == (AT, "create")
    assert row["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]


def test_a_field_called_like_a_column_of_records_keeps_its_name(tmp_path: Path) -> None:
    class Entry(msgspec.Struct):
        key: str
        pointer: int

    decoder = decoder_for(tmp_path, Topic("entries", Entry))
    assert decoder.schema.names[:4] == ["key", "pointer", "record_key", "headers"]
    (row,) = decoder.decode(record_rows([b'{"key":"a","pointer":9}'])).to_pylist()
    assert (row["key"], row["record_key"], row["pointer"], row["record_pointer"]) == ("a", KEY, 9, 0)


@pytest.mark.parametrize(
    "data",
    [
        GOOD.replace(b'"id":1', b'"id":9223372036854775808'),
        GOOD.replace(b"08:00:00Z", b"08:00:00"),
        GOOD.replace(b'"cups":2', b'"cups":-9223372036854775809'),
    ],
    ids=["id", "time without a zone", "nested"],
)
def test_a_value_that_no_column_can_hold_goes_to_the_dead_letters(data: bytes, tmp_path: Path) -> None:
    assert ORDERS_TOPIC.decode(data) is not None
    rows = decoder_for(tmp_path).decode(record_rows([GOOD, data, None, GOOD])).to_pylist()
    assert [row["pointer"] for row in rows] == [0, 2, 3]
    (letter,) = letters_in(tmp_path)
    assert letter.record.value == data
    assert "does not fit its columns" in letter.error


def test_a_letter_has_the_record_as_it_was_and_why_it_was_given_up(tmp_path: Path) -> None:
    decoder_for(tmp_path).decode(record_rows([GOOD, b"junk"], headers=[(), (("h", b"1"),)]))
    (letter,) = letters_in(tmp_path)
    record = letter.record
    assert (record.topic, record.partition, record.offset, record.key, record.value) == ("orders", 3, 1, KEY, b"junk")
    assert (record.headers, record.timestamp) == ((("h", b"1"),), AT)
    assert letter.id == letter_id("usage", "orders", 3, 1)
    assert (letter.group, letter.handler_version, letter.error_kind) == ("usage", "7", "SerdeError")
    assert "4 bytes are not Order in JSON" in letter.error


def test_a_task_that_is_tried_again_leaves_one_letter(tmp_path: Path) -> None:
    for _ in range(3):
        assert decoder_for(tmp_path).decode(record_rows([b"junk"])).num_rows == 0
    assert len(letters_in(tmp_path)) == 1


def test_dead_letters_that_cannot_be_reached_fail_the_task(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    decoder = Decoder(ORDERS_TOPIC, url=URL, dead_letters=f"sqlite:{tmp_path / 'a file' / 'letters.db'}", group="usage")
    assert decoder.decode(record_rows([GOOD])).num_rows == 1
    with pytest.raises((StoreUnavailableError, ConfigError, OSError)):
        decoder.decode(record_rows([GOOD, b"junk"]))


@pytest.mark.parametrize("none", [None, False])
def test_without_dead_letters_a_bad_record_fails_the_task(none: bool | None) -> None:
    decoder = Decoder(ORDERS_TOPIC, url=URL, dead_letters=none, group="usage")
    with pytest.raises(SerdeError, match=r"orders-3 at offset 1 cannot be decoded, and there are no dead letters"):
        decoder.decode(record_rows([GOOD, b"junk"]))


def test_dead_letters_are_on_unless_they_are_refused() -> None:
    assert Decoder(ORDERS_TOPIC, url=URL, group="usage").dead_letters == "orders.dlq"
    with pytest.raises(ConfigError, match="read again for ever"):
        Decoder(ORDERS_TOPIC, url=URL, dead_letters="orders", group="usage")
    with pytest.raises(ConfigError, match="exists only in this process"):
        Decoder(ORDERS_TOPIC, url="memory:x", group="usage")


def test_a_record_redriven_for_another_group_is_left_out(tmp_path: Path) -> None:
    def redriven(group: bytes) -> tuple[tuple[str, bytes], ...]:
        return ((REDRIVE_ID_HEADER, b"letter.1"), (REDRIVE_GROUP_HEADER, group))

    rows = record_rows([GOOD] * 3, headers=[redriven(b"billing"), redriven(b"usage"), ()])
    assert [row["pointer"] for row in decoder_for(tmp_path).decode(rows).to_pylist()] == [1, 2]
    assert letters_in(tmp_path) == []


class Asking:
    """A serde whose registry cannot be reached."""

    def encode(self, value: object, topic: str) -> bytes | None:
        raise NotImplementedError

    def decode(self, data: bytes | None, topic: str) -> Any:
        raise RegistryUnavailableError("nobody answers")


def test_bytes_that_may_be_good_are_no_dead_letters(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnavailableError):
        decoder_for(tmp_path, Topic("orders", Order, serde=Asking())).decode(record_rows([GOOD]))


def test_all_rows_may_be_bad_or_none_may_be_there(tmp_path: Path) -> None:
    decoder = decoder_for(tmp_path)
    cases: list[list[bytes | None]] = [[], [b"", b"x"], [None, None]]
    for values in cases:
        decoded = decoder.decode(record_rows(values))
        assert decoded.num_rows == values.count(None)
        assert decoded.schema.names == decoder.schema.names


def test_arrow_types_are_exactly_those_that_spark_was_told(tmp_path: Path) -> None:
    decoder = decoder_for(tmp_path)
    views = record_rows([GOOD, None])
    index = views.schema.get_field_index("value")
    views = views.set_column(index, "value", views.column("value").cast(pa.binary_view()))
    views = views.set_column(0, "key", views.column("key").cast(pa.large_binary()))
    for rows in (record_rows([GOOD, b"junk"]), views):
        decoded = decoder.decode(rows)
        assert [field.type for field in decoded.schema] == [arrow_type_of(field.dataType) for field in decoder.schema]


def test_untyped_json_is_its_text_and_still_checked(tmp_path: Path) -> None:
    rows = decoder_for(tmp_path, Topic("orders", None)).decode(record_rows([b'{"a": [1]}', b"{", None])).to_pylist()
    assert [row["value"] for row in rows] == ['{"a": [1]}', None]
    assert [letter.record.value for letter in letters_in(tmp_path)] == [b"{"]


def test_avro_by_its_schema_alone_has_columns(tmp_path: Path) -> None:
    fields = [{"name": "id", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": None}]
    topic: Topic[Any] = Topic("trades", serde=AvroSerde({"type": "record", "name": "Trade", "fields": fields}))
    values = [topic.new_record({"id": 1, "note": "x"}).value, topic.new_record({"id": 2}).value, b"\x00" * 99]
    rows = decoder_for(tmp_path, topic).decode(record_rows(values)).to_pylist()
    assert [fields_of(row) for row in rows] == [{"id": 1, "note": "x"}, {"id": 2, "note": None}]
    assert len(letters_in(tmp_path)) == 1


def test_a_decoder_can_be_sent_and_copied(tmp_path: Path) -> None:
    decoder = decoder_for(tmp_path)
    assert decoder.decode(record_rows([GOOD])).num_rows == 1
    for other in (pickle.loads(pickle.dumps(decoder)), copy.copy(decoder)):
        assert other.schema == decoder.schema
        assert other.decode(record_rows([GOOD])).num_rows == 1
