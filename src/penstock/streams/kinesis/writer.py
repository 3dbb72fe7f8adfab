"""Appending: records wait in lanes, and one thread sends them by PutRecords, again where Kinesis refused some."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import (
    BrokerUnavailableError,
    ConnectionClosedError,
    DeliveryError,
    PenstockError,
    UnknownTopicError,
)
from penstock.model import NewRecord, Receipt
from penstock.streams.adapting.append_queue import delivery_error
from penstock.streams.adapting.aws import FOR_NOW, AwsClient, RefusedError, pause_s
from penstock.streams.adapting.stream_base import receipts_for
from penstock.streams.kinesis.encoding import encode
from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.shards import Shards, shard_number

logger = logging.getLogger(__name__)

REQUEST_RECORDS: Final = 500
REQUEST_BYTES: Final = 5 * 1000 * 1000
"""Kinesis' limits for one request; its five MiB include what surrounds the records."""
BUFFER_RECORDS: Final = 20_000
BUFFER_BYTES: Final = 64 * 1024 * 1024
"""How much may wait before `append` does."""


@dataclass(slots=True)
class _Waiting:
    """A record that is not stored yet."""

    entry: dict[str, Any]
    size_bytes: int
    receipt: Receipt
    lane: Hashable
    until_s: float


class RecordWriter:
    """Stores the records of one topic. A lane holds the records that must keep their order.

    PutRecords may store the later of two records and refuse the earlier one. So a request holds at most one record of
    each lane, and the next one is sent when that is stored. Records in the lane None have no order.
    """

    def __init__(self, client: AwsClient, topic: str, shards: Shards, settings: KinesisSettings) -> None:
        self._client = client
        self._topic = topic
        self._shards = shards
        self._settings = settings
        self._changed = threading.Condition()
        self._lanes: dict[Hashable, deque[_Waiting]] = {}
        """In the order of their turns."""
        self._count = 0
        self._bytes = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def append(self, records: Sequence[NewRecord]) -> list[Receipt]:
        if self._is_closed:
            raise ConnectionClosedError(f"topic {self._topic!r} is closed: open it again")
        receipts = receipts_for(self._topic, records)
        for record, receipt in zip(records, receipts, strict=True):
            try:
                waiting = self._prepared(record, receipt)
            except DeliveryError as error:
                receipt.settle(-1, -1, error)
            else:
                self._put(waiting)
        return receipts

    def close(self) -> None:
        """Wait for records under way, as long as delivery may take, and refuse the rest."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._settings.delivery_timeout_s)
        with self._changed:
            left = [waiting for lane in self._lanes.values() for waiting in lane]
            self._lanes.clear()
            self._count = self._bytes = 0
        for waiting in left:
            waiting.receipt.settle(-1, -1, DeliveryError(f"topic {self._topic!r} was closed", retriable=True))

    def _prepared(self, record: NewRecord, receipt: Receipt) -> _Waiting:
        name, data = encode(record)
        size_bytes = len(data) + len(name.encode())
        if size_bytes > self._settings.max_record_bytes:
            raise DeliveryError(
                f"a record of {size_bytes} bytes is too large for stream {self._topic!r}: Kinesis takes "
                f"{self._settings.max_record_bytes} with the key. Split it, or store it elsewhere and send where it "
                "is; max_record_bytes is for streams that allow more"
            )
        entry: dict[str, Any] = {"Data": data, "PartitionKey": name}
        lane: Hashable = record.key
        if record.partition is not None:
            entry["ExplicitHashKey"] = self._hash_key(record.partition)
            lane = (record.partition, record.key)
        until_s = time.monotonic() + self._settings.delivery_timeout_s
        return _Waiting(entry, size_bytes, receipt, lane if self._settings.strict_order else None, until_s)

    def _hash_key(self, partition: int) -> str:
        try:
            shard = self._shards.get(partition)
            if not shard.is_open:
                raise DeliveryError(
                    f"partition {partition} of {self._topic!r} has ended: its shard was split or merged"
                )
        except UnknownTopicError as error:
            raise DeliveryError(str(error)) from error
        except BrokerUnavailableError as error:
            raise DeliveryError(str(error), retriable=error.retriable) from error
        return shard.hash_key

    def _put(self, waiting: _Waiting) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room())  # ends: each record has a deadline
            if self._is_closed:
                raise ConnectionClosedError(f"topic {self._topic!r} is closed: open it again")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"penstock-kinesis-{self._topic}", daemon=True)
                self._thread.start()
            self._lanes.setdefault(waiting.lane, deque()).append(waiting)
            self._count += 1
            self._bytes += waiting.size_bytes
            if self._count == 1:  # else the thread is at work
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return self._count < BUFFER_RECORDS and self._bytes < BUFFER_BYTES

    def _run(self) -> None:
        failures = 0
        while True:  # ends: when it is closed and everything is settled
            with self._changed:
                self._changed.wait_for(lambda: self._lanes or self._is_closed)
                batch = self._batch()
            if not batch:
                return
            try:
                outcomes = self._send(batch)
            except Exception as error:
                logger.exception("records for %s could not be sent", self._client.where)
                outcomes = [delivery_error(error)] * len(batch)
            left = self._settle(batch, outcomes)
            failures = failures + 1 if left == len(batch) else min(left, 1)  # some were stored: a short pause will do
            if failures:
                self._client.sleep(pause_s(failures))

    def _batch(self) -> list[_Waiting]:
        """The records of the next request. They stay in their lanes until they are settled."""
        batch: list[_Waiting] = []
        size_bytes = 0
        for lane, queue in self._lanes.items():
            for waiting in queue:
                if len(batch) == REQUEST_RECORDS or (batch and size_bytes + waiting.size_bytes > REQUEST_BYTES):
                    return batch
                batch.append(waiting)
                size_bytes += waiting.size_bytes
                if lane is not None:
                    break
        return batch

    def _send(self, batch: Sequence[_Waiting]) -> list[dict[str, Any] | DeliveryError]:
        """The answer for each record, or the error because of which it was not stored."""
        try:
            answer = self._client.call(
                "put_records", StreamName=self._topic, Records=[waiting.entry for waiting in batch]
            )
        except RefusedError as error:
            if error.code == "ResourceNotFoundException":
                return [delivery_error(self._shards.unknown())] * len(batch)
            if len(batch) == 1:
                return [delivery_error(error)]
            return [outcome for waiting in batch for outcome in self._send([waiting])]  # one of them is at fault
        except PenstockError as error:
            return [delivery_error(error)] * len(batch)
        return [self._outcome(fields) for fields in answer["Records"]]

    def _outcome(self, fields: dict[str, Any]) -> dict[str, Any] | DeliveryError:
        code = fields.get("ErrorCode")
        if not code:
            return fields
        return DeliveryError(
            f"{self._client.where} refused a record for stream {self._topic!r}: {fields.get('ErrorMessage')} ({code})",
            retriable=code in FOR_NOW,
        )

    def _settle(self, batch: Sequence[_Waiting], outcomes: Sequence[dict[str, Any] | DeliveryError]) -> int:
        """Settle records that are stored, or refused for good. Returns how many must be sent again."""
        now_s = time.monotonic()
        kept: dict[Hashable, list[_Waiting]] = {}
        done: list[tuple[_Waiting, dict[str, Any] | DeliveryError]] = []
        for waiting, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, DeliveryError) and outcome.retriable and now_s < waiting.until_s:
                kept.setdefault(waiting.lane, []).append(waiting)
            else:
                done.append((waiting, outcome))
        with self._changed:
            for waiting in batch:
                lane = self._lanes.get(waiting.lane)
                if lane is None:  # it was closed meanwhile, and everything was settled
                    return 0
                lane.popleft()
            for name, again in kept.items():
                self._lanes[name].extendleft(reversed(again))
            for name in {waiting.lane for waiting in batch}:
                queue = self._lanes.pop(name)
                if queue:
                    self._lanes[name] = queue  # it has its turn last
            self._count -= len(done)
            self._bytes -= sum(waiting.size_bytes for waiting, _ in done)
            self._changed.notify_all()
        for waiting, outcome in done:
            if isinstance(outcome, DeliveryError):
                waiting.receipt.settle(-1, -1, outcome)
            else:
                waiting.receipt.settle(shard_number(outcome["ShardId"]), int(outcome["SequenceNumber"]))
        return len(batch) - len(done)
