"""nng: `nng+tcp://HOST:PORT/NAME` and `nng+ipc:/PATH`, as publish/subscribe, pipeline or request and answer.

Input: a URL. Output: a channel. `settings` are those of the URL, `sockets` makes sockets of them, `one_way` has the
patterns without answers, `request` the one with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.channels.endpoints import endpoint_of
from penstock.channels.nng.one_way import CountingNngChannel, NngChannel
from penstock.channels.nng.request import NngRequestChannel
from penstock.channels.nng.settings import NngSettings
from penstock.errors import ConfigError
from penstock.streams.backend_url import parse_backend_url, settings_of

__all__ = ["open_nng"]


def open_nng(url: str, options: Mapping[str, Any]) -> NngChannel | NngRequestChannel:
    """`nng+tcp:` and `nng+ipc:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url)
    endpoint = endpoint_of(where)
    settings = settings_of(where, NngSettings, options)
    if settings.tls and endpoint.transport != "tcp":
        raise ConfigError(f"{endpoint.shown}: tls is for nng+tcp")
    if settings.pattern == "request":
        return NngRequestChannel(endpoint, settings)
    if settings.pattern == "pubsub" and settings.format == "penstock":
        return CountingNngChannel(endpoint, settings)
    return NngChannel(endpoint, settings)
