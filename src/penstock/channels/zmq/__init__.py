"""ZeroMQ: `zmq+tcp://HOST:PORT/NAME` and `zmq+ipc:/PATH`, as publish/subscribe, pipeline or request and answer.

Input: a URL. Output: a channel. `settings` are those of the URL, `sockets` makes sockets of them, `one_way` has the
patterns without answers, `request` the one with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.channels.endpoints import endpoint_of
from penstock.channels.zmq.one_way import CountingZmqChannel, ZmqChannel
from penstock.channels.zmq.request import ZmqRequestChannel
from penstock.channels.zmq.settings import ZmqSettings
from penstock.streams.backend_url import parse_backend_url, settings_of

__all__ = ["open_zmq"]


def open_zmq(url: str, options: Mapping[str, Any]) -> ZmqChannel | ZmqRequestChannel:
    """`zmq+tcp:` and `zmq+ipc:` URLs, as `penstock.streams.schemes` finds them."""
    where = parse_backend_url(url)
    endpoint = endpoint_of(where)
    settings = settings_of(where, ZmqSettings, options)
    if settings.pattern == "request":
        return ZmqRequestChannel(endpoint, settings)
    if settings.pattern == "pubsub" and settings.format == "penstock":
        return CountingZmqChannel(endpoint, settings)
    return ZmqChannel(endpoint, settings)
