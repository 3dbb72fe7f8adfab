"""Databases and streams kept in sync: change data capture in and out, tables, event sourcing, outbox and inbox.

`Capture` reads the rows of a database's tables and every later change, and writes each table to a compacted topic.
`Applier` writes the changes of such a topic to a table, and `compare` finds what differs; `changes` decodes them.
`Table` keeps the rows of such a topic, or of any other keyed topic, in this process. `events` has aggregates whose
state is a fold of their events. `Outbox` sends events in the transaction of the application's rows; `Inbox` makes a
consumer's effects happen once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.tables.cdc import Capture as Capture
    from penstock.tables.cdc import CaptureProgress as CaptureProgress
    from penstock.tables.outbox import Inbox as Inbox
    from penstock.tables.outbox import Outbox as Outbox
    from penstock.tables.outbox import Relay as Relay
    from penstock.tables.table import Table as Table

_HOMES = {
    "Capture": "penstock.tables.cdc",
    "CaptureProgress": "penstock.tables.cdc",
    "Inbox": "penstock.tables.outbox",
    "Outbox": "penstock.tables.outbox",
    "Relay": "penstock.tables.outbox",
    "Table": "penstock.tables.table",
}

__all__ = ["Capture", "CaptureProgress", "Inbox", "Outbox", "Relay", "Table"]


def __getattr__(name: str) -> object:
    """Load a name on first use: the Python workers of Spark need `changes` alone."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
