"""Fetch sessions: a consumer names its partitions once, and after that only changes."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.wire.fetch import FetchAnswer, FetchPartition, FetchRequest
from penstock.broker.wire.produce import TopicKey

NO_SESSION: Final = 0
_FINAL_EPOCH: Final = -1
_FIRST_EPOCH: Final = 0
_MAX_EPOCH: Final = 0x7FFFFFFF
_MAX_ID: Final = 0x7FFFFFFF
_MAX_PARTITIONS: Final = 200_000
"""How many partitions all sessions remember together, about 50 MB."""

PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True, eq=False)
class SessionPartition:
    """A partition of a session, and what its client was last told."""

    wanted: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def is_news(self, answer: FetchAnswer) -> bool:
        """Whether the response must include this partition; notes that it did."""
        news = (
            bool(answer.length)
            or answer.error_code != 0
            or answer.high_watermark != self.high_watermark
            or answer.log_start_offset != self.log_start_offset
        )
        if news:
            self.high_watermark = answer.high_watermark if not answer.error_code else -1
            self.log_start_offset = answer.log_start_offset if not answer.error_code else -1
        return news


@dataclass(slots=True, eq=False)
class FetchSession:
    uses_topic_ids: bool
    id: int = NO_SESSION
    epoch: int = 1
    incremental: bool = False
    """Whether this is a later request of a session, which gets only what has changed."""
    partitions: OrderedDict[PartitionKey, SessionPartition] = field(default_factory=OrderedDict)
    """In serving order; one that returned records goes to the end, so that none starves."""

    def update(self, request: FetchRequest) -> None:
        for topic, numbers in request.forgotten:
            for number in numbers:
                self.partitions.pop((topic, number), None)
        for topic, wanted in request.topics:
            for partition in wanted:
                known = self.partitions.get((topic, partition.partition))
                if known is None:
                    self.partitions[topic, partition.partition] = SessionPartition(partition)
                else:
                    known.wanted = partition


class FetchSessions:
    """The remembered sessions: at most `limit`, with at most `partition_limit` partitions together.

    The least recently used one makes room. Ids are random, so that a client with an id from before a restart does not
    continue the session of another.
    """

    def __init__(self, limit: int, partition_limit: int = _MAX_PARTITIONS) -> None:
        self._limit = limit
        self._partition_limit = partition_limit
        self._partition_count = 0
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest) -> FetchSession:
        """The session of a request. A session that is not remembered has the id 0.

        Raises ProtocolError for a session that is unknown, out of step, or switches between topic names and ids; the
        client then starts over.
        """
        if request.session_epoch in (_FINAL_EPOCH, _FIRST_EPOCH):
            self._forget(request.session_id)
            session = FetchSession(uses_topic_ids=request.uses_topic_ids)
            session.update(request)
            if request.session_epoch == _FIRST_EPOCH and self._limit:
                self._remember(session)
            return session
        known = self._sessions.get(request.session_id)
        if known is None:
            raise ProtocolError(ErrorCode.fetch_session_id_not_found)
        if known.epoch != request.session_epoch:
            raise ProtocolError(ErrorCode.invalid_fetch_session_epoch)
        if known.uses_topic_ids != request.uses_topic_ids:
            raise ProtocolError(ErrorCode.fetch_session_topic_id_error)
        known.epoch = 1 if known.epoch == _MAX_EPOCH else known.epoch + 1
        known.incremental = True
        self._partition_count -= len(known.partitions)
        known.update(request)
        self._partition_count += len(known.partitions)
        if known.partitions:
            self._sessions.move_to_end(known.id)
            self._make_room()
        else:
            self._forget(known.id)
        return known

    def _remember(self, session: FetchSession) -> None:
        session.id = secrets.randbelow(_MAX_ID) + 1
        while session.id in self._sessions:
            session.id = secrets.randbelow(_MAX_ID) + 1
        self._sessions[session.id] = session
        self._partition_count += len(session.partitions)
        self._make_room()

    def _make_room(self) -> None:
        while len(self._sessions) > self._limit or self._partition_count > self._partition_limit:
            self._forget(next(iter(self._sessions)))

    def _forget(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.id = NO_SESSION
            self._partition_count -= len(session.partitions)
