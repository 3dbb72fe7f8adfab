"""Types that signatures of `penstock` mention, for the annotations of programs: options, callbacks and reports.

Nothing here is needed to call the library; `penstock.abc` has the types of the extension points.
"""

from __future__ import annotations

from penstock.consuming.consumer import Commit, OnCommit
from penstock.consuming.deadlines.analyser import OnLate
from penstock.consuming.deadlines.parallel import Deadline
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
from penstock.streams.options import ConnectOptions
from penstock.streams.reading import Start
from penstock.streams.topic_patterns import TopicChoice

__all__ = [
    "Commit",
    "ConnectOptions",
    "Deadline",
    "Decode",
    "GuaranteeChoice",
    "HandlerOptions",
    "Health",
    "Hold",
    "LetterState",
    "Middleware",
    "NewHeaders",
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
    "Schema",
    "SendOptions",
    "SpoolFlush",
    "Start",
    "SubjectName",
    "Timestamps",
    "TopicChoice",
    "WhenFull",
]
