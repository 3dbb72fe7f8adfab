"""The public names: what users may import from `penstock`, and nothing by accident."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock

PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    assert penstock.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_is_there_documented_and_listed(name: str) -> None:
    thing = getattr(penstock, name)
    assert thing.__doc__
    assert thing.__module__.startswith("penstock.")
    assert name in dir(penstock)


def test_errors_have_one_root() -> None:
    errors = [getattr(penstock, name) for name in PUBLIC if name.endswith("Error")]
    assert all(issubclass(error, penstock.PenstockError) for error in errors)


def test_any_other_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Broker'"):
        penstock.Broker  # noqa: B018


def test_importing_the_package_loads_no_room() -> None:
    """The broker's process imports it, too, and has no use for a client."""
    script = "import sys, penstock; print(*[name for name in sys.modules if name.startswith('penstock')])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["penstock"]
