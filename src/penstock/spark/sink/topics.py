"""`TopicCreator`: creates the topics of a target that are missing."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.abc import Admin
from penstock.streams.declared import tell_difference


class TopicCreator:
    """Creates missing topics, and remembers which exist."""

    def __init__(self, topics: Admin, partitions: int | None, *, compact: bool) -> None:
        self._topics = topics
        self._partitions = partitions
        self._settings = {"cleanup.policy": "compact"} if compact else {}
        self._there: set[str] = set()

    def ensure(self, names: Iterable[str]) -> None:
        """Create these topics if they are missing. Raises InvalidTopicError, BrokerUnavailableError, StreamError."""
        for name in set(names) - self._there:
            tell_difference(name, self._partitions, self._topics.provide(name, self._partitions, self._settings))
            self._there.add(name)
