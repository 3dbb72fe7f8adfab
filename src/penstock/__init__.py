"""Penstock carries events: from the program that makes them, through a durable log, to the code that acts on them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.errors import (
        BrokerUnavailableError,
        ConfigError,
        ConnectionClosedError,
        DeliveryError,
        GroupError,
        InvalidTopicError,
        OffsetOutOfRangeError,
        PenstockError,
        StreamError,
        TopicExistsError,
        UnknownTopicError,
        UrlError,
    )
    from penstock.model import Place, Position, Receipt, Record
    from penstock.streams import Connection, Reader, connect

_ROOMS = {
    "penstock.errors": (
        "BrokerUnavailableError",
        "ConfigError",
        "ConnectionClosedError",
        "DeliveryError",
        "GroupError",
        "InvalidTopicError",
        "OffsetOutOfRangeError",
        "PenstockError",
        "StreamError",
        "TopicExistsError",
        "UnknownTopicError",
        "UrlError",
    ),
    "penstock.model": ("Place", "Position", "Receipt", "Record"),
    "penstock.streams": ("Connection", "Reader", "connect"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "BrokerUnavailableError",
    "ConfigError",
    "Connection",
    "ConnectionClosedError",
    "DeliveryError",
    "GroupError",
    "InvalidTopicError",
    "OffsetOutOfRangeError",
    "PenstockError",
    "Place",
    "Position",
    "Reader",
    "Receipt",
    "Record",
    "StreamError",
    "TopicExistsError",
    "UnknownTopicError",
    "UrlError",
    "connect",
]


def __getattr__(name: str) -> object:
    """Load the room of a public name when the name is first used: the command and the broker need few of them."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
