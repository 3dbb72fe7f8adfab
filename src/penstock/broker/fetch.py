"""Fetch: send records from the segment files, now or when enough have arrived."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from penstock.broker.connection import SENDFILE_FROM_BYTES, Connection, ResponseSlot
from penstock.broker.errors import ProtocolError, code_of
from penstock.broker.fetch_sessions import FetchSession, FetchSessions, SessionPartition
from penstock.broker.wire.fetch import FetchAnswer, FetchPartition, FetchRequest, read_fetch, write_fetch
from penstock.broker.wire.produce import TopicKey
from penstock.errors import PenstockError
from penstock.log.batches.scan import LEADER_EPOCH
from penstock.log.lookup import Slice
from penstock.log.partition import PartitionLog

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_UNKNOWN: Final = -1


class FetchPath:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sessions = FetchSessions(broker.limits.fetch_sessions)

    def handle(
        self, connection: Connection, frame: memoryview, position: int, version: int, correlation_id: int
    ) -> bool:
        """Answer a request; True if it waits for records, and will resume the connection itself."""
        request = read_fetch(frame, position, version, self.broker.limits.request_entries)
        slot = connection.reserve()
        try:
            session = self.sessions.open(request)
        except ProtocolError as error:
            connection.complete(slot, [*write_fetch(correlation_id, version, error.code, 0, [])])
            return False
        return _Attempt(self, connection, slot, correlation_id, version, request, session).start()

    def find(self, topic_key: TopicKey, number: int) -> PartitionLog | ErrorCode:
        """The partition, or why there is none. Not an exception: a request may name very many unknown ones."""
        topics = self.broker.topics
        if isinstance(topic_key, uuid.UUID):
            topic = topics.by_id(topic_key)
            if topic is None:
                return ErrorCode.unknown_topic_id
        else:
            topic = topics.get(topic_key.decode(errors="replace"))
        if topic is None or not 0 <= number < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        return topic.partitions[number]


class _Attempt:
    """One request: tried at once, and again whenever records arrive, until there are enough or time is up."""

    __slots__ = (
        "_connection",
        "_correlation_id",
        "_logs",
        "_path",
        "_request",
        "_scheduled",
        "_session",
        "_slot",
        "_timer",
        "_version",
        "_waiting",
    )

    def __init__(
        self,
        path: FetchPath,
        connection: Connection,
        slot: ResponseSlot,
        correlation_id: int,
        version: int,
        request: FetchRequest,
        session: FetchSession,
    ) -> None:
        self._path = path
        self._connection = connection
        self._slot = slot
        self._correlation_id = correlation_id
        self._version = version
        self._request = request
        self._session = session
        self._logs: list[PartitionLog] = []
        self._scheduled = False
        self._waiting = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> bool:
        found, total, urgent = self._collect()
        if urgent or total >= self._request.min_bytes or self._request.max_wait_ms <= 0 or not self._session.partitions:
            self._answer(found, total)
            return False
        self._waiting = True
        self._connection.on_lost = self._stop_waiting
        self._timer = self._path.broker.loop.call_later(self._request.max_wait_ms / 1000, self._give_up)
        for log in self._logs:
            log.waiters.add(self._wake)
        return True

    def _wake(self) -> None:
        if not self._scheduled and self._waiting:
            self._scheduled = True
            self._path.broker.loop.call_soon(self._again)

    def _again(self) -> None:
        self._scheduled = False
        if not self._waiting:
            return
        if self._connection.closed:
            self._stop_waiting()
            return
        found, total, urgent = self._collect()
        if urgent or total >= self._request.min_bytes:
            self._finish(found, total)

    def _give_up(self) -> None:
        if self._waiting and not self._connection.closed:
            found, total, _ = self._collect()
            self._finish(found, total)
        else:
            self._stop_waiting()

    def _finish(self, found: list[tuple[TopicKey, SessionPartition, FetchAnswer, Slice | None]], total: int) -> None:
        self._stop_waiting()
        self._answer(found, total)
        self._connection.go_on()

    def _stop_waiting(self) -> None:
        self._waiting = False
        self._connection.on_lost = None
        if self._timer is not None:
            self._timer.cancel()
        for log in self._logs:
            log.waiters.discard(self._wake)

    def _collect(self) -> tuple[list[tuple[TopicKey, SessionPartition, FetchAnswer, Slice | None]], int, bool]:
        """The records of each partition, the total size, and whether to answer at once."""
        found: list[tuple[TopicKey, SessionPartition, FetchAnswer, Slice | None]] = []
        budget = min(self._request.max_bytes, self._path.broker.limits.fetch_bytes)
        total = 0
        urgent = False
        first = not self._waiting
        for (topic, _), partition in self._session.partitions.items():
            answer, piece, log = self._read(topic, partition.wanted, budget - total, total == 0)
            if first and log is not None:
                self._logs.append(log)
            total += answer.length
            urgent = urgent or answer.error_code != 0
            found.append((topic, partition, answer, piece))
        return found, total, urgent

    def _read(
        self, topic: TopicKey, wanted: FetchPartition, budget: int, at_least_one: bool
    ) -> tuple[FetchAnswer, Slice | None, PartitionLog | None]:
        log = self._path.find(topic, wanted.partition)
        if isinstance(log, ErrorCode):
            return FetchAnswer(wanted.partition, log, _UNKNOWN, _UNKNOWN, _UNKNOWN, None, 0), None, None
        try:
            if wanted.leader_epoch > LEADER_EPOCH:
                raise ProtocolError(ErrorCode.unknown_leader_epoch)
            stable = log.last_stable_offset
            committed = self._request.read_committed
            limit = stable if committed else log.high_watermark
            if limit < wanted.offset <= log.end_offset:
                # Not decided or not safe yet: there is nothing to read, but no error either.
                limit = wanted.offset
            size = min(wanted.max_bytes, budget)
            log.check_offset(wanted.offset, limit)
            piece = None
            if size > 0 or at_least_one:
                piece = log.read(wanted.offset, size, limit, at_least_one=at_least_one)
        except (PenstockError, OSError) as error:
            answer = FetchAnswer(wanted.partition, code_of(error), _UNKNOWN, _UNKNOWN, _UNKNOWN, None, 0)
            return answer, None, log
        aborted = None
        if committed:
            aborted = log.aborted.between(wanted.offset, piece.end_offset) if piece is not None else []
        length = piece.length if piece is not None else 0
        answer = FetchAnswer(wanted.partition, 0, log.high_watermark, stable, log.log_start_offset, aborted, length)
        return answer, piece, log

    def _answer(self, found: list[tuple[TopicKey, SessionPartition, FetchAnswer, Slice | None]], total: int) -> None:
        topics: list[tuple[TopicKey, list[FetchAnswer]]] = []
        slices: list[Slice | None] = []
        session = self._session
        for topic, partition, answer, piece in found:
            news = partition.is_news(answer)
            if session.incremental and not news:
                continue
            if not topics or topics[-1][0] != topic:
                topics.append((topic, []))
            topics[-1][1].append(answer)
            slices.append(piece)
            if piece is not None:
                session.partitions.move_to_end((topic, answer.partition))
        heads = write_fetch(self._correlation_id, self._version, 0, session.id, topics)
        pieces: list[bytes | Slice] = []
        for head, piece in zip(heads, slices, strict=False):
            pieces.append(head)
            if piece is not None:
                pieces.append(
                    piece
                    if piece.length >= SENDFILE_FROM_BYTES
                    else os.pread(piece.file.fd, piece.length, piece.position)
                )
        pieces.append(heads[-1])
        self._path.broker.stats.fetched_bytes += total
        self._connection.complete(self._slot, pieces)
