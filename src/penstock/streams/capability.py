"""The optional protocols of `penstock.abc` that a stream's backend has."""

from __future__ import annotations

from typing import TypeVar

from penstock.abc import NamesPointers, Stream
from penstock.model.pointer_forms import PointerText

Kind = TypeVar("Kind")


def capability(stream: Stream, kind: type[Kind]) -> Kind | None:
    """The backend of the stream, if it has this protocol; else None."""
    backend = getattr(stream, "backend", stream)
    return backend if isinstance(backend, kind) else None


def pointer_text_of(stream: Stream | None) -> PointerText:
    """How the pointers of a stream are written. It can be used after the stream is closed."""
    named = None if stream is None else capability(stream, NamesPointers)
    return str if named is None else named.pointer_text
