"""Types that signatures of `penstock` mention, for the annotations of programs: options, callbacks and reports.

Nothing here is needed to call the library; `penstock.abc` has the types of the extension points.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.consuming.consumer import Commit, OnCommit
from penstock.consuming.deadlines.analyser import OnLate
from penstock.consuming.deadlines.call import Result
from penstock.consuming.deadlines.gather import AnswerTo
from penstock.consuming.deadlines.parallel import Deadline
from penstock.consuming.destinations import Destination
from penstock.consuming.handlers import Middleware
from penstock.consuming.health import Health
from penstock.consuming.options import GuaranteeChoice, HandlerOptions, OrderChoice, PollOptions, PositionChoice
from penstock.dead_letters.holding import Hold
from penstock.dead_letters.redriving import RedriveReport, Timestamps
from penstock.model import LetterState, PositionKind
from penstock.producing.counts import ProducerStats
from penstock.producing.partitioners import Partitioner
from penstock.producing.settings import SpoolFlush, WhenFull
from penstock.serde.plain import NewHeaders
from penstock.serde.registry.framing import SubjectName
from penstock.serde.registry.schema import Reference, RegisteredSchema, Schema
from penstock.serde.topic import SendOptions
from penstock.serde.typed import Decode
from penstock.streams.backend_url import Setting
from penstock.streams.options import ConnectOptions
from penstock.streams.reading import Start
from penstock.streams.topic_patterns import TopicChoice
from penstock.tables.events.store import Loaded, StoredEvent
from penstock.tables.table import TableChange, TableFreshness, TableServer, TableSnapshot
from penstock.tables.table.history import When
from penstock.tables.table.table import OnChange

if TYPE_CHECKING:
    from penstock.querying.database import TopicDatabase
    from penstock.querying.values import Undecodable

_LAZY = {"TopicDatabase": "penstock.querying.database", "Undecodable": "penstock.querying.values"}

__all__ = [
    "AnswerTo",
    "Commit",
    "ConnectOptions",
    "Deadline",
    "Decode",
    "Destination",
    "GuaranteeChoice",
    "HandlerOptions",
    "Health",
    "Hold",
    "LetterState",
    "Loaded",
    "Middleware",
    "NewHeaders",
    "OnChange",
    "OnCommit",
    "OnLate",
    "OrderChoice",
    "Partitioner",
    "PollOptions",
    "PositionChoice",
    "PositionKind",
    "ProducerStats",
    "RedriveReport",
    "Reference",
    "RegisteredSchema",
    "Result",
    "Schema",
    "SendOptions",
    "Setting",
    "SpoolFlush",
    "Start",
    "StoredEvent",
    "SubjectName",
    "TableChange",
    "TableFreshness",
    "TableServer",
    "TableSnapshot",
    "Timestamps",
    "TopicChoice",
    "TopicDatabase",
    "Undecodable",
    "When",
    "WhenFull",
]


def __getattr__(name: str) -> object:
    """What needs an extra is imported when it is used."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
