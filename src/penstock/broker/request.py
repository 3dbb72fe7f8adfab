"""A parsed request, and the forms of its handler's answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.broker.wire.schema import decode_request, encode_response

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Fields = Mapping[str, Any]
"""The fields of a response by kio's names, nested arrays as lists of further Fields.

A handler fills in the fields of every version; the encoder takes those of the request's version and uses the protocol's
default for missing ones. A name that no version of the API has raises.
"""


@dataclass(frozen=True, slots=True)
class Request:
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    body: Any
    """The kio entity of this version, or the bytes of a long one before it is decoded. Fields of other versions are
    absent: read them with `get`."""

    def decoded(self, max_entries: int) -> Request:
        return replace(self, body=decode_request(self.api_key, self.version, self.body, max_entries))

    def encoded(self, answer: Fields) -> bytes:
        return encode_response(self.api_key, self.version, self.correlation_id, answer)

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self.body, name, default)


Result = TypeVar("Result")
Steps = Generator[None, None, Result]
"""Work in small steps, with a `yield` after each, so that other requests can run in between."""

Handler = Callable[["Broker", Request], "Fields | Steps[Fields] | Awaitable[Fields]"]
"""Answers one request. A handler that must wait is a coroutine function; the connection keeps the responses in order.
One whose work grows with the request is a generator function that yields after each item."""

Apis = Mapping[int, tuple[Handler, int, int]]
"""By API key: the handler, and the lowest and highest version that it answers."""

SLICE_S: Final = 0.005
"""How long one request may run before other requests run."""


def run_slice(work: Steps[Result]) -> Result | None:
    """The result, if one time slice was enough for it."""
    until_s = time.monotonic() + SLICE_S
    try:
        while time.monotonic() < until_s:
            next(work)
    except StopIteration as done:
        result: Result = done.value
        return result
    return None


async def run_in_slices(work: Steps[Result]) -> Result:
    """Run the steps to the end, yielding to the event loop after every time slice."""
    while True:
        result = run_slice(work)
        if result is not None:
            return result
        await asyncio.sleep(0)


async def finished(result: Fields | Steps[Fields] | Awaitable[Fields]) -> Fields:
    if isinstance(result, Generator):
        return await run_in_slices(result)
    return await result if isinstance(result, Awaitable) else result
