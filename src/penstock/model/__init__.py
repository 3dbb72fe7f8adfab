"""The words as types: what is sent, what comes back, where in a stream it stands, and what became of it.

Pure data. Nothing here knows how a stream or a store is reached; every room may use it.
"""

from __future__ import annotations

from penstock.model.checkpoint import (
    Change,
    Checkpoint,
    CheckpointKey,
    Claim,
    Failing,
    Handled,
    Happening,
    Lease,
    Runs,
    Status,
)
from penstock.model.choices import Guarantee, Order
from penstock.model.letter import DeadLetter, LetterFilter, LetterState
from penstock.model.position import POSITION_FORMS, Position, PositionKind
from penstock.model.receipt import Receipt
from penstock.model.record import Batch, Headers, NewRecord, Place, Pointer, Record, header_name
from penstock.model.times import EPOCH, milliseconds

__all__ = [
    "Batch",
    "Change",
    "Checkpoint",
    "CheckpointKey",
    "Claim",
    "DeadLetter",
    "EPOCH",
    "Failing",
    "Guarantee",
    "Handled",
    "Happening",
    "Headers",
    "Lease",
    "LetterFilter",
    "LetterState",
    "NewRecord",
    "Order",
    "POSITION_FORMS",
    "Place",
    "Pointer",
    "Position",
    "PositionKind",
    "Receipt",
    "Record",
    "Runs",
    "Status",
    "header_name",
    "milliseconds",
]
