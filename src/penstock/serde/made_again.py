"""Serdes go to other processes as what they were made with: decoders and connections cannot travel."""

from __future__ import annotations

import functools
from typing import Any


class MadeAgain:
    """Pickled as its class and the arguments of its constructor, which the constructor leaves in `made_with`."""

    made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __reduce__(self) -> tuple[Any, ...]:
        arguments, options = self.made_with
        return functools.partial(type(self), *arguments, **options), ()
