"""The Kafka protocol on top of the log: every Kafka client in the world can talk to it.

Connections come in at `server`; `connection` cuts requests out of the bytes; `produce` and `fetch` move records;
`handlers` answer everything else with the help of the `groups` and `transactions` coordinators; `housekeeping` does
what time demands. It runs in a process of its own, on one event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.address import BrokerAddress, last_address, read_address
from penstock.broker.limits import Limits

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings

__all__ = ["BrokerAddress", "BrokerSettings", "Limits", "last_address", "read_address"]


def __getattr__(name: str) -> object:
    """The settings bring the coordinators and their codec along: a client that looks for an address does not wait."""
    if name == "BrokerSettings":
        from penstock.broker.settings import BrokerSettings

        return BrokerSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
