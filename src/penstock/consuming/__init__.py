"""Consuming: records come in batches, go out to handlers in the order that was asked for, and what became of each is
tracked, saved, and told. What cannot be handled ends up with the dead letters.

`Consumer` is one handler on one topic. It reads any stream, keeps its checkpoints in any store, and shares the work
with the other members of its group.
"""

from __future__ import annotations

from penstock.consuming.breaker import Breaker
from penstock.consuming.consumer import Consumer
from penstock.consuming.context import Context
from penstock.consuming.deadlines import within
from penstock.consuming.retry import Retry

__all__ = ["Breaker", "Consumer", "Context", "Retry", "within"]
