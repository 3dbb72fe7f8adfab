"""The library's data types: records, positions, receipts, checkpoints and dead letters.

Pure data, without any I/O; every room may import it.
"""

from __future__ import annotations

from penstock.model.checkpoint import Change as Change
from penstock.model.checkpoint import Checkpoint as Checkpoint
from penstock.model.checkpoint import CheckpointKey as CheckpointKey
from penstock.model.checkpoint import Claim as Claim
from penstock.model.checkpoint import Failing as Failing
from penstock.model.checkpoint import Handled as Handled
from penstock.model.checkpoint import HistoryEntry as HistoryEntry
from penstock.model.checkpoint import Lease as Lease
from penstock.model.checkpoint import Runs as Runs
from penstock.model.checkpoint import Status as Status
from penstock.model.choices import Guarantee as Guarantee
from penstock.model.choices import Ordering as Ordering
from penstock.model.letter import DeadLetter as DeadLetter
from penstock.model.letter import DeadLetterFilter as DeadLetterFilter
from penstock.model.letter import LetterState as LetterState
from penstock.model.position import POSITION_FORMS as POSITION_FORMS
from penstock.model.position import Position as Position
from penstock.model.position import PositionKind as PositionKind
from penstock.model.receipt import Receipt as Receipt
from penstock.model.record import DELIVER_AT as DELIVER_AT
from penstock.model.record import UNKNOWN_HEADER as UNKNOWN_HEADER
from penstock.model.record import Batch as Batch
from penstock.model.record import Headers as Headers
from penstock.model.record import NewRecord as NewRecord
from penstock.model.record import Pointer as Pointer
from penstock.model.record import Record as Record
from penstock.model.record import RecordMetadata as RecordMetadata
from penstock.model.record import check_topic_name as check_topic_name
from penstock.model.record import due_ms as due_ms
from penstock.model.record import header_name as header_name
from penstock.model.record import is_topic_name as is_topic_name
from penstock.model.times import EPOCH as EPOCH
from penstock.model.times import milliseconds as milliseconds
