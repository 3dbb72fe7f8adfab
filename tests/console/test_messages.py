"""Browsing messages: from any position, in both directions, with filters, whatever stands in the topic."""

from __future__ import annotations

import datetime
import random

import msgspec
import pytest
from confluent_kafka import Producer

import penstock
from penstock.console.messages import browsing
from penstock.console.messages import pages as messages
from penstock.console.service import Service
from penstock.console.views import MessagePage, MessageQuery, MessageRow, Person
from penstock.errors import ConfigError, FilterError, OffsetOutOfRangeError, StreamError, UnknownTopicError
from tests.clients.names import fresh
from tests.clients.raw_headers import LATIN, send_raw
from tests.seeds import seed_of

BEGAN_MS = 1_700_000_000_000


def numbered(stream: penstock.Connection, topic: str, count: int, seed: int = 1) -> list[int]:
    """Send numbers with rising times, a second apart, to partitions at random. Gives the partition of each."""
    choose = random.Random(seed)
    places = [choose.choice((0, 0, 0, 0, 1, 2)) for _ in range(count)]
    for number, partition in enumerate(places):
        value = {"n": number, "name": f"customer {number % 7}"}
        time_ms = BEGAN_MS + 1000 * number
        stream.send(topic, value, key=f"k{number}", headers={"h": str(number)}, timestamp=time_ms, partition=partition)
    stream.flush(30)
    return places


def numbers(page: MessagePage | list[MessageRow]) -> list[int]:
    rows = page if isinstance(page, list) else page.rows
    return [msgspec.json.decode(row.value.text.encode())["n"] for row in rows]


def test_the_newest_of_all_partitions_come_in_the_order_of_time(
    service: Service, stream: penstock.Connection, topic: str
) -> None:
    numbered(stream, topic, 200)
    page = service.messages(MessageQuery(topic, "latest-50"))
    assert numbers(page) == list(range(150, 200))
    assert page.is_complete
    assert page.cursor is None
    assert numbers(service.messages(MessageQuery(topic, "latest", limit=7))) == list(range(193, 200))
    assert numbers(service.messages(MessageQuery(topic, "latest-999", limit=1000))) == list(range(200))


def test_pages_lead_back_and_forth_over_every_message_once(
    service: Service, stream: penstock.Connection, topic: str
) -> None:
    seed = seed_of()
    numbered(stream, topic, 300, seed)
    choose = random.Random(seed)
    page = service.messages(MessageQuery(topic, "latest-20", limit=20))
    back = numbers(page)
    while page.before is not None:
        page = service.messages(MessageQuery(topic, limit=choose.randint(1, 60), cursor=page.before))
        back = numbers(page) + back
    assert back == list(range(300))
    forth = numbers(page)
    while page.cursor is not None:
        page = service.messages(MessageQuery(topic, limit=choose.randint(1, 60), cursor=page.cursor))
        forth += numbers(page)
    assert forth == list(range(300))


def test_every_kind_of_position_begins_where_it_says(service: Service, stream: penstock.Connection, topic: str) -> None:
    places = numbered(stream, topic, 60)
    assert numbers(service.messages(MessageQuery(topic, "earliest", limit=5))) == [0, 1, 2, 3, 4]
    at = datetime.datetime.fromtimestamp(BEGAN_MS / 1000 + 40, datetime.UTC).isoformat()
    assert numbers(service.messages(MessageQuery(topic, at, limit=3))) == [40, 41, 42]
    assert numbers(service.messages(MessageQuery(topic, str(BEGAN_MS + 50_000), limit=2))) == [50, 51]
    assert numbers(service.messages(MessageQuery(topic, "-1h"))) == []
    third = [number for number, place in enumerate(places) if place == 0][3]
    assert numbers(service.messages(MessageQuery(topic, "3", partition=0, limit=1))) == [third]
    only = service.messages(MessageQuery(topic, "earliest", partition=1))
    assert {row.partition for row in only.rows} == {1}
    assert numbers(service.messages(MessageQuery(topic, "offset:999999"))) == []


def test_text_is_searched_in_keys_values_and_headers_in_any_case(
    service: Service, stream: penstock.Connection, topic: str
) -> None:
    numbered(stream, topic, 30)
    stream.send(topic, "GRÜSSE an alle", key="other", partition=0)
    stream.send(topic, b'{"x": "gr\\u00fc\\u00dfe"}', key="other", partition=0)
    stream.send(topic, "x", headers={"trace": "needle"}, partition=1)
    stream.flush(30)
    assert numbers(service.messages(MessageQuery(topic, "earliest", search="CUSTOMER 3"))) == [3, 10, 17, 24]
    assert [row.key.text for row in service.messages(MessageQuery(topic, search="k2", limit=3)).rows] == [
        "k27",
        "k28",
        "k29",
    ]
    assert len(service.messages(MessageQuery(topic, search="grüsse")).rows) == 2
    assert len(service.messages(MessageQuery(topic, search="NEEDLE")).rows) == 1


