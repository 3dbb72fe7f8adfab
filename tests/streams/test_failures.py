"""What is told of a record that could not be delivered, and errors that cross processes."""

from __future__ import annotations

import pickle

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.errors import (
    BrokerUnavailableError,
    DeliveryError,
    FilterError,
    IncompatibleSchemaError,
    OffsetOutOfRangeError,
    PenstockError,
)
from penstock.streams.kafka.failures import is_passing, not_delivered, refused

UNKNOWN = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
DESTROY_BROKER = -137


@pytest.mark.parametrize("code", UNKNOWN)
@pytest.mark.parametrize("topic", ["not a topic", "", ".", "..", "x" * 250, "ä"])
def test_an_impossible_name_is_called_that_even_if_the_client_only_says_unknown(code: int, topic: str) -> None:
    assert "a topic cannot have this name" in str(not_delivered(topic, KafkaError(code)))


@pytest.mark.parametrize("code", UNKNOWN)
@pytest.mark.parametrize("topic", ["orders", "...", "a.b-c_d", "x" * 249])
def test_a_possible_name_is_called_missing(code: int, topic: str) -> None:
    assert "there is no such topic" in str(not_delivered(topic, KafkaError(code)))


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, DESTROY_BROKER])
def test_a_broker_that_is_away_or_has_left_the_cluster_is_waited_for(code: int) -> None:
    error = KafkaException(KafkaError(code))
    assert is_passing(error)
    assert isinstance(refused("topic 'tea' could not be looked up", error), BrokerUnavailableError)


@pytest.mark.parametrize(
    "error",
    [
        OffsetOutOfRangeError("orders-3", 5, 7, 9),
        DeliveryError("refused", retriable=True),
        FilterError("wrong", 4),
        IncompatibleSchemaError("broken", 409, 40901),
    ],
)
def test_an_error_is_the_same_in_another_process(error: PenstockError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert vars(there) == vars(error)
