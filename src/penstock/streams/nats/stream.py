"""NATS JetStream as `abc.Stream`, and the opener of its URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import UrlError
from penstock.model import check_topic_name
from penstock.model.record import is_topic_name
from penstock.streams.adapting.stream_base import ServerStream
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.nats.client import NatsClient
from penstock.streams.nats.settings import NatsSettings
from penstock.streams.nats.topic_stream import FEATURES, NatsTopicStream
from penstock.streams.nats.topics import NatsTopic, topic_name

PORT: Final = 4222


class NatsBackend(ServerStream):
    """Streams of JetStream at one server or cluster. See `NatsSettings` for what can be set."""

    features = FEATURES
    _client: NatsClient

    def __init__(self, url: BackendUrl, settings: NatsSettings) -> None:
        super().__init__(url, NatsClient(url, settings), settings.partitions)
        self._settings = settings

    def open_topic(self, topic: str) -> NatsTopicStream:
        check_topic_name(topic)
        return NatsTopicStream(topic, self._client, self._settings)

    def topics(self) -> list[str]:
        """Every stream but partitions, key-value buckets and object stores."""
        names = map(topic_name, self._client.run(self._streams()))
        return sorted(name for name in names if name is not None and is_topic_name(name))

    def retention_s(self, topic: str) -> float | None:
        return self._client.run(self._topic(topic).max_age_s())

    def check_reachable(self) -> None:
        self._client.run(self._client.api("INFO"))

    def _create(self, topic: str, partitions: int) -> None:
        self._client.run(self._topic(topic).create(partitions))

    def _delete(self, topic: str) -> None:
        self._client.run(self._topic(topic).delete())

    async def _streams(self) -> list[str]:
        found: list[str] = []
        while True:  # ends: each page has names, or is the last
            answer = await self._client.api("STREAM.NAMES", {"offset": len(found)})
            page = answer.get("streams") or []
            found += page
            if not page or len(found) >= int(answer.get("total", 0)):
                return found

    def _topic(self, topic: str) -> NatsTopic:
        return NatsTopic(topic, self._client, self._settings)


def open_nats(url: str, options: Mapping[str, Any]) -> NatsBackend:
    """`nats:` and `tls:` URLs, as `penstock.streams.schemes` finds them."""
    parsed = parse_backend_url(url, PORT)
    if not parsed.hosts:
        raise UrlError(f"{parsed.shown!r} must name a host: {parsed.scheme}://HOST:{PORT}")
    if parsed.path:
        raise UrlError(f"{parsed.shown!r} has a path, {parsed.path!r}, which means nothing to NATS: omit it")
    return NatsBackend(parsed, settings_of(parsed, NatsSettings, options))
