"""Topics as tables: what they have, what a query reads, and what it must not see."""

from __future__ import annotations

import io
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest

import penstock
from penstock.abc import Transactional
from penstock.errors import ConfigError, QueryError, QueryStoppedError, RegistryError, SerdeError, UnknownTopicError
from penstock.model import NewRecord
from penstock.querying.database import TopicDatabase
from penstock.querying.topic_table import TopicSource
from penstock.serde import AvroSerde
from penstock.serde.registry.client import SchemaRegistry
from penstock.serde.registry.schema import Reference, Schema, SchemaKind
from penstock.streams.capability import capability
from penstock.tables.changes import TRUNCATE_KEY
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.querying.orders import ORDERS, Order
from tests.serde.registry_server import registry_server


def rows(database: TopicDatabase, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in database.query(query).to_pylist()]


def test_a_topic_has_the_columns_of_its_records(database: TopicDatabase) -> None:
    found = database.query('from orders where "offset" = 1 and partition = 0').to_pylist()[0]
    assert list(found) == ["partition", "offset", "timestamp", "key", "value", "headers", "customer", "cents"]
    assert found["key"].startswith("k")
    assert found["value"].startswith('{"customer"')


def test_headers_are_a_list_of_keys_and_values(database: TopicDatabase) -> None:
    assert rows(database, "select distinct headers[1].key, headers[1].value from orders where headers is not null") == [
        ("source", b"web")
    ]


def test_fields_of_json_values_are_read_by_name(database: TopicDatabase) -> None:
    query = "select value->>'customer', sum((value->>'cents')::bigint)::bigint from orders group by 1 order by 1"
    assert rows(database, query) == [("c0", 14_850), ("c1", 14_950), ("c2", 15_050)]


def test_fields_of_json_values_are_columns_of_the_type_that_most_of_them_have(
    stream: penstock.Connection, url: str
) -> None:
    topic = fresh()
    for number in range(8):
        fields = {
            "n": number - 4,
            "price": number if number % 2 else number + 0.5,
            "ok": number > 3,
            'it\'s "odd"': "x",
        }
        more = {"tags": [number], "big": 1 << 63, "nothing": None, "value": "hidden", "N": "another case"}
        stream.send(topic, fields | more, key=f"k{number % 2}")
    stream.send(topic, {"n": None}).result(30)
    with TopicDatabase(stream, url) as database:
        described = rows(database, f'describe "{topic}"')[6:]
        assert [tuple(column[:2]) for column in described] == [
            ("n", "BIGINT"),
            ("price", "DOUBLE"),
            ("ok", "BOOLEAN"),
            ('it\'s "odd"', "VARCHAR"),
            ("tags", "JSON"),
            ("big", "DOUBLE"),
            ("nothing", "JSON"),
        ]
        sums = f'select sum(n)::int, sum(price), count(*) filter (ok), max("it\'s ""odd""") from "{topic}"'
        assert rows(database, sums) == [(-4, 30.0, 4, "x")]
        assert rows(database, f"select key, n from latest('{topic}') where n is not null order by key") == [
            ("k0", 2),
            ("k1", 3),
        ]
        assert rows(database, f"select value->>'value' from \"{topic}\" where n = 1") == [("hidden",)]
        assert rows(database, f'select t from "{topic}" t where n = 1')[0][0]["tags"] == "[5]"
        assert rows(database, f'select sum(n)::int from "{topic}" where "offset" between 1 and 2') == [(-5,)]


