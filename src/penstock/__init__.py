"""Penstock carries events: from the program that makes them, through a durable log, to the code that acts on them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from penstock.app import App
    from penstock.consuming import Breaker, Consumer, Context, Retry, within
    from penstock.consuming.dead_letters import open_dead_letters, redrive
    from penstock.errors import (
        AliasChangedError,
        BrokerUnavailableError,
        BufferFullError,
        CheckpointMismatchError,
        ConfigError,
        ConnectionClosedError,
        ConnectorMissingError,
        CorruptCheckpointError,
        DeliveryError,
        FencedError,
        GroupError,
        GuaranteeError,
        HandlerError,
        InvalidTopicError,
        JavaMissingError,
        MissingExtraError,
        OffsetOutOfRangeError,
        PenstockError,
        PipelineError,
        PipelineRunningError,
        RecordsExpiredError,
        RegistryError,
        Reject,
        SchemaMismatchError,
        SerdeError,
        SpoolInUseError,
        StoreUnavailableError,
        StreamError,
        TopicExistsError,
        TopicReplacedError,
        UnknownTopicError,
        UrlError,
        WorkerDiedError,
    )
    from penstock.model import DeadLetter, Guarantee, LetterFilter, NewRecord, Order, Place, Position, Receipt, Record
    from penstock.producing.connecting import connect
    from penstock.producing.producer import Producer
    from penstock.serde import AvroSerde, JsonSerde, MsgpackSerde, ProtobufSerde, SchemaRegistry, Topic
    from penstock.streams import Connection, Reader

_ROOMS = {
    "penstock.app": ("App",),
    "penstock.consuming": (
        "Breaker",
        "Consumer",
        "Context",
        "Retry",
        "within",
    ),
    "penstock.consuming.dead_letters": ("open_dead_letters", "redrive"),
    "penstock.errors": (
        "AliasChangedError",
        "BrokerUnavailableError",
        "BufferFullError",
        "CheckpointMismatchError",
        "ConfigError",
        "ConnectionClosedError",
        "ConnectorMissingError",
        "CorruptCheckpointError",
        "DeliveryError",
        "FencedError",
        "GroupError",
        "GuaranteeError",
        "HandlerError",
        "InvalidTopicError",
        "JavaMissingError",
        "MissingExtraError",
        "OffsetOutOfRangeError",
        "PenstockError",
        "PipelineError",
        "PipelineRunningError",
        "RecordsExpiredError",
        "RegistryError",
        "Reject",
        "SchemaMismatchError",
        "SerdeError",
        "SpoolInUseError",
        "StoreUnavailableError",
        "StreamError",
        "TopicExistsError",
        "TopicReplacedError",
        "UnknownTopicError",
        "UrlError",
        "WorkerDiedError",
    ),
    "penstock.model": (
        "DeadLetter",
        "Guarantee",
        "LetterFilter",
        "NewRecord",
        "Order",
        "Place",
        "Position",
        "Receipt",
        "Record",
    ),
    "penstock.producing.connecting": ("connect",),
    "penstock.producing.producer": ("Producer",),
    "penstock.serde": ("AvroSerde", "JsonSerde", "MsgpackSerde", "ProtobufSerde", "SchemaRegistry", "Topic"),
    "penstock.streams": ("Connection", "Reader"),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "AliasChangedError",
    "App",
    "AvroSerde",
    "Breaker",
    "BrokerUnavailableError",
    "BufferFullError",
    "CheckpointMismatchError",
    "ConfigError",
    "Connection",
    "ConnectionClosedError",
    "ConnectorMissingError",
    "Consumer",
    "Context",
    "CorruptCheckpointError",
    "DeadLetter",
    "DeliveryError",
    "FencedError",
    "GroupError",
    "Guarantee",
    "GuaranteeError",
    "HandlerError",
    "InvalidTopicError",
    "JavaMissingError",
    "JsonSerde",
    "LetterFilter",
    "MissingExtraError",
    "MsgpackSerde",
    "NewRecord",
    "OffsetOutOfRangeError",
    "Order",
    "PenstockError",
    "PipelineError",
    "PipelineRunningError",
    "Place",
    "Position",
    "Producer",
    "ProtobufSerde",
    "Reader",
    "Receipt",
    "Record",
    "RecordsExpiredError",
    "RegistryError",
    "Reject",
    "Retry",
    "SchemaMismatchError",
    "SchemaRegistry",
    "SerdeError",
    "SpoolInUseError",
    "StoreUnavailableError",
    "StreamError",
    "Topic",
    "TopicExistsError",
    "TopicReplacedError",
    "UnknownTopicError",
    "UrlError",
    "WorkerDiedError",
    "connect",
    "open_dead_letters",
    "redrive",
    "within",
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
