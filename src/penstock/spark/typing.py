"""Types that signatures of `penstock.spark` and its patterns mention, for the annotations of programs."""

from __future__ import annotations

from penstock.spark.durations import Duration
from penstock.spark.errors.row_checks import Otherwise
from penstock.spark.patterns.joins import How, Unmatched
from penstock.spark.patterns.table_joins import HowTables
from penstock.spark.run.settings import Engine
from penstock.spark.run.triggers import Trigger
from penstock.spark.sink.folders.folder import FileFormat
from penstock.spark.sink.functions import BatchFunction
from penstock.spark.sink.sql.shared_state import UpdateFunction
from penstock.spark.sink.target import Delivered, Delivery, OutputMode, QueryIdentity, Target
from penstock.spark.source.admission import Alignment
from penstock.spark.source.read_options import RowDecoder
from penstock.spark.state.context import KeyContext, StateList, StateMap, StateValue, Timers
from penstock.spark.state.stateful_functions import Simulation, StatefulFunction, TimerFunction

__all__ = [
    "Alignment",
    "BatchFunction",
    "Delivered",
    "Delivery",
    "Duration",
    "Engine",
    "FileFormat",
    "How",
    "HowTables",
    "KeyContext",
    "Otherwise",
    "OutputMode",
    "QueryIdentity",
    "RowDecoder",
    "Simulation",
    "StateList",
    "StateMap",
    "StateValue",
    "StatefulFunction",
    "Target",
    "TimerFunction",
    "Timers",
    "Trigger",
    "Unmatched",
    "UpdateFunction",
]
