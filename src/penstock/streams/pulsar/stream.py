"""Apache Pulsar as `abc.Stream`, and the opener of its URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import BrokerUnavailableError, StreamError, UrlError
from penstock.model import Pointer, check_topic_name
from penstock.model.record import is_topic_name
from penstock.streams.adapting.stream_base import ServerStream
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.pulsar.client import TLS_SCHEME, PulsarClient
from penstock.streams.pulsar.messages import parse_pointer, pointer_text
from penstock.streams.pulsar.settings import PulsarSettings
from penstock.streams.pulsar.topic_stream import PulsarTopicStream, features_of
from penstock.streams.pulsar.topics import PulsarTopic, topic_names

PORT: Final = 6650
TLS_PORT: Final = 6651
_OLDEST: Final = (2, 9)
"""The version of Pulsar whose web service finds the message of a time."""


class PulsarBackend(ServerStream):
    """The topics of one namespace of Pulsar. See `PulsarSettings` for what can be set."""

    _client: PulsarClient

    def __init__(self, url: BackendUrl, settings: PulsarSettings) -> None:
        super().__init__(url, PulsarClient(url, settings), settings.partitions)
        self.features = features_of(settings)
        self._settings = settings

    def open_topic(self, topic: str) -> PulsarTopicStream:
        check_topic_name(topic)
        return PulsarTopicStream(topic, self._client, self._settings)

    def topics(self) -> list[str]:
        """The persistent topics of the namespace, without those of Pulsar itself."""
        answers = [*self._listed(""), *self._listed("/partitioned")]
        return [name for name in topic_names(answers) if is_topic_name(name)]

    def retention_s(self, topic: str) -> float | None:
        """After how many seconds Pulsar may remove a record; None if it keeps them, or cannot tell by their age."""
        minutes, _ = self._topic(topic).retention()
        return 60.0 * minutes if minutes > 0 else None

    def pointer_text(self, pointer: Pointer) -> str:
        return pointer_text(pointer)

    def parse_pointer(self, text: str) -> Pointer:
        return parse_pointer(text)

    def check_reachable(self) -> None:
        self.check_there(self._settings.timeout_s)
        self._check_version()
        self._listed("")
        self._client.check_login()

    def _check_version(self) -> None:
        version = self._client.web.version()
        if version and tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
            raise BrokerUnavailableError(
                f"{self._client.where} has Pulsar {version}, which is too old: {_OLDEST[0]}.{_OLDEST[1]} or newer is "
                "needed. Upgrade it",
                retriable=False,
            )

    def _create(self, topic: str, partitions: int) -> None:
        self._topic(topic).create(partitions)

    def _delete(self, topic: str) -> None:
        self._topic(topic).delete()

    def _listed(self, kind: str) -> list[str]:
        found = self._client.web.find(f"{self._client.path}{kind}")
        if found is None:
            raise StreamError(
                f"there is no namespace {self._client.tenant}/{self._client.namespace} in {self._client.where}: create "
                f"it with `pulsar-admin namespaces create {self._client.tenant}/{self._client.namespace}`"
            )
        if not isinstance(found, list):
            raise StreamError(f"{self._client.web.where} does not answer as Pulsar does: is admin_url right?")
        return found

    def _topic(self, topic: str) -> PulsarTopic:
        return PulsarTopic(topic, self._client, self._settings)


def open_pulsar(url: str, options: Mapping[str, Any]) -> PulsarBackend:
    """`pulsar:` and `pulsar+ssl:` URLs, as `penstock.streams.schemes` finds them."""
    port = TLS_PORT if url.strip().lower().startswith(f"{TLS_SCHEME}:") else PORT
    parsed = parse_backend_url(url, port)
    if not parsed.hosts:
        raise UrlError(f"{parsed.shown!r} must name a host: {parsed.scheme}://HOST:{port}/TENANT/NAMESPACE")
    return PulsarBackend(parsed, settings_of(parsed, PulsarSettings, options))
