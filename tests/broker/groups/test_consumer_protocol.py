"""What the broker reads of the consumers' own protocol."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.group import subscribed_topics
from tests.broker.groups.doubles import subscription

# ConsumerProtocolSubscription version 3 of the topics "a" and "é", as kafka-clients 4.3.1 writes it: user data, owned
# partitions, generation and rack follow what version 0 has.
SUBSCRIPTION_V3 = (
    "00030000000200016100" + "02c3a9" + "ffffffff" + "00000001" + "000161" + "0000000100000000" + "00000005" + "ffff"
)


def test_the_topics_of_a_subscription_are_read() -> None:
    assert subscribed_topics(subscription("a", "é")) == frozenset({"a", "é"})
    assert subscribed_topics(subscription()) == frozenset()


def test_a_later_version_of_a_subscription_begins_like_the_first() -> None:
    assert subscribed_topics(bytes.fromhex(SUBSCRIPTION_V3)) == frozenset({"a", "é"})


def test_what_is_not_a_subscription_is_not_understood() -> None:
    whole = subscription("topic")
    for length in range(len(whole) - 4):
        assert subscribed_topics(whole[:length]) is None
    assert subscribed_topics(b"\x00\x00\x7f\xff\xff\xff") is None
    assert subscribed_topics(b"\x00\x00\xff\xff\xff\xff") is None


@given(st.binary(max_size=60))
def test_no_bytes_crash_the_reader(data: bytes) -> None:
    found = subscribed_topics(data)
    assert found is None or isinstance(found, frozenset)
