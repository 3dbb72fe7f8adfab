"""Settings that cannot work are refused when they are made."""

from __future__ import annotations

import pytest

from penstock.broker.groups import GroupSettings
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"min_session_timeout_ms": 0}, "min_session_timeout_ms"),
        ({"min_session_timeout_ms": 10, "max_session_timeout_ms": 9}, "max_session_timeout_ms"),
        ({"initial_rebalance_delay_ms": -1}, "initial_rebalance_delay_ms"),
        ({"max_size": 0}, "max_size"),
        ({"offset_metadata_max_length": 8_192}, "offset_metadata_max_length"),
        ({"offsets_retention_minutes": 1.5}, "offsets_retention_minutes"),
    ],
)
def test_what_is_not_allowed_is_named(settings: dict[str, int], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        GroupSettings(**settings)


def test_a_lone_consumer_does_not_wait_by_default() -> None:
    assert GroupSettings().initial_rebalance_delay_ms == 0
