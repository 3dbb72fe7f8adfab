"""Pickling and comparing serdes by their constructor arguments, because their decoders cannot be pickled."""

from __future__ import annotations

import functools
from typing import Any


class MadeAgain:
    """Pickled and compared by its class and its constructor arguments, which the constructor stores in `made_with`."""

    made_with: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})

    def __reduce__(self) -> tuple[Any, ...]:
        arguments, options = self.made_with
        return functools.partial(type(self), *arguments, **options), ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.made_with == self.made_with

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
