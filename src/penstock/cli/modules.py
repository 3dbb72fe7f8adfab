"""Python modules that options name, such as `--map shop.mapping:anonymise`."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from penstock.errors import ConfigError
from penstock.serde import Topic


def module_of(name: str, option: str) -> ModuleType:
    """Import a module. The working directory is searched, too, as by `python -m`. Raises ConfigError."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{option}: {name} cannot be imported: {error}") from error


def topics_of(text: str) -> list[Topic[Any]]:
    """The topics that --types names."""
    module, _, name = text.partition(":")
    found = vars(module_of(module, f"--types {text}"))
    topics = [value for key, value in found.items() if isinstance(value, Topic) and name in ("", key)]
    if not topics:
        raise ConfigError(
            f"--types {text}: {module} has no {'variable' if not name else repr(name)} that is a penstock.Topic"
        )
    return topics
