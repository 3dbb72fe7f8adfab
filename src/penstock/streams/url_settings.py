"""Settings of librdkafka from a kafka: URL and its file.

The URL names the file with `?config=FILE`, or else PENSTOCK_KAFKA_CONFIG does, so that passwords stay out of programs,
the shell's history and the process list. The URL overrides the file, and the options of `connect` override both.
Programs, commands, the console and pipelines all connect this way.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from penstock.errors import ConfigError
from penstock.streams.options import OWN, ConnectOptions, Options
from penstock.streams.url import CONFIG, KafkaUrl, kafka_url

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
"""Settings of Kafka's Java client that are common in files, and librdkafka's equivalents."""


def settings_with(where: KafkaUrl) -> dict[str, str]:
    """The settings of the URL and its file. Raises ConfigError that names the wrong setting or file."""
    found: dict[str, str] = {}
    if where.config is not None:
        if where.config:
            found = _read(where.config, f"{CONFIG}= in the URL")
    elif os.environ.get(CONFIG_VARIABLE):
        found = _read(os.environ[CONFIG_VARIABLE], CONFIG_VARIABLE)
    for name, value in where.settings:
        _check(name, "the URL")
        found[name] = value
    return found


def with_settings(where: KafkaUrl, options: Options) -> Options:
    """The options of a connection, with the settings of its URL."""
    settings = {**settings_with(where), **options.librdkafka}
    _check_security(settings)
    return dataclasses.replace(options, librdkafka=settings)


def resolved(url: str, client: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The URL and options for processes on other machines, without this one's files and environment.

    The settings of a kafka: URL move into the options of `connect`. Other URLs are returned unchanged.
    """
    where = kafka_url(url)
    if where is None:
        return url, dict(client)
    settings = settings_with(where)
    if not settings and where.config is None:
        return url, dict(client)
    bare = f"kafka://{where.bootstrap}?{CONFIG}="
    if not settings:
        return bare, dict(client)
    return bare, {**client, "librdkafka": {**settings, **(client.get("librdkafka") or {})}}


def client_with(url: str, client: ConnectOptions | None) -> ConnectOptions:
    """The options of `connect`, with the settings of the URL."""
    found: Any = resolved(url, client or {})[1]
    return cast(ConnectOptions, found)


def _read(path: str, whose: str) -> dict[str, str]:
    """Read lines of NAME=VALUE. Lines that start with # or ! are comments, as in Java's properties files."""
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(f"the settings file {path}, named by {whose}, cannot be read: {reason}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(_COMMENTS):
            continue
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise ConfigError(f"line {number} of {path} is not NAME=VALUE, such as security.protocol=SASL_SSL")
        if name in found:
            raise ConfigError(f"line {number} of {path} repeats {name}")
        _check(name, f"line {number} of {path}")
        found[name] = value
    return found


def _check_security(settings: Mapping[str, Any]) -> None:
    """Refuse settings of TLS and login that librdkafka would ignore, and connect without."""
    protocol = str(settings.get("security.protocol") or "plaintext").lower()
    for name, value in settings.items():
        is_tls = name.startswith("ssl.") or name == "enable.ssl.certificate.verification"
        is_ignored = (is_tls and not protocol.endswith("ssl")) or (
            name.startswith("sasl.") and not protocol.startswith("sasl")
        )
        if is_ignored and value != "":
            choices = "SSL or SASL_SSL" if is_tls else "SASL_SSL or SASL_PLAINTEXT"
            raise ConfigError(
                f"{name} has no effect with security.protocol={protocol.upper()}: set security.protocol to {choices}, "
                f"or omit {name}"
            )


def _check(name: str, place: str) -> None:
    """Refuse settings that librdkafka would misunderstand. It refuses unknown ones itself."""
    if name in OWN:
        raise ConfigError(f"{place}: the setting {name} {OWN[name]}")
    if name in _OF_JAVA:
        raise ConfigError(f"{place}: {name} is a setting of Kafka's Java client; with librdkafka, use {_OF_JAVA[name]}")
