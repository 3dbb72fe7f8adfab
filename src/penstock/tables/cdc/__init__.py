"""Change data capture: the rows of a database's tables, and then every change, as records of a stream.

`capture` runs it. A source (`postgres`) yields batches of records, each with the position after it; `delivery` stores
both together, where the stream has transactions; `records` writes rows as Debezium's envelope or flat.
"""

from penstock.tables.cdc.capture import Capture as Capture
from penstock.tables.cdc.requests import request_snapshot as request_snapshot
from penstock.tables.cdc.source import CaptureProgress as CaptureProgress

__all__ = ["Capture", "CaptureProgress", "request_snapshot"]
