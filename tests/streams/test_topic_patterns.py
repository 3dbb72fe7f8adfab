"""Which topics a list or a pattern chooses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import ConfigError, Topic, TopicPattern
from penstock.errors import InvalidTopicError
from penstock.streams.memory import MemoryStream
from penstock.streams.topic_patterns import described, topics_of


@dataclass
class Order:
    cents: int


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        (r"orders\..*", "orders.eu", True),
        (r"orders\..*", "orders", False),
        (r"orders", "orders.eu", False),
        (r"orders", "my-orders", False),
        (r".*", "__consumer_offsets", False),
        (r".*", "penstock.aliases", False),
        (r"penstock\..*", "penstock.checkpoints", False),
        (r".*", "orders.dlq", False),
        (r"orders\..*", "orders.dlq", False),
        (r".*\.dlq", "orders.dlq", True),
        (r".*\.dlq", "orders.dlq.dlq", False),
        (r".*dlq.*", "orders.dlq.dlq", False),
    ],
)
def test_a_pattern_matches_whole_names_but_no_internal_topics_and_no_dead_letters_by_accident(
    pattern: str, name: str, matches: bool
) -> None:
    assert TopicPattern(re.compile(pattern)).matches(name) is matches


def test_the_topics_that_match_are_found_in_order_without_those_excluded() -> None:
    stream = MemoryStream()
    for name in ("orders.us", "orders.eu", "orders.eu.dlq", "orders.all", "users"):
        stream.create_topic(name)
    assert TopicPattern(re.compile(r"orders\..*")).find(stream, {"orders.all"}) == ["orders.eu", "orders.us"]


def test_a_matching_topic_decodes_as_the_pattern_says() -> None:
    topic = TopicPattern(re.compile(r"orders\..*"), Order, serde="msgpack").topic("orders.eu")
    assert topic == Topic("orders.eu", Order, serde="msgpack")


def test_text_is_one_topic_and_a_list_is_its_topics() -> None:
    orders = Topic("orders", Order)
    assert topics_of("orders.eu") == ["orders.eu"]
    assert topics_of(orders) == [orders]
    assert topics_of(("users", orders)) == ["users", orders]
    pattern = topics_of(re.compile("a|b"))
    assert isinstance(pattern, TopicPattern)
    assert described(pattern) == "topics that match 'a|b'"


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ([], "empty"),
        (["a", "a"], "twice"),
        (["a", re.compile("b")], "one pattern without a list"),
        ([3], "is not a topic"),
        ({"a", "b"}, "a list of them"),
        (b"orders", "a list of them"),
        (["no spaces"], "no spaces"),
        ("^orders.*", "orders"),
    ],
)
def test_what_is_no_choice_of_topics_is_refused(choice: Any, said: str) -> None:
    with pytest.raises(InvalidTopicError, match=re.escape(said)):
        topics_of(choice)


def test_a_pattern_of_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="compiled pattern of str"):
        topics_of(re.compile(b"orders"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="compiled pattern of str"):
        TopicPattern("orders")  # type: ignore[arg-type]
