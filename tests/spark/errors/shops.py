"""What tests of bad rows share: a topic of orders, and what became of them."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from typing import Any, Final

import penstock as ps


@dataclass
class Order:
    customer: str
    cents: int


ORDERS: Final = ps.Topic("orders", Order)
COUNT: Final = 60
"""How many orders the fixture `shop` sends."""


def values(connection: ps.Connection, topic: str) -> list[Any]:
    return [json.loads(record.value or b"null") for record in connection.read(topic)]


def letters(connection: ps.Connection, group: str = "shop") -> list[ps.DeadLetter]:
    with contextlib.closing(ps.open_dead_letters("orders.dlq", connection)) as opened:
        return list(opened.browse(ps.DeadLetterFilter(group=group)))


def cents_of(letter: ps.DeadLetter) -> int:
    assert letter.record.value is not None
    cents: int = json.loads(letter.record.value)["cents"]
    return cents
