"""Databases as targets: how tests ask them, and have drivers die in their transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.spark.sink.sql import postgres, sqlite

Rows = Callable[[str], list[tuple[Any, ...]]]
"""Asks the database, as somebody else would."""


class Killed(BaseException):
    """Stands for the end of the driver's process."""


def killing(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The driver dies right after this step of a transaction."""
    for module in (postgres, sqlite):
        real = getattr(module._Transaction, step)

        def die(self: Any, *given: Any, real: Any = real) -> None:
            real(self, *given)
            raise Killed

        monkeypatch.setattr(module._Transaction, step, die)
