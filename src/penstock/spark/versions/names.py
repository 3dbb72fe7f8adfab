"""What versions of a pipeline are called, and what their topics, tables, folders and checkpoints are called for it.

The first version is v1. It has the plain names, as nobody thinks of versions before there is a second one: topic
`spend` and checkpoint `usage`, where version v2 has `spend.v2` and `usage@v2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from penstock.errors import ConfigError

FIRST: Final = "v1"
By = Literal["key", "record"]
"""How the results of two versions are compared: by key where the last one of a key holds, else record by record."""
_VERSION: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,29}", re.ASCII)
_NUMBERED: Final = re.compile(r"v(\d{1,6})")
_SEPARATOR: Final = "@"
"""No name of a pipeline has it in it, so that version v2 of `usage` is never mixed up with a pipeline `usage.v2`."""


def check_version(version: str) -> str:
    """ConfigError unless it can be a part of names of topics, tables and folders."""
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ConfigError(
            f"version {version!r} is not allowed: use up to 30 lower-case letters, digits, dashes and underscores, "
            "such as v2"
        )
    return version


def is_first(version: str | None) -> bool:
    return version is None or version == FIRST


def output_topic(topic: str, version: str | None) -> str:
    """The topic that this version of a pipeline writes where the program says `topic`."""
    return topic if version is None or is_first(version) else f"{topic}.{check_version(version)}"


def checkpoint_name(pipeline: str, version: str | None) -> str:
    """The name of the folder in which this version of a pipeline keeps its checkpoints."""
    if version is None or is_first(version):
        return pipeline
    return f"{pipeline}{_SEPARATOR}{check_version(version)}"


def version_of_checkpoint(pipeline: str, name: str) -> str | None:
    """Which version of the pipeline a folder of this name belongs to; None: to no version of this pipeline."""
    if name == pipeline:
        return FIRST
    owner, separator, version = name.partition(_SEPARATOR)
    return version if separator and owner == pipeline and _VERSION.fullmatch(version) else None


def next_version(known: Iterable[str]) -> str:
    """The version to come after these: v2 after v1, and after versions that have no number."""
    numbers = [int(found[1]) for found in map(_NUMBERED.fullmatch, known) if found]
    return f"v{max([1, *numbers]) + 1}"


def by_age(version: str) -> tuple[int, str]:
    """What versions are sorted by: v2 before v10, and those without a number behind those with one."""
    found = _NUMBERED.fullmatch(version)
    return (int(found[1]), "") if found else (10**6, version)
