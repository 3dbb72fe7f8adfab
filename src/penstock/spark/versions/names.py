"""The names of versions of a pipeline, and of their topics, tables, folders and checkpoints.

The first version, v1, has the plain names: topic `spend` and checkpoint `usage`. Version v2 has `spend.v2` and
`usage@v2`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Literal

from penstock.errors import ConfigError

FIRST: Final = "v1"
By = Literal["key", "record"]
"""How the results of two versions are compared: by the last value of each key, or record by record."""
_VERSION: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,29}", re.ASCII)
_NUMBERED: Final = re.compile(r"v(\d{1,6})")
_SEPARATOR: Final = "@"
"""Not allowed in names of pipelines, so version v2 of `usage` is never confused with a pipeline `usage.v2`."""


def check_version(version: str) -> str:
    """Raise ConfigError unless the version can be part of the names of topics, tables and folders."""
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise ConfigError(
            f"version {version!r} is not allowed: use up to 30 lower-case letters, digits, dashes and underscores, "
            "such as v2"
        )
    return version


def output_topic(topic: str, version: str | None) -> str:
    """The topic that this version writes instead of `topic`."""
    return topic if version is None or version == FIRST else f"{topic}.{check_version(version)}"


def checkpoint_name(pipeline: str, version: str | None) -> str:
    """The name of the checkpoint folder of this version."""
    if version is None or version == FIRST:
        return pipeline
    return f"{pipeline}{_SEPARATOR}{check_version(version)}"


def next_version(known: Iterable[str]) -> str:
    """The next version: v2 after v1, and after versions without a number."""
    numbers = [int(found[1]) for found in map(_NUMBERED.fullmatch, known) if found]
    return f"v{max([1, *numbers]) + 1}"


def by_age(version: str) -> tuple[int, str]:
    """The sort key of versions: v2 before v10, and versions without a number last."""
    found = _NUMBERED.fullmatch(version)
    return (int(found[1]), "") if found else (10**6, version)
