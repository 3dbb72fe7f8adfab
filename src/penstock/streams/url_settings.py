"""Settings of librdkafka that come with a kafka: URL: those in it, and those in a file.

The file is the one that the URL names, `?config=FILE`, or else the one that PENSTOCK_KAFKA_CONFIG names, so that
passwords stay out of programs, of the shell's history and of the list of processes. What the URL itself says wins over
the file, and the options of `connect` win over both. All that connects does so by what is put together here: programs,
commands, the console and pipelines.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from penstock.errors import ConfigError
from penstock.streams.options import OWN, ConnectOptions, Options
from penstock.streams.url import CONFIG, KafkaUrl, parse_url

CONFIG_VARIABLE: Final = "PENSTOCK_KAFKA_CONFIG"
_COMMENTS: Final = ("#", "!")
_OF_JAVA: Final = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.truststore.password": "ssl.ca.location, a PEM file, which has none",
    "ssl.truststore.type": "ssl.ca.location, which is PEM",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.type": "ssl.keystore.location for PKCS#12, ssl.certificate.location and ssl.key.location for PEM",
}
"""Names of Kafka's Java client that stand in many a file, and what librdkafka has in their place."""


def settings_with(where: KafkaUrl) -> dict[str, str]:
    """What the URL, and the file that goes with it, say. ConfigError names the setting, or the file, that is wrong."""
    found: dict[str, str] = {}
    if where.config is not None:
        if where.config:
            found = _read(where.config, f"{CONFIG}= of the URL")
    elif os.environ.get(CONFIG_VARIABLE):
        found = _read(os.environ[CONFIG_VARIABLE], CONFIG_VARIABLE)
    for name, value in where.settings:
        _check(name, "the URL")
        found[name] = value
    return found


def with_settings(where: KafkaUrl, options: Options) -> Options:
    """The options of a connection, with the settings that come with its URL."""
    settings = settings_with(where)
    return dataclasses.replace(options, librdkafka={**settings, **options.librdkafka}) if settings else options


def resolved(url: str, client: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The same stream for processes that may run elsewhere, without this one's files and environment.

    A kafka: URL comes back without its settings, which have moved into the options of `connect`; others as they are.
    """
    where = parse_url(url)
    if not isinstance(where, KafkaUrl):
        return url, dict(client)
    settings = settings_with(where)
    if not settings and where.config is None:
        return url, dict(client)
    bare = f"kafka://{where.bootstrap}?{CONFIG}="
    if not settings:
        return bare, dict(client)
    return bare, {**client, "librdkafka": {**settings, **(client.get("librdkafka") or {})}}


def client_with(url: str, client: ConnectOptions | None) -> ConnectOptions:
    """The options of `connect`, with the settings that come with a URL."""
    found: Any = resolved(url, client or {})[1]
    return cast(ConnectOptions, found)


def _read(path: str, whose: str) -> dict[str, str]:
    """NAME=VALUE a line. What begins with # or ! is a comment, as in the files of Java's properties."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(f"the settings in {path}, by {whose}, cannot be read: {reason}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(_COMMENTS):
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise ConfigError(f"line {number} of {path} is not NAME=VALUE, such as security.protocol=SASL_SSL")
        if name in found:
            raise ConfigError(f"line {number} of {path} has {name} a second time")
        _check(name, f"line {number} of {path}")
        found[name] = value
    return found


def _check(name: str, place: str) -> None:
    """What librdkafka itself does not know, it refuses by name; this is what it would misunderstand."""
    if name in OWN:
        raise ConfigError(f"{place}: the setting {name} {OWN[name]}")
    if name in _OF_JAVA:
        raise ConfigError(f"{place}: {name} is of Kafka's Java client; librdkafka has {_OF_JAVA[name]}")