@pytest.mark.parametrize(
    "odd", [{"n": 1.5}, {"n": "1"}, {"n": True}, {"n": [1]}, {"n": 1 << 63}, {"ok": 1}, {"ok": "true"}], ids=str
)
def test_a_field_of_another_type_is_null_and_counted_and_nothing_else(
    stream: penstock.Connection, url: str, odd: dict[str, Any]
) -> None:
    topic = fresh()
    usual = [{"n": 2, "ok": True}] * 60  # the sample is taken at both ends
    for value in (*usual, {"n": 5, "ok": False} | odd, [1], *usual):
        stream.send(topic, value)
    stream.flush(30)
    (name,) = odd
    with TopicDatabase(stream, url) as database, TopicDatabase(stream, url, undecodable="error") as strict:
        result = database.run(f'select n, ok from "{topic}" order by "offset"')
        expected = {"n": 5, "ok": False, name: None}
        assert result.table.to_pylist()[60:62] == [expected, {"n": None, "ok": None}]
        assert result.undecodable == {topic: 1}
        with pytest.raises(SerdeError, match=rf"partition 0, offset 60: its field '{name}' is not"):
            strict.query(f'select {name} from "{topic}"')
        assert database.run(f'select count(*) from "{topic}"').undecodable == {}


@pytest.mark.parametrize(
    "values",
    [["text", "more"], [b"\xff"], [[1], [2]], [{}], [{f"id-{number}": 1 for number in range(101)}]],
    ids=["text", "bytes", "arrays", "no fields", "a map"],
)
def test_values_that_are_not_objects_with_fields_have_no_more_columns(
    stream: penstock.Connection, url: str, values: list[Any]
) -> None:
    topic = fresh()
    for value in values:
        stream.send(topic, value)
    stream.flush(30)
    with TopicDatabase(stream, url) as database:
        assert database.query(f'from "{topic}"').column_names[-1] == "headers"


def test_a_registry_has_the_types_of_topics(stream: penstock.Connection, url: str) -> None:
    with registry_server() as server:
        address = server.url
        registry = SchemaRegistry(address)
        typed, untyped = fresh(), fresh()
        stream.send(penstock.Topic(typed, Order, serde=AvroSerde(Order, registry=registry)), Order("ann", 7)).result(30)
        stream.send(untyped, {"customer": "bob"}).result(30)
        with TopicDatabase(stream, url, registry=address) as database:
            assert rows(database, f'select customer, cents from "{typed}"') == [("ann", 7)]
            assert rows(database, f'select customer from "{untyped}"') == [("bob",)]
    with TopicDatabase(stream, url, registry=address) as database, pytest.raises(RegistryError):
        database.query(f'from "{typed}"')


