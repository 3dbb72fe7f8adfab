"""RabbitMQ streams as `abc.Stream`, and the opener of their URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.abc import Features
from penstock.errors import ConfigError, UrlError
from penstock.model import check_topic_name
from penstock.model.record import is_topic_name
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.rabbitmq.client import TLS_SCHEME, StreamClient
from penstock.streams.rabbitmq.protocol import Command, RequestRefusedError, text
from penstock.streams.rabbitmq.settings import RabbitMqSettings
from penstock.streams.rabbitmq.topic_stream import FEATURES, RabbitMqTopicStream, import_mmh3
from penstock.streams.rabbitmq.topics import StreamTopic

PORT: Final = 5552
TLS_PORT: Final = 5551


class RabbitMqBackend:
    """Streams in one virtual host of RabbitMQ. See `RabbitMqSettings` for what can be set."""

    def __init__(self, url: BackendUrl, settings: RabbitMqSettings) -> None:
        import_mmh3()
        self.url = url.shown
        self.problem: str | None = None
        self._settings = settings
        self._client = StreamClient(url, settings)

    @property
    def features(self) -> Features:
        return FEATURES

    def open_topic(self, topic: str) -> RabbitMqTopicStream:
        check_topic_name(topic)
        return RabbitMqTopicStream(topic, self._client, self._settings)

    def topics(self) -> list[str]:
        """Streams and super streams, by the management API. Streams that are partitions are left out."""
        streams = {queue["name"] for queue in self._client.managed("queues") if queue.get("type") == "stream"}
        exchanges = self._client.managed("exchanges")
        supers = {each["name"] for each in exchanges if (each.get("arguments") or {}).get("x-super-stream")}
        for name in supers:
            streams -= set(self._partitions(name))
        return sorted(name for name in streams | supers if is_topic_name(name))

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        check_topic_name(topic)
        count = self._settings.partitions if partitions is None else partitions
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"partitions={partitions!r} must be an integer >= 1")
        StreamTopic(topic, self._client, self._settings).create(count)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and all of its records. Raises UnknownTopicError."""
        check_topic_name(topic)
        StreamTopic(topic, self._client, self._settings).delete()

    def check_reachable(self) -> None:
        self._client.connection()

    def check_there(self, timeout_s: float) -> None:
        self._client.check_accepts(timeout_s)

    def check_usable(self) -> None:
        """Broken connections are replaced, so no problem lasts."""

    def close(self) -> None:
        self._client.close()

    def _partitions(self, super_stream: str) -> list[str]:
        try:
            return self._client.request(
                Command.PARTITIONS, f"the partitions of {super_stream!r}", text(super_stream)
            ).texts()
        except RequestRefusedError:
            return []  # it was deleted since


def open_rabbitmq_stream(url: str, options: Mapping[str, Any]) -> RabbitMqBackend:
    """`rabbitmq-stream:` and `rabbitmq-stream+tls:` URLs, as `penstock.streams.schemes` finds them."""
    scheme = url.partition(":")[0].strip().lower()
    port = TLS_PORT if scheme == TLS_SCHEME else PORT
    parsed = parse_backend_url(url, port)
    if not parsed.hosts:
        raise UrlError(f"{parsed.shown!r} must name a host: {parsed.scheme}://HOST:{port}/VHOST")
    return RabbitMqBackend(parsed, settings_of(parsed, RabbitMqSettings, options))
