"""Declared topics: a `Topic` with a number of partitions is created with that number when it is first used."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.abc import Stream
from penstock.errors import TopicExistsError, UnknownTopicError
from penstock.serde import Topic

logger = logging.getLogger(__name__)

_KNOWN_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.02

Provide = Callable[[str, int], int]
"""Creates a topic with this number of partitions unless it exists, and returns how many it has."""


class DeclaredTopics:
    """The topics that one sender was given with a number of partitions. Thread-safe."""

    def __init__(self, waiting: Mapping[str, int] | None = None) -> None:
        self.waiting: dict[str, int] = dict(waiting or {})
        """Topics that have not been looked up yet, and their partitions."""
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def declare(self, topic: Topic[Any]) -> bool:
        """Whether the topic is new here, and needs `provide` before a record is sent to it."""
        name, partitions = topic.name, topic.partitions
        if partitions is None or name in self._known or name in self.waiting:
            return False
        with self._lock:
            self.waiting[name] = partitions
        return True

    def provide(self, name: str, provide: Provide) -> None:
        """Create the topic if it is declared and does not exist. An existing topic is not changed."""
        with self._lock:
            partitions = self.waiting.get(name)
            if partitions is None:
                return
            there = provide(name, partitions)
            self._known.add(name)
            del self.waiting[name]
        tell_difference(name, partitions, there)


def provider_of(stream: Stream) -> Callable[[Topic[Any]], None]:
    """A function that creates each declared topic when it is first given."""
    declared = DeclaredTopics()

    def provide(topic: Topic[Any]) -> None:
        declared.declare(topic)
        declared.provide(topic.name, functools.partial(provide_topic, stream))

    return provide


def provide_topic(stream: Stream, name: str, partitions: int | None) -> int:
    """Create a topic unless it exists, and return how many partitions it has."""

    def create() -> None:
        stream.create_topic(name, partitions)
        logger.info("created topic %r", name)

    with contextlib.closing(stream.open_topic(name)) as opened:
        return create_unless_known(opened.partitions, create)


def create_unless_known(find_partitions: Callable[[], Sequence[int]], create: Callable[[], None]) -> int:
    """Create a topic unless its partitions are found, wait until they are, and return their number."""
    with contextlib.suppress(UnknownTopicError):
        return len(find_partitions())
    with contextlib.suppress(TopicExistsError):  # another client was faster
        create()
    deadline_s = time.monotonic() + _KNOWN_S
    while True:
        try:
            return len(find_partitions())
        except UnknownTopicError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(_LOOK_AGAIN_S)


def tell_difference(name: str, partitions: int | None, there: int) -> None:
    """Warn if a topic has another number of partitions than it was declared with."""
    if partitions is not None and there != partitions:
        advice = f"; to give it more, run: penstock topics alter {name} --partitions {partitions}"
        logger.warning(
            "topic %r is declared with partitions=%d and has %d: it is not changed%s",
            name,
            partitions,
            there,
            advice if there < partitions else "",
        )
