"""Settings that cannot work are refused by name."""

from __future__ import annotations

import pytest

from penstock.broker.groups.settings import GroupSettings
from penstock.broker.settings import BrokerSettings
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"group.min.session.timeout.ms": "0"}, "group.min.session.timeout.ms"),
        (
            {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"},
            "group.max.session.timeout.ms",
        ),
        ({"group.initial.rebalance.delay.ms": "-1"}, "group.initial.rebalance.delay.ms"),
        ({"group.max.size": "0"}, "group.max.size"),
        ({"offset.metadata.max.bytes": "8192"}, "offset.metadata.max.bytes"),
        ({"offsets.retention.minutes": "1.5"}, "offsets.retention.minutes"),
    ],
)
def test_what_is_not_allowed_is_named(settings: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BrokerSettings.parse(settings)


def test_a_lone_consumer_does_not_wait_by_default() -> None:
    assert GroupSettings().initial_rebalance_delay_ms == 0
