"""Types that signatures of `penstock` mention, for the annotations of programs: options, callbacks and reports.

Nothing here is needed to call the library. `penstock.abc` has the types of the extension points, and
`penstock.spark.typing` those of pipelines.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from penstock.consuming.consumer import Commit, OnCommit
from penstock.consuming.deadlines.analyser import OnLate
from penstock.consuming.deadlines.call import Result, Why
from penstock.consuming.deadlines.gather import AnswerTo, GatherOptions, Judge
from penstock.consuming.deadlines.parallel import Deadline
from penstock.consuming.deadlines.statistics import AnalyserStatistics, DeadlineStatistics, Percentiles
from penstock.consuming.destinations import Destination
from penstock.consuming.handlers import Middleware
from penstock.consuming.health import Health, PartitionHealth
from penstock.consuming.options import (
    GuaranteeChoice,
    HandlerOptions,
    IdOf,
    OrderChoice,
    PollOptions,
    PositionChoice,
    Rebalanced,
)
from penstock.dead_letters.holding import Hold
from penstock.dead_letters.redriving import RedriveReport, Timestamps
from penstock.model import LetterState, PositionKind
from penstock.producing.counts import ProducerStats
from penstock.producing.partitioners import Partitioner
from penstock.producing.settings import SpoolFlush, WhenFull
from penstock.serde.plain import NewHeaders
from penstock.serde.registry.framing import SubjectName
from penstock.serde.registry.schema import Reference, RegisteredSchema, Schema, SchemaKind
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
    from penstock.lakes.commits import PointerSpans
    from penstock.lakes.writing import OpenTable
    from penstock.querying.database import QueryResult, TopicDatabase
    from penstock.querying.values import Undecodable
    from penstock.tables.apply.comparing import Drift, DriftedRow
    from penstock.tables.cdc.records import CaptureFormat
    from penstock.tables.cdc.source import SnapshotMode, TableProgress
    from penstock.tables.changes import ChangeFormat
    from penstock.tables.outbox.outbox import OutboxTransaction

_LAZY = {
    "CaptureFormat": "penstock.tables.cdc.records",
    "ChangeFormat": "penstock.tables.changes",
    "Drift": "penstock.tables.apply.comparing",
    "DriftedRow": "penstock.tables.apply.comparing",
    "OpenTable": "penstock.lakes.writing",
    "OutboxTransaction": "penstock.tables.outbox.outbox",
    "PointerSpans": "penstock.lakes.commits",
    "QueryResult": "penstock.querying.database",
    "SnapshotMode": "penstock.tables.cdc.source",
    "TableProgress": "penstock.tables.cdc.source",
    "TopicDatabase": "penstock.querying.database",
    "Undecodable": "penstock.querying.values",
}

__all__ = [
    "AnalyserStatistics",
    "AnswerTo",
    "CaptureFormat",
    "ChangeFormat",
    "Commit",
    "ConnectOptions",
    "Deadline",
    "DeadlineStatistics",
    "Decode",
    "Destination",
    "Drift",
    "DriftedRow",
    "GatherOptions",
    "GuaranteeChoice",
    "HandlerOptions",
    "Health",
    "Hold",
    "IdOf",
    "Judge",
    "LetterState",
    "Loaded",
    "Middleware",
    "NewHeaders",
    "OnChange",
    "OnCommit",
    "OnLate",
    "OpenTable",
    "OrderChoice",
    "OutboxTransaction",
    "PartitionHealth",
    "Partitioner",
    "Percentiles",
    "PointerSpans",
    "PollOptions",
    "PositionChoice",
    "PositionKind",
    "ProducerStats",
    "QueryResult",
    "Rebalanced",
    "RedriveReport",
    "Reference",
    "RegisteredSchema",
    "Result",
    "Schema",
    "SchemaKind",
    "SendOptions",
    "Setting",
    "SnapshotMode",
    "SpoolFlush",
    "Start",
    "StoredEvent",
    "SubjectName",
    "TableChange",
    "TableFreshness",
    "TableProgress",
    "TableServer",
    "TableSnapshot",
    "Timestamps",
    "TopicChoice",
    "TopicDatabase",
    "Undecodable",
    "When",
    "WhenFull",
    "Why",
]


def __getattr__(name: str) -> object:
    """What needs an extra is imported when it is used."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
