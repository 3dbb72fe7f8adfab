"""From settings of librdkafka to those of Kafka's Java client, for Spark's own connector.

Settings without a counterpart are refused: one that is silently dropped may be the one that encrypts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.errors import ConfigError

_SAME: Final = frozenset(
    {
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.ms",
        "sasl.kerberos.service.name",
    }
)
_RENAMED: Final = {
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.mechanism": "sasl.mechanism",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "socket.timeout.ms": "request.timeout.ms",
    "ssl.key.password": "ssl.key.password",
}
_SASL_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_TRANSLATED: Final = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.endpoint.identification.algorithm",
        "sasl.username",
        "sasl.password",
        "security.protocol",
    }
)


def java_settings(librdkafka: Mapping[str, Any]) -> dict[str, str]:
    """The equivalent settings of the Java client. ConfigError names a setting without a counterpart."""
    given = {name: str(value) for name, value in librdkafka.items()}
    java: dict[str, str] = {}
    for name, value in given.items():
        if name in _SAME:
            java[name] = value
        elif name in _RENAMED:
            java[_RENAMED[name]] = value
        elif name not in _TRANSLATED:
            raise ConfigError(
                f'the librdkafka setting {name!r} has no counterpart in Kafka\'s Java client: use engine="python", or '
                "omit it"
            )
    if "security.protocol" in given:
        java["security.protocol"] = given["security.protocol"].upper()
    if "ssl.endpoint.identification.algorithm" in given:
        algorithm = given["ssl.endpoint.identification.algorithm"]
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    _translate_certificates(given, java)
    _translate_login(given, java)
    return java


def _translate_certificates(given: Mapping[str, str], java: dict[str, str]) -> None:
    authorities = _content(given, "ssl.ca")
    if authorities is not None:
        java["ssl.truststore.type"] = "PEM"
        java["ssl.truststore.certificates"] = authorities
    certificate, key = _content(given, "ssl.certificate"), _content(given, "ssl.key")
    if (certificate is None) != (key is None):
        raise ConfigError("a client certificate needs both ssl.certificate.location and ssl.key.location")
    if certificate is not None and key is not None:
        java["ssl.keystore.type"] = "PEM"
        java["ssl.keystore.certificate.chain"] = certificate
        java["ssl.keystore.key"] = key


def _content(given: Mapping[str, str], name: str) -> str | None:
    """The content of a PEM file or setting. The content is sent, as other hosts may not have the file."""
    if f"{name}.pem" in given:
        return given[f"{name}.pem"]
    path = given.get(f"{name}.location")
    if path is None:
        return None
    try:
        return Path(path).read_text()
    except OSError as error:
        raise ConfigError(f"{name}.location {path!r} cannot be read: {error.strerror}") from error


def _translate_login(given: Mapping[str, str], java: dict[str, str]) -> None:
    if "sasl.username" not in given and "sasl.password" not in given:
        return
    mechanism = java.get("sasl.mechanism", "").upper()
    module = _SASL_MODULES.get(mechanism)
    if module is None:
        raise ConfigError(
            f"sasl.username and sasl.password need sasl.mechanism {', '.join(_SASL_MODULES)}, not {mechanism!r}"
        )
    user, password = (_quoted(given.get(f"sasl.{part}", "")) for part in ("username", "password"))
    java["sasl.mechanism"] = mechanism
    java["sasl.jaas.config"] = f"{module} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
