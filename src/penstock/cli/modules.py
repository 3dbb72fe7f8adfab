"""Python modules that options name, such as `--map shop.mapping:anonymise`."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from penstock.errors import ConfigError


def module_of(name: str, option: str) -> ModuleType:
    """Import a module. The working directory is searched, too, as by `python -m`. Raises ConfigError."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{option}: {name} cannot be imported: {error}") from error