JSON_SCHEMA = {
    "title": "Sale",
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "cents": {"type": ["integer", "null"]},
        "ratio": {"anyOf": [{"type": "null"}, {"type": "number"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {"$ref": "#/$defs/Address"},
        "anything": {},
        "file name": {"type": "boolean"},
    },
    "$defs": {"Address": {"type": "object", "properties": {"city": {"type": "string"}, "next": {"$ref": "#"}}}},
}


def framed(id: int, value: object) -> bytes:
    """A value as serialisers with a registry write it."""
    return b"\0" + id.to_bytes(4, "big") + msgspec.json.encode(value)


def test_a_json_schema_in_the_registry_has_columns(stream: penstock.Connection, url: str) -> None:
    topic = fresh()
    with registry_server() as server:
        id = SchemaRegistry(server.url).register(f"{topic}-value", Schema(json.dumps(JSON_SCHEMA), SchemaKind.JSON))
        whole = {
            "customer": "ann", "cents": 7, "ratio": 0.5, "tags": ["a", "b"], "address": {"city": "Oslo", "zip": 1},
            "anything": [1], "file name": True, "unknown": 1,
        }  # fmt: skip
        for value in (whole, {"customer": "bob", "cents": None}, {"customer": 5}):
            stream.send(topic, framed(id, value), partition=0)
        stream.flush(30)
        with TopicDatabase(stream, url, registry=server.url) as database:
            result = database.run(f'select customer, cents, ratio, tags, address.city from "{topic}" order by "offset"')
    assert [tuple(row.values()) for row in result.table.to_pylist()] == [
        ("ann", 7, 0.5, ["a", "b"], "Oslo"),
        ("bob", None, None, None, None),
        (None, None, None, None, None),
    ]
    undecodable, left_out = sorted(result.warnings, key=lambda text: "no columns" in text)
    assert "1 cell could not be decoded" in undecodable
    assert "no columns for address.next, anything, file name, whose" in left_out


def test_an_avro_schema_that_refers_to_others_has_columns(stream: penstock.Connection, url: str) -> None:
    topic = fresh()
    street = {"type": "record", "name": "Street", "namespace": "roads", "fields": [{"name": "name", "type": "string"}]}
    city = {
        "type": "record", "name": "City", "namespace": "geo",
        "fields": [{"name": "name", "type": "string"}, {"name": "street", "type": ["null", "roads.Street"]}],
    }  # fmt: skip
    order = {
        "type": "record", "name": "Order", "namespace": "shop",
        "fields": [
            {"name": "cents", "type": "long"},
            {"name": "home", "type": "geo.City"},
            {"name": "other", "type": {"type": "array", "items": "geo.City"}},
        ],
    }  # fmt: skip
    home = {"name": "Oslo", "street": {"name": "Karl Johans gate"}}
    with registry_server() as server:
        registry = SchemaRegistry(server.url)
        registry.register("streets", Schema(json.dumps(street), SchemaKind.AVRO))
        to_street = (Reference("roads.Street", "streets", 1),)
        registry.register("cities", Schema(json.dumps(city), SchemaKind.AVRO, to_street))
        to_city = (Reference("geo.City", "cities", 1),)
        id = registry.register(f"{topic}-value", Schema(json.dumps(order), SchemaKind.AVRO, to_city))
        named: dict[str, Any] = {}
        for each in (street, city):
            fastavro.parse_schema(each, named_schemas=named)
        parsed, encoded = fastavro.parse_schema(order, named_schemas=named), io.BytesIO()
        fastavro.schemaless_writer(encoded, parsed, {"cents": 7, "home": home, "other": [home]})
        stream.send(topic, b"\0" + id.to_bytes(4, "big") + encoded.getvalue()).result(30)
        with TopicDatabase(stream, url, registry=server.url) as database:
            result = database.run(f'select cents, home.name, home.street.name as s, other[1].name as o from "{topic}"')
    assert [tuple(row.values()) for row in result.table.to_pylist()] == [(7, "Oslo", "Karl Johans gate", "Oslo")]
    assert result.warnings == []


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [
        (SchemaKind.PROTOBUF, 'syntax = "proto3"; message M { int32 a = 1; }', "pass types="),
        (SchemaKind.JSON, '{"type": "array"}', "not objects with properties"),
        (SchemaKind.AVRO, '["int", "string"]', "several types"),
    ],
)
def test_a_registered_type_without_columns_is_said_to_have_none(
    stream: penstock.Connection, url: str, kind: SchemaKind, text: str, why: str
) -> None:
    topic = fresh()
    stream.send(topic, "plain").result(30)
    with registry_server() as server:
        SchemaRegistry(server.url).register(f"{topic}-value", Schema(text, kind))
        with TopicDatabase(stream, url, registry=server.url) as database:
            result = database.run(f'select value from "{topic}"')
    assert result.table.to_pylist() == [{"value": "plain"}]
    [warning] = result.warnings
    assert warning.startswith(f"topic {topic!r}: ")
    assert why in warning


def test_queries_of_one_database_see_what_has_become_of_a_topic(stream: penstock.Connection, url: str) -> None:
    """Connections of DuckDB and readers of files are used again, and must know nothing from before."""
    topic, other = fresh(), fresh()
    for number in range(3):
        stream.send(topic, {"n": number}, "k", partition=0).result(30)
    stream.send(other, "other").result(30)
    with TopicDatabase(stream, url) as database:
        count, newest = f'select count(*) from "{topic}"', f"select value from latest('{topic}')"
        assert rows(database, count) == [(3,)]
        assert rows(database, newest) == [('{"n":2}',)]
        assert rows(database, f'from "{topic}" limit 1')[0][0] == 0
        assert rows(database, newest) == [('{"n":2}',)]
        assert database.run(f'from "{topic}"', limit=1).is_cut
        stream.send(topic, {"n": 7, "more": True}, "k", partition=0).result(30)
        assert rows(database, count) == [(4,)]
        stream.admin().delete_before(topic, {0: 2})
        assert rows(database, count) == [(2,)]
        with pytest.raises(QueryError):
            database.query(f"select value from latest('{other}') union all select nothing from \"{topic}\"")
        with pytest.raises(QueryError):
            database.query("select * from query_table('records of ' || 'nothing')")
        stream.delete_topic(topic)
        eventually("the topic is gone", lambda: topic not in stream.topics())
        with pytest.raises(UnknownTopicError):
            database.query(count)
        stream.create_topic(topic, 1)
        assert rows(database, count) == [(0,)]
        for _ in range(5):
            stream.send(topic, "again", partition=0).result(30)
        assert rows(database, count) == [(5,)]
        assert rows(database, f'select "offset", value from "{topic}" where "offset" = 4') == [(4, "again")]


def test_a_database_that_is_closed_has_no_open_files(stream: penstock.Connection, url: str) -> None:
    topic = fresh()
    for number in range(50):
        stream.send(topic, {"n": number}, partition=0)
    stream.flush(30)

    def opened() -> list[str]:
        links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return [target for link in links if os.path.lexists(link) and topic in (target := os.readlink(link))]

    database = TopicDatabase(stream, url)
    assert rows(database, f'select count(*) from "{topic}"') == [(50,)]
    assert database.run(f'from "{topic}"', limit=3).is_cut
    assert opened()
    database.close()
    assert opened() == []


def test_a_typed_topic_has_a_column_for_each_field(typed: TopicDatabase) -> None:
    query = "select customer, sum(cents)::bigint from orders group by 1 order by 1"
    assert rows(typed, query) == [("c0", 14_850), ("c1", 14_950), ("c2", 15_050)]
    assert typed.query("describe orders").column("column_name").to_pylist()[-2:] == ["customer", "cents"]


def test_a_field_with_the_name_of_a_column_keeps_it(stream: penstock.Connection, url: str) -> None:
    @dataclass
    class Reading:
        Value: int
        offset: str

    topic = penstock.Topic(fresh(), Reading)
    stream.send(topic, Reading(7, "a")).result(30)
    with TopicDatabase(stream, url, types=[topic]) as database:
        assert rows(database, f'select "Value", "offset", record_offset, record_value from "{topic.name}"') == [
            (7, "a", 0, '{"Value":7,"offset":"a"}')
        ]


@pytest.mark.parametrize(
    ("condition", "read"),
    [
        ("timestamp >= '2023-11-15 02:13:20'", 60),
        ("partition = 1", None),
        ('"offset" between 10 and 19', 20),
        ('partition = 0 and "offset" in (3, 5)', 3),
        ('"offset" < 0', 0),
        ("timestamp > now() - interval 1 hour", 0),
    ],
)
def test_a_filter_reads_only_what_it_needs(
    database: TopicDatabase, typed: TopicDatabase, condition: str, read: int | None
) -> None:
    for each in (database, typed):
        result = each.run(f"select count(*) from orders where {condition}")
        expected = result.table.to_pylist()[0]["count_star()"] if read is None else read
        assert result.records_read == expected < 300


def test_latest_has_the_newest_row_of_every_key_without_tombstones(
    stream: penstock.Connection, database: TopicDatabase
) -> None:
    users = penstock.Topic(fresh(), None, partitions=2)
    for key, value in (("a", 1), ("b", 2), ("c", 3), ("a", None), ("b", 4), ("c", None), ("c", 5)):
        stream.send(users, None if value is None else {"n": value}, key)
    stream.flush(30)
    query = f"select key, value->>'n' from latest('{users.name}') order by key"
    assert rows(database, query) == [("b", "4"), ("c", "5")]


@pytest.mark.parametrize("prefix", [b"text ", b"\xff"])
def test_latest_is_without_the_rows_that_a_truncate_removed_from_its_partition(
    stream: penstock.Connection, database: TopicDatabase, prefix: bytes
) -> None:
    topic = fresh()
    stream.create_topic(topic, 2)
    opened = stream.open_topic(topic)

    def write(*changes: tuple[bytes, bytes, int]) -> None:
        for receipt in opened.append([NewRecord(topic, value, key, partition=part) for key, value, part in changes]):
            receipt.result(30)

    a, b, c = (prefix + name for name in (b"a", b"b", b"c"))
    write((a, b"1", 0), (b, b"1", 1), (c, b"1", 0), (c, b"2", 0))
    write((TRUNCATE_KEY, b'{"__op":"t"}', 0), (c, b"3", 0))
    opened.close()
    assert rows(database, f"select key::blob, value from latest('{topic}') order by partition") == [(c, "3"), (b, "1")]
    assert rows(database, f'select count(*) from "{topic}"') == [(6,)]


def test_records_of_open_and_aborted_transactions_are_not_seen(
    stream: penstock.Connection, database: TopicDatabase
) -> None:
    topic = fresh()
    stream.create_topic(topic)
    transactional = capability(stream, Transactional)
    assert transactional is not None
    producer = transactional.transactional(topic, timeout_s=30, transaction_timeout_s=60)
    producer.begin()
    producer.produce(topic, b"committed")
    producer.commit()
    with producer_of_an_aborted_record(transactional, topic):
        assert rows(database, f'select value from "{topic}"') == [("committed",)]
    producer.close()


class producer_of_an_aborted_record:  # used as a block
    """Leaves a record in an open transaction, which the next producer with the same id aborts."""

    def __init__(self, transactional: Transactional, topic: str) -> None:
        self.transactional, self.topic = transactional, topic

    def __enter__(self) -> None:
        self.producer = self.transactional.transactional(f"{self.topic}-2", timeout_s=30, transaction_timeout_s=60)
        self.producer.begin()
        self.producer.produce(self.topic, b"open")

    def __exit__(self, *_: object) -> None:
        self.producer.close()


def test_the_client_reads_the_same_as_the_files(stream: penstock.Connection, typed: TopicDatabase) -> None:
    query = 'from orders where "offset" > 20 order by partition, "offset"'
    with penstock.sql(f"kafka://{stream.bootstrap}", types=[ORDERS]) as through_client:
        assert through_client.query(query).equals(typed.query(query))


def test_a_topic_without_records_has_no_rows(stream: penstock.Connection, database: TopicDatabase) -> None:
    topic = f"{fresh()}.empty-one"
    stream.create_topic(topic)
    assert rows(database, f'from "{topic}"') == []
    assert rows(database, f"from latest('{topic}')") == []


def test_what_cannot_be_decoded_is_null_and_counted(stream: penstock.Connection, url: str) -> None:
    topic = penstock.Topic(fresh(), Order)
    good = [b'{"customer":"a","cents":1}', b'{"customer":"b","cents":2}']
    for data in (*good, b'{"customer":3}', b"no json", b'{"customer":"c","cents":99999999999999999999}'):
        stream.send(topic.name, data)
    stream.flush(30)
    query = f'select customer, cents from "{topic.name}"'
    with TopicDatabase(stream, url, types=[topic]) as database:
        result = database.run(query)
        assert result.table.num_rows == 5
        assert result.table.column("cents").drop_null().to_pylist() == [1, 2]
        assert result.warnings == [f"topic {topic.name!r}: 3 cells could not be decoded, and are null"]
    with (
        TopicDatabase(stream, url, types=[topic], undecodable="error") as strict,
        pytest.raises(SerdeError, match=topic.name),
    ):
        strict.query(query)


def test_text_that_is_not_json_does_not_stop_a_query_of_json(
    stream: penstock.Connection, database: TopicDatabase
) -> None:
    topic = fresh()
    for data in (b'{"n":1}', b"no json", b"\xff\xfe", b'{"n":2}', b'{"n":3}'):
        stream.send(topic, data)
    stream.flush(30)
    result = database.run(f"select value->>'n' as n from \"{topic}\"")
    assert result.table.column("n").drop_null().to_pylist() == ["1", "2", "3"]
    assert result.undecodable == {topic: 2}


def test_bytes_stay_bytes(stream: penstock.Connection, database: TopicDatabase) -> None:
    topic = fresh()
    stream.send(topic, b"\xff\x00", key=b"\xfe").result(30)
    assert rows(database, f'select key, value from "{topic}"') == [(b"\xfe", b"\xff\x00")]


def test_a_limit_cuts_and_says_so(database: TopicDatabase) -> None:
    result = database.run("from orders", limit=7)
    assert (result.table.num_rows, result.is_cut) == (7, True)
    assert not database.run("from orders", limit=300).is_cut


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("from oders", UnknownTopicError, "there is no topic 'oders'; did you mean orders"),
        ("select nope from orders", QueryError, '"nope" not found'),
        ("selec 1", QueryError, "syntax error"),
        ("select offset from orders", QueryError, 'write the column as "offset"'),
        ("from a.b-c", QueryError, "in double quotes"),
        ("", QueryError, "is empty"),
        ("select 1; select 2", QueryError, "one at a time"),
        ("from latest(orders)", QueryError, r"latest\('users'\)"),
        ("select error('broken')", QueryError, "broken"),
    ],
)
def test_a_mistake_is_explained(database: TopicDatabase, query: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        database.query(query)


@pytest.mark.parametrize(
    "query",
    [
        "insert into orders values (1)",
        "create table x as select 1",
        "drop view orders",
        "update orders set key = 1",
        "copy (select 1) to '{path}'",
        "attach '{path}' as other",
        "install httpfs",
        "load httpfs",
        "set memory_limit = '64GB'",
        "pragma enable_external_access",
        "call pragma_version()",
        "explain analyze create table x as select 1",
        "select * from read_text('{path}')",
        "from '{path}'",
        "select * from glob('{path}*')",
        "select * from read_csv('http://127.0.0.1:1/x.csv')",
        "select * from query_table('{path}')",
        "select getenv('HOME')",
    ],
)
def test_a_query_only_reads_topics(database: TopicDatabase, query: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with pytest.raises((QueryError, UnknownTopicError)):
        database.query(query.format(path=secret))
    assert [each.name for each in tmp_path.iterdir()] == ["secret.csv"]


def test_a_query_cannot_use_more_memory_than_its_limit(stream: penstock.Connection, url: str) -> None:
    with (
        TopicDatabase(stream, url, memory_limit="20MB") as small,
        pytest.raises(QueryError, match="more memory than 20MB"),
    ):
        small.query("select list(range) from range(100000000)")


ENDLESS = "select count(*) from range(100000000000) a, range(100000000) b where a.range + b.range < 0"


def test_a_query_ends_after_its_timeout(stream: penstock.Connection, url: str) -> None:
    with (
        TopicDatabase(stream, url, timeout_s=0.2) as impatient,
        pytest.raises(QueryStoppedError, match=r"longer than 0\.2 s"),
    ):
        impatient.query(ENDLESS)


def test_a_query_can_be_cancelled(stream: penstock.Connection, url: str) -> None:
    found: list[Exception] = []
    with TopicDatabase(stream, url) as database:

        def ask() -> None:
            try:
                database.query(ENDLESS)
            except QueryStoppedError as error:
                found.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        while asking.is_alive():
            database.cancel()
            asking.join(0.05)
    assert "cancelled" in str(found[0])


def test_an_interrupt_while_records_are_read_is_an_interrupt(
    database: TopicDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TopicSource, "ranges", interrupted)
    with pytest.raises(KeyboardInterrupt):
        database.query("from orders")


def test_topics_are_listed(database: TopicDatabase) -> None:
    assert ("orders",) in rows(database, "show tables")


def test_impossible_options_are_refused(stream: penstock.Connection, url: str) -> None:
    with pytest.raises(ConfigError, match="timeout_s"):
        TopicDatabase(stream, url, timeout_s=0)
    with pytest.raises(ConfigError, match="undecodable"):
        TopicDatabase(stream, url, undecodable="skip")  # type: ignore[arg-type]
    with (
        pytest.raises(ConfigError, match="Memory must have a number"),
        TopicDatabase(stream, url, memory_limit="much") as database,
    ):
        database.query("select 1")
