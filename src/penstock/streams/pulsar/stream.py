"""Apache Pulsar as `abc.Stream`, and the opener of its URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.abc import Features
from penstock.errors import ConfigError, StreamError, UrlError
from penstock.model import Pointer, check_topic_name
from penstock.model.record import is_topic_name
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.pulsar.client import TLS_SCHEME, PulsarClient
from penstock.streams.pulsar.messages import parse_pointer, pointer_text
from penstock.streams.pulsar.settings import PulsarSettings
from penstock.streams.pulsar.topic_stream import PulsarTopicStream, features_of
from penstock.streams.pulsar.topics import PulsarTopic, topic_names

PORT: Final = 6650
TLS_PORT: Final = 6651


class PulsarBackend:
    """The topics of one namespace of Pulsar. See `PulsarSettings` for what can be set."""

    def __init__(self, url: BackendUrl, settings: PulsarSettings) -> None:
        self.url = url.shown
        self.problem: str | None = None
        self._settings = settings
        self._client = PulsarClient(url, settings)

    @property
    def features(self) -> Features:
        return features_of(self._settings)

    def open_topic(self, topic: str) -> PulsarTopicStream:
        check_topic_name(topic)
        return PulsarTopicStream(topic, self._client, self._settings)

    def topics(self) -> list[str]:
        """The persistent topics of the namespace, without those of Pulsar itself."""
        answers = [*self._listed(""), *self._listed("/partitioned")]
        return [name for name in topic_names(answers) if is_topic_name(name)]

    def create_topic(self, topic: str, partitions: int | None = None) -> None:
        check_topic_name(topic)
        count = self._settings.partitions if partitions is None else partitions
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigError(f"partitions={partitions!r} must be an integer >= 1")
        self._topic(topic).create(count)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and all of its records. Raises UnknownTopicError."""
        check_topic_name(topic)
        self._topic(topic).delete()

    def retention_s(self, topic: str) -> float | None:
        """After how many seconds Pulsar may remove a record; None if it keeps them, or cannot tell by their age."""
        minutes, _ = self._topic(topic).retention()
        return 60.0 * minutes if minutes > 0 else None

    def pointer_text(self, pointer: Pointer) -> str:
        return pointer_text(pointer)

    def parse_pointer(self, text: str) -> Pointer:
        return parse_pointer(text)

    def check_reachable(self) -> None:
        self._client.check_accepts(self._settings.timeout_s)
        self._listed("")
        self._client.check_login()

    def check_there(self, timeout_s: float) -> None:
        self._client.check_accepts(timeout_s)

    def check_usable(self) -> None:
        """Broken connections are replaced, so no problem lasts."""

    def close(self) -> None:
        self._client.close()

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
