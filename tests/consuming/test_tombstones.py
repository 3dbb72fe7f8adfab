"""A record without a value comes to those who declare None; for all others it is a dead letter that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest

from penstock import Context, Topic
from penstock.app import App
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.dead_letters.opening import open_dead_letters
from penstock.model import DeadLetterFilter, NewRecord, Record
from penstock.streams.memory import MemoryStream

Consume = Callable[..., App]


@dataclass
class Order:
    number: int


ORDERS = Topic("orders", Order)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def tombstone(streams: MemoryStream) -> None:
    """The second of three records has no value."""
    seen.clear()
    values = (b'{"number":1}', None, b'{"number":3}')
    streams.open_topic("orders").append([NewRecord("orders", value, b"key") for value in values])


def letters(streams: MemoryStream) -> list[str]:
    return [letter.error for letter in open_dead_letters("orders.dlq", streams).browse(DeadLetterFilter())]


def typed(value: Order) -> None:
    seen.append(value)


async def typed_async(value: Order) -> None:
    seen.append(value)


def typed_with_context(value: Order, ctx: Context) -> None:
    seen.append(value)


def typed_list(values: list[Order]) -> None:
    seen.extend(values)


def raw(value: bytes) -> None:
    seen.append(value)


def optional(value: Order | None) -> None:
    seen.append(value)


def optional_of_old(value: Optional[Order]) -> None:  # noqa: UP045
    seen.append(value)


def optional_list(values: list[Order | None]) -> None:
    seen.extend(values)


def optional_raw(value: bytes | None) -> None:
    seen.append(value)


def anything(value: Any) -> None:
    seen.append(value)


def untyped(value) -> None:  # type: ignore[no-untyped-def]
    seen.append(value)


@pytest.mark.parametrize("topic", [ORDERS, "orders"], ids=["declared", "by name"])
@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (typed, {}),
        (typed_async, {}),
        (typed_with_context, {}),
        (typed_list, {"batch": 3}),
        (raw, {}),
    ],
    ids=["plain", "async", "context", "list", "bytes"],
)
def test_a_handler_whose_type_has_no_none_does_not_get_one(
    handler: Any, options: dict[str, Any], topic: Any, streams: MemoryStream, consume: Consume
) -> None:
    consume(handler, topic=topic, **options)
    assert len(seen) == 2
    assert None not in seen
    [error] = letters(streams)
    assert "has no value (it is a tombstone" in error
    assert "Order | None" in error


@pytest.mark.parametrize("topic", [ORDERS, "orders"], ids=["declared", "by name"])
@pytest.mark.parametrize(
    ("handler", "options"),
    [(optional, {}), (optional_of_old, {}), (optional_list, {"batch": 3}), (optional_raw, {}), (anything, {})],
    ids=["union", "Optional", "list", "bytes", "Any"],
)
def test_a_handler_that_declares_none_gets_it(
    handler: Any, options: dict[str, Any], topic: Any, streams: MemoryStream, consume: Consume
) -> None:
    consume(handler, topic=topic, **options)
    assert len(seen) == 3
    assert seen[1] is None
    assert not letters(streams)


def test_a_handler_without_types_gets_none_and_so_does_one_that_takes_the_record(
    streams: MemoryStream, consume: Consume
) -> None:
    consume(untyped, topic=ORDERS)
    assert seen == [Order(1), None, Order(3)]
    records: list[Record] = []
    consume(lambda record: records.append(record), group="records")
    assert [record.value is None for record in records] == [False, True, False]
    assert not letters(streams)


def test_bytes_that_may_be_missing_are_not_read_as_json(streams: MemoryStream, consume: Consume) -> None:
    consume(optional_raw)
    assert seen == [b'{"number":1}', None, b'{"number":3}']


def test_a_shared_record_without_a_value_becomes_a_dead_letter(streams: MemoryStream) -> None:
    app = App(streams, group="group")

    @app.handle(ORDERS, order="none", shared=True)
    def handle(value: Order) -> None:
        seen.append(value)
        if len(seen) == 2:
            app.stop()

    app.run()
    assert seen == [Order(1), Order(3)]
    assert len(letters(streams)) == 1


@pytest.mark.parametrize("bad", [None, b"no json"], ids=["a tombstone", "undecodable"])
def test_in_a_transaction_only_the_bad_record_of_a_list_is_given_up(
    bad: bytes | None, streams: MemoryStream, tmp_path: Path
) -> None:
    """Those before it in the list were given up in its place."""
    values = (b'{"number":1}', b'{"number":2}', bad, b'{"number":4}')
    streams.open_topic("lists").append([NewRecord("lists", value, b"key") for value in values])
    app = App(streams, group="group", checkpoints=SqliteCheckpoints(tmp_path / "checkpoints.db"))

    @app.handle("lists", batch=4, guarantee="exactly-once", dead_letters="orders.dlq", end="latest")
    def handle(values: list[Order], ctx: Context) -> None:
        with ctx.transaction():
            seen.extend(values)

    app.run()
    assert seen == [Order(1), Order(2), Order(4)]
    assert len(letters(streams)) == 1
