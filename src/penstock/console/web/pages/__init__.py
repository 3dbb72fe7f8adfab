"""One module per page or part of one. Those with `register(console)` declare routes; the others are parts."""

from __future__ import annotations

import importlib
import pkgutil

from penstock.console.web.frame import Console


def register(console: Console) -> None:
    for found in pkgutil.walk_packages(__path__, f"{__name__}."):
        module = importlib.import_module(found.name)
        if hasattr(module, "register"):
            module.register(console)
