"""RabbitMQ streams as `abc.Stream`, and the opener of their URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import BrokerUnavailableError, NotAllowedError, StreamError, UrlError
from penstock.model import check_topic_name
from penstock.model.record import is_topic_name
from penstock.streams.adapting.stream_base import ServerStream
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.rabbitmq.client import TLS_SCHEME, StreamClient
from penstock.streams.rabbitmq.protocol import Command, RequestRefusedError, text
from penstock.streams.rabbitmq.settings import RabbitMqSettings
from penstock.streams.rabbitmq.topic_stream import FEATURES, RabbitMqTopicStream, import_mmh3
from penstock.streams.rabbitmq.topics import StreamTopic

PORT: Final = 5552
TLS_PORT: Final = 5551
_AGE: Final = re.compile(r"(\d+)([YMDhms])")
_DAY_S: Final = 86_400
_UNITS_S: Final = {"Y": 365 * _DAY_S, "M": 30 * _DAY_S, "D": _DAY_S, "h": 3600, "m": 60, "s": 1}
"""RabbitMQ's units of max-age."""


class RabbitMqBackend(ServerStream):
    """Streams in one virtual host of RabbitMQ. See `RabbitMqSettings` for what can be set."""

    features = FEATURES
    _client: StreamClient

    def __init__(self, url: BackendUrl, settings: RabbitMqSettings) -> None:
        import_mmh3()
        super().__init__(url, StreamClient(url, settings), settings.partitions)
        self._settings = settings

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

    def retention_s(self, topic: str) -> float | None:
        """The shortest max-age of its streams, by the management API; without that, what this URL says of new topics.
        Records are removed in whole segments, so most stay for longer."""
        try:
            queues = {queue["name"]: queue for queue in self._client.managed("queues")}
        except (BrokerUnavailableError, NotAllowedError, StreamError):
            return self._settings.max_age_s
        names = [topic] if topic in queues else self._partitions(topic)
        ages_s = [max_age_s(queues[name]) for name in names if name in queues]
        return min((age_s for age_s in ages_s if age_s is not None), default=None)

    def check_reachable(self) -> None:
        self._client.connection()

    def _create(self, topic: str, partitions: int) -> None:
        StreamTopic(topic, self._client, self._settings).create(partitions)

    def _delete(self, topic: str) -> None:
        StreamTopic(topic, self._client, self._settings).delete()

    def _partitions(self, super_stream: str) -> list[str]:
        try:
            return self._client.request(
                Command.PARTITIONS, f"the partitions of {super_stream!r}", text(super_stream)
            ).texts()
        except RequestRefusedError:
            return []  # it was deleted since


def max_age_s(queue: Mapping[str, Any]) -> float | None:
    """How long a stream keeps records, as its arguments and its policy say: the shorter time applies."""
    arguments, policy = queue.get("arguments") or {}, queue.get("effective_policy_definition") or {}
    found = [_AGE.fullmatch(str(age)) for age in (arguments.get("x-max-age"), policy.get("max-age")) if age]
    return min((float(int(age[1]) * _UNITS_S[age[2]]) for age in found if age is not None), default=None)


def open_rabbitmq_stream(url: str, options: Mapping[str, Any]) -> RabbitMqBackend:
    """`rabbitmq-stream:` and `rabbitmq-stream+tls:` URLs, as `penstock.streams.schemes` finds them."""
    scheme = url.partition(":")[0].strip().lower()
    port = TLS_PORT if scheme == TLS_SCHEME else PORT
    parsed = parse_backend_url(url, port)
    if not parsed.hosts:
        raise UrlError(f"{parsed.shown!r} must name a host: {parsed.scheme}://HOST:{port}/VHOST")
    return RabbitMqBackend(parsed, settings_of(parsed, RabbitMqSettings, options))
