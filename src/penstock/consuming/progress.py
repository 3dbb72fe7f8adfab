"""Progress: where a group stands, shown to the stream for those who ask it. It decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from penstock.abc import Clock, GroupFeed
from penstock.consuming.share import Share
from penstock.errors import BrokerUnavailableError, FencedError, StreamError
from penstock.model import Pointer

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0


class Progress:
    """What was shown last, so that only what has moved is shown again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._shown: dict[int, Pointer] = {}
        self._due_s = 0.0

    def show(self, feed: GroupFeed | None, shares: Iterable[Share], *, wait: bool) -> None:
        """Show it, if it is time to, or if somebody will `wait` for it."""
        now_s = self._clock.monotonic_s()
        if feed is None or (now_s < self._due_s and not wait):
            return
        self._due_s = now_s + _EVERY_S
        starts = {share.partition: share.tracker.start for share in shares}
        moved = {partition: start for partition, start in starts.items() if self._shown.get(partition) != start}
        if not moved:
            return
        self._shown.update(moved)
        try:
            feed.commit(moved, wait)
        except (StreamError, BrokerUnavailableError, FencedError) as error:
            logger.info("progress was not shown to the stream: %s", error)

    def forget(self, partition: int) -> None:
        self._shown.pop(partition, None)
