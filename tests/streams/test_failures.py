"""What is told of a record that could not be delivered."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from penstock.streams.kafka.failures import not_delivered

UNKNOWN = (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)


@pytest.mark.parametrize("code", UNKNOWN)
@pytest.mark.parametrize("topic", ["not a topic", "", ".", "..", "x" * 250, "ä"])
def test_an_impossible_name_is_called_that_even_if_the_client_only_says_unknown(code: int, topic: str) -> None:
    assert "a topic cannot have this name" in str(not_delivered(topic, KafkaError(code)))


@pytest.mark.parametrize("code", UNKNOWN)
@pytest.mark.parametrize("topic", ["orders", "...", "a.b-c_d", "x" * 249])
def test_a_possible_name_is_called_missing(code: int, topic: str) -> None:
    assert "there is no such topic" in str(not_delivered(topic, KafkaError(code)))
