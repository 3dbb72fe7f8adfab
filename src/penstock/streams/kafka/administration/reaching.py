"""Checks whether brokers can be reached, and says what to do if not.

This asks one broker for its versions, over a connection of its own. With TLS or a login, librdkafka connects then, with
the settings that everything else will use, because it supports all of them and reports why it failed.
"""

from __future__ import annotations

import contextlib
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
"""How long the first attempt of librdkafka takes before its errors are checked. It doubles, for distant brokers."""
_FIRST_ROUND_S: Final = 2.0
"""How long each of several brokers is asked in the first round."""
_SHORTEST_S: Final = 0.1
_NO_TOPIC: Final = "__consumer_offsets"
"""A topic that any client may ask for, and that no broker creates for it."""
_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
"""Errors that a retry with the same settings cannot fix."""


def new_admin(bootstrap: str, options: Options, **more: Any) -> AdminClient:
    """An AdminClient. ConfigError names the setting that librdkafka rejected."""
    try:
        return AdminClient({**admin_configuration(bootstrap, options), **more})
    except KafkaException as error:
        reason = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else error
        raise ConfigError(f"librdkafka rejected the configuration: {reason}") from error


def check_reachable(url: KafkaUrl, options: Options) -> None:
    deadline_s = time.monotonic() + options.connect_timeout_s
    security = Security(options.librdkafka)
    check_there(url.hosts, options.connect_timeout_s, is_plain=security.is_plain)
    if not security.is_plain:
        _check_version(url.hosts, security, deadline_s)
        _check_login(url, options, deadline_s)
    elif options.librdkafka:
        new_admin(url.bootstrap, options)


def check_there(hosts: Sequence[Host], timeout_s: float, *, is_plain: bool) -> None:
    """Return once a broker has answered, or, unless `is_plain`, accepted the connection.

    Of several brokers, each is asked for a while only, and longer in the next round: one may be cut off.
    """
    deadline_s = time.monotonic() + timeout_s
    slice_s = timeout_s if len(hosts) == 1 else min(timeout_s, _FIRST_ROUND_S)
    while True:
        problems: list[tuple[Host, OSError | NotKafkaError]] = []
        for host in hosts:
            try:
                patience_s = max(_SHORTEST_S, min(slice_s, deadline_s - time.monotonic()))
                with PlainConnection(host, patience_s) as connection:
                    if is_plain:
                        connection.check_version()
                        connection.cluster_id()
                    return
            except (OSError, NotKafkaError) as error:
                problems.append((host, error))
        silent = [host for host, error in problems if isinstance(error, TimeoutError)]
        if not silent or time.monotonic() >= deadline_s:
            break
        slice_s *= 2
    advice = (
        f"Start a broker there with: penstock serve --listen {hosts[0]}; or use log:./data, which starts its own"
        if len(hosts) == 1
        else "Check that the brokers run and can be reached; `penstock cluster up` starts three on this machine"
    )
    raise BrokerUnavailableError(
        f"{'; '.join(_explain(host, error) for host, error in problems)}. {advice}",
        retriable=any(isinstance(error, OSError) for _, error in problems),
    )


def _check_version(hosts: Sequence[Host], security: Security, deadline_s: float) -> None:
    """Raise BrokerUnavailableError if a broker is too old. It tells its versions to those who have not logged in, too.
    Whatever else is wrong is left to librdkafka, which has all settings and says the reason."""
    for host in hosts:
        patience_s = max(_SHORTEST_S, min(_FIRST_ROUND_S, (deadline_s - time.monotonic()) / 2))
        with contextlib.suppress(OSError, NotKafkaError, ConfigError):
            with PlainConnection(host, patience_s, security.without_login()) as connection:
                connection.check_version()
            return


def _check_login(url: KafkaUrl, options: Options, deadline_s: float) -> None:
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
                f"{url.bootstrap} did not accept this client: {refusal.str()}. Check {_advice(refusal)} in the "
                "settings of the connection",
                retriable=False,
            )
        if time.monotonic() >= deadline_s:
            told = [each.str() for each in heard if each.code() != KafkaError._ALL_BROKERS_DOWN]
            said = f": {told[-1]}" if told else ""
            raise BrokerUnavailableError(
                f"{url.bootstrap} did not answer within {options.connect_timeout_s:g} s{said}. Check that it runs, "
                f"and that its listener is {Security(options.librdkafka).protocol.upper()}, as security.protocol says"
            )


def _advice(refusal: KafkaError) -> str:
    if refusal.code() == KafkaError._SSL:
        return "ssl.ca.location, and that the certificate is for this host,"
    return "sasl.mechanism, sasl.username and sasl.password"


def _explain(host: Host, error: OSError | NotKafkaError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host name of {host} is unknown"
    if isinstance(error, TimeoutError):
        return f"{host} does not answer"
    if isinstance(error, OSError):
        return f"nothing answers at {host} ({error.strerror or error})"
    return (
        f"{error}: it is not a Kafka broker without TLS, or is older than Kafka 0.10. If it needs TLS or a login, use "
        f"kafka://{host}?config=FILE, with security.protocol=SASL_SSL or SSL in the file"
    )
