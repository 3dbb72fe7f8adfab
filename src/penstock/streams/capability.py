"""The optional protocols of `penstock.abc` that a stream's backend has."""

from __future__ import annotations

from typing import TypeVar

from penstock.abc import Stream

Kind = TypeVar("Kind")


def capability(stream: Stream, kind: type[Kind]) -> Kind | None:
    """The backend of the stream, if it has this protocol; else None."""
    backend = getattr(stream, "backend", stream)
    return backend if isinstance(backend, kind) else None
