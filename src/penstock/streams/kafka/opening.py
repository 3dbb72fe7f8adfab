"""`kafka:` URLs, as `penstock.streams.schemes` finds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError
from penstock.streams.kafka.stream import KafkaStream
from penstock.streams.options import options_of
from penstock.streams.url import kafka_url
from penstock.streams.url_settings import with_settings


def open_kafka(url: str, given: Mapping[str, Any]) -> KafkaStream:
    """The brokers of a `kafka:` URL, without asking them yet."""
    where = kafka_url(url)
    assert where is not None
    options = options_of(given)
    if given.get("exit_when_idle_s") is not None:
        raise ConfigError(
            f"exit_when_idle_s is for log: URLs; the brokers of {where.bootstrap} are started and stopped elsewhere"
        )
    return KafkaStream(url, where.bootstrap, with_settings(where, options))
