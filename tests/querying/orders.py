"""What the log of these tests holds: 300 orders, one a minute, in two partitions."""

from __future__ import annotations

from dataclasses import dataclass

import penstock


@dataclass
class Order:
    customer: str
    cents: int


ORDERS = penstock.Topic("orders", Order, partitions=2)
