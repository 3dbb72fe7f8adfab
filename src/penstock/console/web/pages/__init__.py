"""One module for each page or part of one. Those with `register(console)` declare routes; the others are parts."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.console.web.frame import Console


def register(console: Console) -> None:
    """Declare the routes of every page."""
    for found in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{found.name}")
        if hasattr(module, "register"):
            module.register(console)
