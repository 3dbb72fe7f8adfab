"""The Kafka protocol on top of the log: any Kafka client can use it.

`server` accepts connections; `connection` parses requests; `produce` and `fetch` move records; `handlers` answer
everything else with the `groups` and `transactions` coordinators; `housekeeping` runs periodic work. The broker is a
process of its own, with one event loop.
"""

from __future__ import annotations

from penstock.broker.address import BrokerAddress, last_address, read_address
from penstock.broker.limits import Limits

__all__ = ["BrokerAddress", "Limits", "last_address", "read_address"]
