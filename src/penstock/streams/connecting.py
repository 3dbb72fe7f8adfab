"""`connect`: from a URL to a connection; `open_streams`: from a URL to what the rest of the library builds upon."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Unpack

from penstock.abc import Streams
from penstock.errors import ConfigError
from penstock.streams.embedded.lifeline import Lifeline
from penstock.streams.embedded.starting import find_or_start
from penstock.streams.kafka.connection import Connection
from penstock.streams.kafka.reaching import check_reachable
from penstock.streams.memory.connection import MemoryConnection
from penstock.streams.options import ConnectOptions, Options, options_of
from penstock.streams.url import Host, LogUrl, MemoryUrl, parse_url
from penstock.streams.url_settings import with_settings

_DEFAULTS = Options()


def connect(url: str, **given: Unpack[ConnectOptions]) -> Connection:
    """Connect to a stream: `log:./data` for the log in a folder, `kafka://host:9092` for brokers that are running,
    `memory:name` for records in this process that are gone when it ends.

    How brokers are told that want TLS or a login stands at `penstock.streams.url_settings`.

    For a `log:` URL the broker of the folder is found, or started if there is none; it ends by itself once no client
    has been connected for `exit_when_idle_s`, and is started again if it dies while this connection is open. What the
    other options mean stands at `penstock.streams.options.Options`.

    Raises UrlError for a URL that is not understood, ConfigError for an option that is not allowed, and
    BrokerUnavailableError when no broker could be reached or started within `connect_timeout_s`.
    """
    where = parse_url(url)
    options = options_of(given)
    exit_when_idle_s = given.get("exit_when_idle_s")
    if isinstance(where, MemoryUrl):
        _check_no_options(url, options, exit_when_idle_s)
        return MemoryConnection(where.name, options)
    if isinstance(where, LogUrl):
        found = find_or_start(
            where.folder,
            exit_when_idle_s=options.exit_when_idle_s,
            deadline_s=time.monotonic() + options.connect_timeout_s,
        )
        lifeline = Lifeline(where.folder, found, options)
        bootstrap = str(Host(found.address.host, found.address.port))
        return Connection(url, bootstrap, options, lifeline)
    if exit_when_idle_s is not None:
        raise ConfigError(
            f"exit_when_idle_s is for log: URLs; the brokers of {where.bootstrap} are started and stopped elsewhere"
        )
    options = with_settings(where, options)
    check_reachable(where, options)
    return Connection(url, where.bootstrap, options)


def open_streams(url: str, **options: Any) -> Streams:
    """The system of streams at a URL, whatever its kind. `options` are those of `connect`, and the errors are, too."""
    return connect(url, **options)


def _check_no_options(url: str, options: Options, exit_when_idle_s: float | None) -> None:
    """Memory has no broker that could be told anything. A client id does no harm."""
    for name in (field.name for field in dataclasses.fields(Options) if field.name != "client_id"):
        if getattr(options, name) != getattr(_DEFAULTS, name):
            raise ConfigError(f"{name} means nothing to {url}: leave it away, or choose a log: or kafka: URL")
    if exit_when_idle_s is not None:
        raise ConfigError(f"exit_when_idle_s is for log: URLs; {url} has no broker that could end")
