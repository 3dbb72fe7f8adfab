"""The Kafka protocol on top of the log: every Kafka client in the world can talk to it.

Connections come in at `server`; `connection` cuts requests out of the bytes; `produce` and `fetch` move records;
`handlers` answer everything else with the help of the `groups` and `transactions` coordinators; `housekeeping` does
what time demands. It runs in a process of its own, on one event loop.
"""

from penstock.broker.address import BrokerAddress, read_address
from penstock.broker.limits import Limits
from penstock.broker.settings import BrokerSettings

__all__ = ["BrokerAddress", "BrokerSettings", "Limits", "read_address"]
