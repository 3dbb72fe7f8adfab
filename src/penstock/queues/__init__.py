"""Queues: systems that hand a record out and forget it once it is settled, each reached by its protocol.

In come records, by `send`; out go deliveries, by `receive`, which whoever got them settles. `memory` is a queue in this
process, for tests.
"""

from __future__ import annotations

from penstock.queues.memory import MemoryQueue

__all__ = ["MemoryQueue"]
