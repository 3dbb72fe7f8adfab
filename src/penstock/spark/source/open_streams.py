"""Streams with their open topics, and a cache of what a process keeps open from one task to the next."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from penstock.abc import Features, Stream, TopicStream
from penstock.streams.connecting import open_stream


class OpenStream:
    """A stream, which it owns, and the topics of it that are open."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._topics: dict[str, TopicStream] = {}

    def topic(self, name: str) -> TopicStream:
        if name not in self._topics:
            self._topics[name] = self.stream.open_topic(name)
        return self._topics[name]

    def close(self) -> None:
        with contextlib.ExitStack() as closing:
            closing.callback(self.stream.close)
            for topic in self._topics.values():
                closing.callback(topic.close)


def features_of(url: str, client: Mapping[str, Any]) -> Features:
    """The features of the stream at a URL. Opens the stream."""
    with contextlib.closing(open_stream(url, **client)) as stream:
        return stream.features


class Closeable(Protocol):
    def close(self) -> None: ...


Kept = TypeVar("Kept", bound=Closeable)


class ResourceCache(Generic[Kept]):
    """An LRU cache of open resources. Evicted resources are closed.

    Resources belong to the process that opened them: a forked process opens its own. Used by one thread.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._pid = os.getpid()
        self._open: OrderedDict[Hashable, Kept] = OrderedDict()

    def get(self, key: Hashable, opened: Callable[[], Kept]) -> Kept:
        if self._pid != os.getpid():
            self._pid, self._open = os.getpid(), OrderedDict()
        if key not in self._open:
            self._open[key] = opened()
            if len(self._open) > self._most:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(key)
        return self._open[key]

    def drop(self, key: Hashable) -> None:
        """Close a resource, so that the next `get` opens a new one."""
        kept = self._open.pop(key, None)
        if kept is not None:
            kept.close()

    def close(self) -> None:
        """Close all resources that this process has opened."""
        if self._pid == os.getpid():
            while self._open:
                self._open.popitem()[1].close()
