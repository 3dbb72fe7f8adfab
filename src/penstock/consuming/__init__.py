"""Consuming: read records in batches, call handlers in the chosen order, track and save the outcome of each record.

Records that cannot be handled become dead letters. A `HandlerConsumer` runs one handler on one topic, and `App` creates
them; a `Consumer` is polled by its user. Both read any stream, save their checkpoints in any store, and divide the work
with the other members of their group.
"""

from __future__ import annotations

from penstock.consuming.consumer import Consumer
from penstock.consuming.context import Context
from penstock.consuming.deadlines.parallel import within
from penstock.model.circuit_breaker import CircuitBreaker
from penstock.model.retry import Retry

__all__ = ["CircuitBreaker", "Consumer", "Context", "Retry", "within"]
