"""Fetch sessions: a consumer of many partitions says once which, and after that only what has changed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.wire.fetch import FetchAnswer, FetchPartition, FetchRequest
from penstock.broker.wire.produce import TopicKey

NO_SESSION: Final = 0
_FINAL_EPOCH: Final = -1
_FIRST_EPOCH: Final = 0
_MAX_EPOCH: Final = 0x7FFFFFFF

PartitionKey = tuple[TopicKey, int]


class SessionPartition:
    """A partition of a session, and what its client was last told of it."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1

    def is_news(self, answer: FetchAnswer) -> bool:
        """Whether the client has to hear of this answer at all; remembers that it did."""
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


class FetchSession:
    __slots__ = ("epoch", "id", "incremental", "partitions")

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self.epoch = 1
        self.incremental = False
        """Whether the request at hand is a later one of a session, to be answered with what has changed only."""
        self.partitions: OrderedDict[PartitionKey, SessionPartition] = OrderedDict()
        """In the order in which they are served; one that gave records goes to the end, so that none starves."""

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
    """Those that are remembered, at most `limit`; the one used least recently makes room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: FetchRequest) -> FetchSession:
        """The session that a request belongs to. One that is not remembered has the id 0.

        Raises ProtocolError for a session that is unknown or has moved on; the client then starts over.
        """
        if request.session_epoch in (_FINAL_EPOCH, _FIRST_EPOCH):
            self._sessions.pop(request.session_id, None)
            session = FetchSession(NO_SESSION)
            session.update(request)
            if request.session_epoch == _FIRST_EPOCH and self._limit:
                self._remember(session)
            return session
        known = self._sessions.get(request.session_id)
        if known is None:
            raise ProtocolError(ErrorCode.fetch_session_id_not_found)
        if known.epoch != request.session_epoch:
            raise ProtocolError(ErrorCode.invalid_fetch_session_epoch)
        known.epoch = 1 if known.epoch == _MAX_EPOCH else known.epoch + 1
        known.incremental = True
        known.update(request)
        self._sessions.move_to_end(known.id)
        return known

    def _remember(self, session: FetchSession) -> None:
        self._last_id = self._last_id % _MAX_EPOCH + 1
        session.id = self._last_id
        self._sessions[session.id] = session
        while len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)
