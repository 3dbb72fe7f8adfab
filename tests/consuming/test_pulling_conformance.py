"""A feed by reading one partition at a time keeps the promises of any feed."""

from __future__ import annotations

from penstock.consuming.pulling import PullingFeed
from penstock.model.clock import SystemClock
from penstock.streams.memory.feed import MemoryFeed
from penstock.streams.memory.stream import MemoryStream
from penstock.streams.memory.topics import Topics
from penstock.testing import MemoryStreams, conformance
from penstock.testing.conformance.stream_feeding import FeedingCases


class PulledStream(MemoryStream):
    """A stream whose feed asks it for one partition at a time."""

    def feed(self) -> MemoryFeed:
        return PullingFeed(self, SystemClock())  # type: ignore[return-value]


class PulledStreams(MemoryStreams):
    def stream(self, topic: str) -> MemoryStream:
        topics: Topics = self._topics
        return PulledStream(topic, topics)


TestPulledStreams = conformance.stream(PulledStreams, expire=PulledStreams.expire)
for name in [name for name in dir(TestPulledStreams) if name.startswith("test_") and name not in vars(FeedingCases)]:
    setattr(TestPulledStreams, name, None)  # the stream itself is tested elsewhere
