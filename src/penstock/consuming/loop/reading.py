"""When a consumer's loop reads, and how much."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Final

from penstock.abc import Clock, GroupFeed
from penstock.consuming.counts import Counts
from penstock.errors import BrokerUnavailableError, StoreUnavailableError, StreamError
from penstock.model import Batch
from penstock.model.retry import Retry

logger = logging.getLogger(__name__)

_AGAIN: Final = Retry(first_delay_s=0.1, max_delay_s=10.0)
_CALM_S: Final = 2.0
"""After this long without an error, an idle topic counts as readable again."""
_AHEAD_S: Final = 0.1
"""How much work may be in flight, unless the limit is fixed."""


class InFlightLimit:
    """How many records may be in flight: those that are handled in 0.1 s, but at least `least` and at most `most`.

    Members of a group that divide records one by one hold few while their handlers are slow, and leave the rest to
    others; while their handlers are fast, they hold many, so that one save covers many.
    """

    def __init__(self, least: int, most: int, counts: Counts, clock: Clock) -> None:
        self._least = self.now = min(least, most)
        self._most = most
        self._counts = counts
        self._clock = clock
        self._handled = 0
        self._since_s = clock.monotonic_s()

    def update(self) -> None:
        """Adjust the limit to the speed of the handlers."""
        if self._least == self._most:
            return
        now_s = self._clock.monotonic_s()
        if now_s - self._since_s >= _AHEAD_S:
            handled = self._counts.succeeded + self._counts.failed
            pace = (handled - self._handled) * _AHEAD_S / (now_s - self._since_s)
            self.now = max(self._least, min(self._most, round(pace)))
            self._handled, self._since_s = handled, now_s


class FeedReader:
    """Polls a feed, with backoff after errors that may pass; others are raised."""

    def __init__(self, topic: str, clock: Clock, seed: int | None) -> None:
        self._topic = topic
        self._clock = clock
        self._random = random.Random(seed)
        self._failures = 0
        self._again_s = 0.0
        self.problem = ""
        """Why nothing can be read at the moment."""

    @property
    def must_wait(self) -> bool:
        """Whether the backoff still runs."""
        return self._failures > 0 and self._clock.monotonic_s() < self._again_s

    def poll(self, feed: GroupFeed, limit: int, wait_s: float) -> Sequence[Batch]:
        try:
            batches = feed.poll(limit, wait_s)
        except (StreamError, BrokerUnavailableError, StoreUnavailableError) as error:
            self._failures += 1
            if not self.problem:
                logger.warning("topic %r cannot be read; retrying: %s", self._topic, error)
            self.problem = str(error)
            self._again_s = self._clock.monotonic_s() + _AGAIN.backoff_s(self._failures, self._random)
            return ()
        if batches or (self.problem and self._clock.monotonic_s() >= self._again_s + _CALM_S):
            self._failures = 0
            self.problem = ""
        return batches