def test_a_filter_finds_the_newest_that_match_and_goes_on_from_there(
    service: Service, stream: penstock.Connection, topic: str
) -> None:
    numbered(stream, topic, 200)
    wanted = MessageQuery(topic, "latest-5", limit=5, expression='value.n < 100 and key contains "7"')
    page = service.messages(wanted)
    assert numbers(page) == [77, 78, 79, 87, 97]
    page = service.messages(MessageQuery(topic, limit=3, expression=wanted.expression, cursor=page.before))
    assert numbers(page) == [74, 75, 76]
    assert page.scanned > 0


def test_a_filter_that_cannot_be_understood_is_told_before_anything_is_read(service: Service, topic: str) -> None:
    with pytest.raises(FilterError, match="character 7"):
        service.messages(MessageQuery(topic, expression="key === 5"))
    with pytest.raises(FilterError):
        service.check_expression("key >")
    service.check_expression("")


def test_a_search_without_end_stops_at_its_bounds_and_can_go_on(
    service: Service, stream: penstock.Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(stream, topic, 300)
    monkeypatch.setattr(messages, "SCAN_RECORDS", 100)
    found: list[int] = []
    page = service.messages(MessageQuery(topic, "earliest", expression="value.n in [5, 250]"))
    pages = 1
    while page.cursor is not None:
        assert not page.is_complete
        assert page.note is not None
        assert "continue from here" in page.note
        assert page.scanned <= 100
        found += numbers(page)
        page = service.messages(MessageQuery(topic, expression="value.n in [5, 250]", cursor=page.cursor))
        pages += 1
    assert found + numbers(page) == [5, 250]
    assert pages >= 3
    back = service.messages(MessageQuery(topic, "latest-1", expression="value.n == 3"))
    for _ in range(20):
        if back.rows or back.before is None:
            break
        back = service.messages(MessageQuery(topic, expression="value.n == 3", cursor=back.before))
    assert numbers(back) == [3]


def test_large_records_come_a_few_at_a_time(
    service: Service, stream: penstock.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PAGE_BYTES", 4_000_000)
    monkeypatch.setattr(browsing, "_ROUND_BYTES", 2_000_000)
    topic = fresh()
    stream.create_topic(topic, 2, {"max.message.bytes": "20000000"})
    for number in range(12):
        stream.send(topic, bytes([65 + number]) * 1_000_000, timestamp=BEGAN_MS + number, partition=number % 2)
    stream.send(topic, b"{" + b"\xff" * 10_000_000, timestamp=BEGAN_MS + 12, partition=0)
    stream.flush(30)
    page = service.messages(MessageQuery(topic, "latest-100"))
    letters: list[str] = []
    sizes: list[int] = []
    for _ in range(20):
        assert 1 <= len(page.rows) <= 5
        assert all(len(row.value.text) <= 2048 and row.value.is_cut for row in page.rows)
        letters = [row.value.text[0] for row in page.rows] + letters
        sizes.append(sum(row.size_bytes for row in page.rows))
        if page.before is None:
            break
        assert page.note is not None
        page = service.messages(MessageQuery(topic, cursor=page.before))
    assert "".join(letters[:-1]) == "ABCDEFGHIJKL"
    assert max(sizes) < 15_000_000
    forth = service.messages(MessageQuery(topic, "earliest"))
    assert 1 <= len(forth.rows) <= 5
    assert not forth.is_complete
    whole = service.message(topic, 0, 6)
    assert whole.row.value.size_bytes == 10_000_001
    assert whole.row.value.is_cut
    assert len(whole.row.value.text) <= 1_048_576
    assert service.record(topic, 0, 6).value == b"{" + b"\xff" * 10_000_000


def test_keys_and_values_are_given_as_they_are(service: Service, stream: penstock.Connection, topic: str) -> None:
    nasty = "<script>alert('x')</script><img src=x onerror=alert(1)>"
    stream.send(topic, nasty, key=nasty, headers={nasty: nasty}, partition=0)
    stream.send(topic, b"\x00\xff\xfe" * 50, key=b"\xff", headers={"b": b"\xff\x00"}, partition=0)
    stream.send(topic, None, key=None, partition=0)
    stream.send(topic, b"[" * 100_000, partition=0)
    stream.flush(30)
    rows = service.messages(MessageQuery(topic)).rows
    assert (rows[0].key.text, rows[0].value.text) == (nasty, nasty)
    assert rows[0].headers[0][0] == nasty
    assert [row.value.form for row in rows[1:]] == ["hex", "null", "json"]
    for pointer in range(4):
        service.message(topic, 0, pointer)


def test_headers_of_any_name_are_shown(service: Service, ann: Person, stream: penstock.Connection, topic: str) -> None:
    send_raw(stream.bootstrap, topic, [(b"v%d" % number, [(LATIN, b"y")]) for number in range(20)])
    send_raw(stream.bootstrap, topic, [(b"last", [(LATIN, b"y"), (b"\xff", b"z")])])
    rows = service.messages(MessageQuery(topic, expression="size > 0")).rows
    assert [row.value.text for row in rows] == [*(f"v{number}" for number in range(20)), "last"]
    assert {row.headers[0][0] for row in rows} == {r"gr\xf6\xdfe"}
    assert service.message(topic, 0, 5).row.value.text == "v5"
    service.replay(ann, topic, 0, 5)
    assert service.message(topic, 0, 21).row.headers[0][0] == r"gr\xf6\xdfe"
    with pytest.raises(StreamError, match="would be lost"):
        service.replay(ann, topic, 0, 20)


def test_one_message_is_shown_whole_with_what_is_around_it(
    service: Service, stream: penstock.Connection, topic: str
) -> None:
    stream.send(topic, {"a": [1, 2]}, key="k", partition=1)
    stream.flush(30)
    detail = service.message(topic, 1, 0)
    assert detail.row.value.text == '{\n  "a": [\n    1,\n    2\n  ]\n}'
    assert (detail.start, detail.end) == (0, 1)
    assert service.message(topic, 1, 0, decode="hex").row.value.text.startswith("00000000  7b 22 61")
    found = service.record(topic, 1, 0)
    assert (found.key, found.value) == (b"k", b'{"a":[1,2]}')
    with pytest.raises(OffsetOutOfRangeError):
        service.message(topic, 1, 1)
    with pytest.raises(UnknownTopicError):
        service.message(topic, 9, 0)


def test_only_what_was_committed_is_shown_unless_all_is_wanted(service: Service, stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, 1)
    client = Producer({"bootstrap.servers": stream.bootstrap, "transactional.id": fresh("transaction")})
    client.init_transactions(30)
    for outcome in ("kept", "dropped"):
        client.begin_transaction()
        client.produce(topic, outcome)
        if outcome == "kept":
            client.commit_transaction(30)
        else:
            client.abort_transaction(30)
    client.begin_transaction()
    client.produce(topic, "open")
    client.flush(30)

    def values(query: MessageQuery) -> list[str]:
        return [row.value.text for row in service.messages(query).rows]

    try:
        for position in ("earliest", "latest-10"):
            assert values(MessageQuery(topic, position)) == ["kept"]
        with pytest.raises(StreamError, match="no record"):
            service.message(topic, 0, 1)  # the mark of the first transaction
    finally:
        client.abort_transaction(30)
    assert values(MessageQuery(topic, "latest-10")) == ["kept"]


@pytest.mark.parametrize("cursor", ["", "x", "ÿ", "W10", "bm90IGpzb24", "W251bGwsbnVsbCx7fV0", "A" * 2_000_000])
def test_a_cursor_that_was_tampered_with_is_refused(service: Service, topic: str, cursor: str) -> None:
    with pytest.raises(ConfigError):
        service.messages(MessageQuery(topic, cursor=cursor))


def test_a_cursor_of_another_topic_is_refused(service: Service, stream: penstock.Connection, topic: str) -> None:
    numbered(stream, topic, 10)
    cursor = service.messages(MessageQuery(topic, "earliest", limit=2)).cursor
    other = fresh()
    stream.create_topic(other, 1)
    with pytest.raises(ConfigError, match="not of topic"):
        service.messages(MessageQuery(other, cursor=cursor))


@pytest.mark.parametrize(
    "query",
    [
        MessageQuery("no-such-topic"),
        MessageQuery("no-such-topic", limit=0),
        MessageQuery("no-such-topic", limit=100_000),
        MessageQuery("no-such-topic", search="x" * 2_000),
        MessageQuery("no-such-topic", decode="xml"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_meant_is_refused(service: Service, query: MessageQuery) -> None:
    with pytest.raises((UnknownTopicError, ConfigError)):
        service.messages(query)


def test_looking_makes_no_topic(service: Service, stream: penstock.Connection) -> None:
    name = fresh()
    with pytest.raises(UnknownTopicError):
        service.messages(MessageQuery(name))
    with pytest.raises(UnknownTopicError):
        service.tail(MessageQuery(name))
    assert name not in stream.topics()


def test_gaps_between_records_are_paged_over(service: Service, stream: penstock.Connection) -> None:
    topic = fresh()
    stream.create_topic(topic, 1)
    client = Producer({"bootstrap.servers": stream.bootstrap, "transactional.id": fresh("transaction")})
    client.init_transactions(30)
    for number in range(40):
        client.begin_transaction()
        client.produce(topic, msgspec.json.encode({"n": number}), timestamp=BEGAN_MS + number)
        if number % 4:
            client.abort_transaction(30)
        else:
            client.commit_transaction(30)
    page = service.messages(MessageQuery(topic, "latest-3", limit=3))
    found = numbers(page)
    while page.before is not None:
        page = service.messages(MessageQuery(topic, limit=3, cursor=page.before))
        found = numbers(page) + found
    assert found == list(range(0, 40, 4))
