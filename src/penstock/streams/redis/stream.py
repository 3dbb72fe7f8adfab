"""A Redis server as `abc.Stream`, and the opener of its URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from penstock.errors import ConfigError, TopicExistsError, UrlError
from penstock.model import Pointer, check_topic_name
from penstock.model.record import is_topic_name
from penstock.streams.adapting.stream_base import ServerStream
from penstock.streams.backend_url import BackendUrl, parse_backend_url, settings_of
from penstock.streams.redis.client import RedisClient, check_persistence, password_of
from penstock.streams.redis.entries import id_of, parse_id
from penstock.streams.redis.settings import TLS_SCHEME, RedisSettings
from penstock.streams.redis.topic_stream import FEATURES, RedisTopicStream, TopicKeys

PORT: Final = 6379
_OLDEST: Final = 7
_KEYS_AT_ONCE: Final = 10_000


class RedisBackend(ServerStream):
    """Redis Streams at one server: topics are keys. See `RedisSettings` for what can be set."""

    features = FEATURES
    _client: RedisClient

    def __init__(self, url: BackendUrl, settings: RedisSettings) -> None:
        if len(url.hosts) != 1:
            raise UrlError(f"{url.shown!r} must name one host: redis://HOST:PORT/DATABASE")
        super().__init__(url, RedisClient(url, settings), settings.partitions)
        self._url = url
        self._settings = settings

    def open_topic(self, topic: str) -> RedisTopicStream:
        check_topic_name(topic)
        return RedisTopicStream(topic, self._client, self._settings)

    def topics(self) -> list[str]:
        """Every stream whose key is the prefix and a topic name. Walks over all keys of the database."""
        prefix = self._settings.prefix
        found: set[str] = set()
        cursor: bytes | str = "0"
        while True:  # ends: SCAN gives the cursor 0 after the last key
            match = ("MATCH", f"{prefix}*") if prefix else ()
            [(cursor, keys)] = self._client.call(("SCAN", cursor, *match, "COUNT", _KEYS_AT_ONCE, "TYPE", "stream"))
            found.update(key.decode(errors="replace")[len(prefix) :] for key in keys)
            if int(cursor) == 0:
                return sorted(filter(is_topic_name, found))

    def pointer_text(self, pointer: Pointer) -> str:
        return id_of(pointer)

    def parse_pointer(self, text: str) -> Pointer:
        return parse_id(text)

    def retention_s(self, topic: str) -> float | None:
        """The retention that this URL sets. A producer with another URL may trim earlier, or not at all."""
        return self._settings.max_age_s

    def checkpoint_url(self, *, in_stream: bool) -> str:
        """The same server, by our store of checkpoints there."""
        if in_stream:
            raise ConfigError(f"{self.url} has no transactions that span records and checkpoints")
        url, settings = self._url, self._settings
        password = password_of(url)
        who = f"{quote(url.user or '', safe='')}:{quote(password, safe='')}@" if password else ""
        defaults = RedisSettings()  # those of the store are the same
        options = {}
        if settings.timeout_s != defaults.timeout_s:
            options["timeout_s"] = f"{settings.timeout_s:g}"
        if settings.wait_replicas != defaults.wait_replicas:
            options["wait_replicas"] = str(settings.wait_replicas)
        if url.scheme == TLS_SCHEME:
            options |= {name: str(value) for name, value in settings.tls.items() if value is not None}
        return f"{url.scheme}://{who}{url.host}/{url.path or '0'}" + (f"?{urlencode(options)}" if options else "")

    def check_reachable(self) -> None:
        version = self._client.info("server").get("redis_version", "")
        major = version.partition(".")[0]
        if major.isdecimal() and int(major) < _OLDEST:
            raise ConfigError(
                f"{self._client.where} is version {version}: redis: URLs need Redis 7.0 or newer, or Valkey"
            )
        if version:  # INFO is permitted
            check_persistence(
                self._client.where, "records", self._client.info("memory"), self._client.info("persistence")
            )

    def _create(self, topic: str, partitions: int) -> None:
        if not self._keys(topic).create(partitions):
            raise TopicExistsError(f"topic {topic!r} exists already in {self._client.where}")

    def _delete(self, topic: str) -> None:
        keys = self._keys(topic)
        if not keys.delete():
            raise keys.unknown()

    def _keys(self, topic: str) -> TopicKeys:
        return TopicKeys(topic, self._client, self._settings)


def open_redis(url: str, options: Mapping[str, Any]) -> RedisBackend:
    """`redis:` and `rediss:` URLs, as `penstock.streams.schemes` finds them."""
    parsed = parse_backend_url(url, PORT)
    if not parsed.hosts:
        raise UrlError(f"{parsed.shown!r} must name a host: {parsed.scheme}://HOST:{PORT}/0")
    return RedisBackend(parsed, settings_of(parsed, RedisSettings, options))
