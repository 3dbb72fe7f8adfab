"""Serdes are what they were made with: so they are compared, and so they go to other processes, as decoders cannot."""

from __future__ import annotations

import functools
from typing import Any


class MadeAgain:
    """Pickled and compared as its class and the arguments of its constructor, which that leaves in `made_with`."""

    made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __reduce__(self) -> tuple[Any, ...]:
        arguments, options = self.made_with
        return functools.partial(type(self), *arguments, **options), ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.made_with == self.made_with

    def __hash__(self) -> int:
        return hash(type(self))
