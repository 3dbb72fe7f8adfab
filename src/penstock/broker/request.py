"""A request that has been read from a connection, and what a handler makes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Fields = Mapping[str, Any]
"""The fields of a response by kio's names, nested arrays as lists of further Fields.

A handler fills in the fields of every version; the encoder takes those that the request's version has and uses the
protocol's default for those that are missing. A name that no version of the API has is a mistake and raises.
"""


@dataclass(frozen=True, slots=True)
class Request:
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    body: Any
    """The kio entity of this version. Fields that only other versions have are absent: read them with `get`."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self.body, name, default)


Handler = Callable[["Broker", Request], "Fields | Awaitable[Fields]"]
"""Answers one request. A handler that must wait is a coroutine function; the connection keeps the answers in order."""
