"""Queues: systems that deliver a record and forget it once it is settled.

`send` adds records; `receive` returns deliveries, which the receiver settles. `open_queue` opens one by its URL;
`App.handle` takes a queue or its URL. `memory` is a queue in this process, for tests.
"""

from __future__ import annotations

from penstock.queues.memory import MemoryDelivery, MemoryQueue
from penstock.queues.opening import open_queue

__all__ = ["MemoryDelivery", "MemoryQueue", "open_queue"]
