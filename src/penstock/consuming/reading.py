"""Reading from a feed that may fail: with exponential backoff, and telling of it once."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Final

from penstock.abc import Clock, GroupFeed
from penstock.consuming.retry import Retry
from penstock.errors import BrokerUnavailableError, StoreUnavailableError, StreamError
from penstock.model import Batch, Pointer

logger = logging.getLogger(__name__)

_AGAIN: Final = Retry(first_delay_s=0.1, max_delay_s=10.0)


class Reading:
    """Polls a feed. What will pass is waited out; what will not is raised."""

    def __init__(self, topic: str, clock: Clock, seed: int | None) -> None:
        self._topic = topic
        self._clock = clock
        self._chance = random.Random(seed)
        self._failures = 0
        self._again_s = 0.0
        self.problem = ""
        """Why nothing can be read, while that is so."""

    @property
    def must_wait(self) -> bool:
        """Whether it is too early to try again."""
        return self._failures > 0 and self._clock.monotonic_s() < self._again_s

    def poll(self, feed: GroupFeed, limit: int, wait_s: float) -> Sequence[Batch]:
        try:
            batches = feed.poll(limit, wait_s)
        except (StreamError, BrokerUnavailableError, StoreUnavailableError) as error:
            self._failures += 1
            if not self.problem:
                logger.warning("topic %r cannot be read, and is tried again: %s", self._topic, error)
            self.problem = str(error)
            self._again_s = self._clock.monotonic_s() + _AGAIN.backoff_s(self._failures, self._chance)
            return ()
        if batches:
            self._failures = 0
            self.problem = ""
        return batches


def cut(batch: Batch, end: Pointer) -> Batch:
    """The part of a batch that lies before the end of a run that ends by itself."""
    records = [record for record in batch if record.offset < end]
    return Batch(batch.topic, batch.partition, batch.start, end, records)
