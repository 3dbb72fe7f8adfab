"""The topics that rows go to: created when they are missing."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import UnknownTopicError
from penstock.streams.kafka.topics import TopicAdministration


class TopicMaker:
    """Creates topics as they are met, and remembers which are there."""

    def __init__(self, topics: TopicAdministration, partitions: int | None, *, compact: bool) -> None:
        self._topics = topics
        self._partitions = partitions
        self._settings = {"cleanup.policy": "compact"} if compact else {}
        self._there: set[str] = set()

    def see_to(self, names: Iterable[str]) -> None:
        """Have these topics. Raises InvalidTopicError, BrokerUnavailableError, StreamError."""
        for name in set(names) - self._there:
            try:
                self._topics.partitions_of(name)
            except UnknownTopicError:
                self._topics.provide(name, self._partitions, self._settings)
            self._there.add(name)

    def forget(self) -> None:
        """Look again: one of them may have been deleted."""
        self._there.clear()
