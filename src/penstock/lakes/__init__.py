"""Tables of a data lake, Delta and Iceberg, written exactly-once without Spark or a JVM.

Records of a topic come in, or batches of a pipeline; rows of a table go out. Each commit stores, together with its
rows, up to where they were read: `LakeTable` names a table, `LakeSink` fills it from a topic.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.errors import MissingExtraError

try:
    import pyarrow  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "pyarrow":
        raise
    raise MissingExtraError("penstock.lakes", "delta") from error

if TYPE_CHECKING:
    from penstock.lakes.commits import LakeCommit as LakeCommit
    from penstock.lakes.formats import Compaction as Compaction
    from penstock.lakes.sink import LakeSink as LakeSink
    from penstock.lakes.table import LakeTable as LakeTable
    from penstock.lakes.writing import Delete as Delete

_HOMES = {
    "Compaction": "formats",
    "Delete": "writing",
    "LakeCommit": "commits",
    "LakeSink": "sink",
    "LakeTable": "table",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """Load a name on first use: pipelines need tables, but no sinks."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
