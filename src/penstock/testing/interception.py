"""Wrappers that do nothing but ask somebody before each call: what faults and crashes are built upon.

`InterceptedStream(stream, between)` is the stream, with `between.call("read", stream.read, ...)` in the place of each
`stream.read(...)`. The names of the operations are those of the methods in `penstock.abc`, and where something happens
inside of a call or behind it, a name of its own: see each wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Interceptor(Protocol):
    """Who stands between a caller and a backend. May be called from any thread."""

    def call(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, or do something else; also before it, or after it."""


def nothing() -> None:
    """What is called for an operation that only tells that something has happened."""
