"""Consuming: records come in batches, go out to handlers in the order that was asked for, and what became of each is
tracked, saved, and told. What cannot be handled ends up with the dead letters.

A `HandlerConsumer` is one handler on one topic, which `App` makes; a `Consumer` gives the records to whoever asks. Both
read any stream, keep their checkpoints in any store, and share the work with the other members of their group.
"""

from __future__ import annotations

from penstock.consuming.breaker import Breaker
from penstock.consuming.context import Context
from penstock.consuming.deadlines import within
from penstock.consuming.pull import Consumer
from penstock.consuming.retry import Retry

__all__ = ["Breaker", "Consumer", "Context", "Retry", "within"]
