"""Whether brokers can be reached, told at once and in words that say what to do about it.

Where anybody may ask, one of them is asked over a plain connection. Where TLS or a login is wanted, librdkafka is asked
to get in, with the settings that everything else will use: it knows all of them, and tells why it could not.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import BrokerUnavailableError, ConfigError
from penstock.streams.kafka.plain import NotKafkaError, PlainConnection
from penstock.streams.kafka.security import Security
from penstock.streams.kafka.settings import admin_configuration
from penstock.streams.options import Options
from penstock.streams.url import Host, KafkaUrl

_SLICE_S: Final = 0.25
"""After so long it is first looked at what librdkafka has to say while it tries; then later each time, so that one
answer from far away comes in time."""
_NO_TOPIC: Final = "__consumer_offsets"
"""Every broker may be asked for it, and none creates it when it is."""
_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
"""To try again as the same client would end the same way."""


def new_admin(bootstrap: str, options: Options, **more: Any) -> AdminClient:
    """A client for questions. ConfigError names a setting that librdkafka does not take."""
    try:
        return AdminClient({**admin_configuration(bootstrap, options), **more})
    except KafkaException as error:
        reason = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else error
        raise ConfigError(f"librdkafka does not take its settings: {reason}") from error


def check_reachable(url: KafkaUrl, options: Options) -> None:
    """Return once one of the brokers has answered; BrokerUnavailableError says what was tried and what to do."""
    deadline_s = time.monotonic() + options.connect_timeout_s
    security = Security(options.librdkafka)
    check_there(url.hosts, options.connect_timeout_s, is_plain=security.is_plain)
    if not security.is_plain:
        _get_in(url, options, deadline_s)
    elif options.librdkafka:
        new_admin(url.bootstrap, options)


def check_there(hosts: Sequence[Host], timeout_s: float, *, is_plain: bool) -> None:
    """Return once one of them has answered; where not anybody may ask, once one has taken the connection."""
    deadline_s = time.monotonic() + timeout_s
    problems = []
    for host in hosts:
        try:
            with PlainConnection(host, max(0.1, deadline_s - time.monotonic())) as connection:
                if is_plain:
                    connection.cluster_id()
                return
        except (OSError, NotKafkaError) as error:
            problems.append(_explain(host, error))
    raise BrokerUnavailableError(
        f"{'; '.join(problems)}. Start a broker there with: penstock serve --listen {hosts[0]}; "
        "or use log:./data, which starts its own"
    )


def _get_in(url: KafkaUrl, options: Options, deadline_s: float) -> None:
    heard: list[KafkaError] = []
    admin = new_admin(url.bootstrap, options, error_cb=heard.append)
    slice_s = _SLICE_S
    while True:
        try:
            admin.list_topics(_NO_TOPIC, timeout=max(_SLICE_S, min(slice_s, deadline_s - time.monotonic())))
            return
        except KafkaException:
            admin.poll(0)
        slice_s *= 2
        refusal = next((each for each in heard if each.code() in _REFUSALS), None)
        if refusal is not None:
            raise BrokerUnavailableError(
                f"{url.bootstrap} does not let this client in: {refusal.str()}. See {_advice(refusal)} among the "
                "settings of the connection"
            )
        if time.monotonic() >= deadline_s:
            told = [each.str() for each in heard if each.code() != KafkaError._ALL_BROKERS_DOWN]
            said = f": {told[-1]}" if told else ""
            raise BrokerUnavailableError(
                f"{url.bootstrap} did not answer within {options.connect_timeout_s:g} s{said}. See that it runs, and "
                f"that its listener is {Security(options.librdkafka).protocol.upper()}, as security.protocol says"
            )


def _advice(refusal: KafkaError) -> str:
    if refusal.code() == KafkaError._SSL:
        return "ssl.ca.location, and the host, for which the certificate must be,"
    return "sasl.mechanism, sasl.username and sasl.password"


def _explain(host: Host, error: OSError | NotKafkaError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name of {host} is not known"
    if isinstance(error, TimeoutError):
        return f"{host} does not answer"
    if isinstance(error, OSError):
        return f"nothing answers at {host} ({error.strerror or error})"
    return (
        f"{error}: no plaintext Kafka broker is behind it. If it wants TLS or a login, say so: "
        f"kafka://{host}?config=FILE, with security.protocol=SASL_SSL or SSL in the file"
    )
