"""Penstock carries events: from the program that makes them, through a durable log, to the code that acts on them.

These are the names that most programs use. The others are in `penstock.errors` (every error), `penstock.abc` (the
extension points), `penstock.testing` and `penstock.spark`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.app import App as App
    from penstock.consuming import CircuitBreaker as CircuitBreaker
    from penstock.consuming import Consumer as Consumer
    from penstock.consuming import Context as Context
    from penstock.consuming import Retry as Retry
    from penstock.consuming import within as within
    from penstock.dead_letters import open_dead_letters as open_dead_letters
    from penstock.dead_letters import redrive as redrive
    from penstock.errors import ConfigError as ConfigError
    from penstock.errors import DeliveryError as DeliveryError
    from penstock.errors import PenstockError as PenstockError
    from penstock.errors import Reject as Reject
    from penstock.errors import StreamError as StreamError
    from penstock.model import DeadLetter as DeadLetter
    from penstock.model import DeadLetterFilter as DeadLetterFilter
    from penstock.model import Guarantee as Guarantee
    from penstock.model import NewRecord as NewRecord
    from penstock.model import Ordering as Ordering
    from penstock.model import Position as Position
    from penstock.model import Receipt as Receipt
    from penstock.model import Record as Record
    from penstock.model import RecordMetadata as RecordMetadata
    from penstock.producing.connecting import connect as connect
    from penstock.producing.producer import Producer as Producer
    from penstock.querying.database import sql as sql
    from penstock.serde import AvroSerde as AvroSerde
    from penstock.serde import JsonSerde as JsonSerde
    from penstock.serde import MsgpackSerde as MsgpackSerde
    from penstock.serde import ProtobufSerde as ProtobufSerde
    from penstock.serde import Topic as Topic
    from penstock.serde.registry.client import SchemaRegistry as SchemaRegistry
    from penstock.streams import Connection as Connection
    from penstock.streams import Reader as Reader
    from penstock.streams import TopicPattern as TopicPattern
    from penstock.tables.events import Aggregate as Aggregate
    from penstock.tables.events import EventStore as EventStore
    from penstock.tables.events import Projection as Projection
    from penstock.tables.events import applies as applies
    from penstock.tables.events import upcasts as upcasts
    from penstock.tables.table import Table as Table

_NAMES = {
    "penstock.app": ["App"],
    "penstock.consuming": ["CircuitBreaker", "Consumer", "Context", "Retry", "within"],
    "penstock.dead_letters": ["open_dead_letters", "redrive"],
    "penstock.errors": ["ConfigError", "DeliveryError", "PenstockError", "Reject", "StreamError"],
    "penstock.model": [
        "DeadLetter",
        "DeadLetterFilter",
        "Guarantee",
        "NewRecord",
        "Ordering",
        "Position",
        "Receipt",
        "Record",
        "RecordMetadata",
    ],
    "penstock.producing.connecting": ["connect"],
    "penstock.producing.producer": ["Producer"],
    "penstock.querying.database": ["sql"],
    "penstock.serde": ["AvroSerde", "JsonSerde", "MsgpackSerde", "ProtobufSerde", "Topic"],
    "penstock.serde.registry.client": ["SchemaRegistry"],
    "penstock.streams": ["Connection", "Reader", "TopicPattern"],
    "penstock.tables.table": ["Table"],
    "penstock.tables.events": ["Aggregate", "EventStore", "Projection", "applies", "upcasts"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Load a public name on first use: the command and the broker need few of them."""
    if name not in _HOMES:
        raise AttributeError(_missing(name))
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _missing(name: str) -> str:
    here = f"module {__name__!r} has no attribute {name!r}"
    return f"{here}: errors are in penstock.errors" if name.endswith("Error") else here


def __dir__() -> list[str]:
    return [*globals(), *__all__]
