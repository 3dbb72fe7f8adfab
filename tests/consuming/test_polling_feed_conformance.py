"""A feed by reading one partition at a time keeps the promises of any feed."""

from __future__ import annotations

from penstock.consuming.loop.polling_feed import PollingFeed
from penstock.model.clock import SystemClock
from penstock.streams.memory.streams import MemoryFeed, MemoryTopicStream
from penstock.streams.memory.topics import Topics
from penstock.testing import MemoryStream, conformance
from penstock.testing.conformance.streams.feeding import FeedingCases


class PulledStream(MemoryTopicStream):
    """A stream whose feed asks it for one partition at a time."""

    def feed(self) -> MemoryFeed:
        return PollingFeed(self, SystemClock())  # type: ignore[return-value]


class PulledStreams(MemoryStream):
    def open_topic(self, topic: str) -> MemoryTopicStream:
        topics: Topics = self._topics
        return PulledStream(topic, topics)


TestPulledStreams = conformance.stream(PulledStreams, expire=PulledStreams.expire)
for name in [name for name in dir(TestPulledStreams) if name.startswith("test_") and name not in vars(FeedingCases)]:
    setattr(TestPulledStreams, name, None)  # the stream itself is tested elsewhere
