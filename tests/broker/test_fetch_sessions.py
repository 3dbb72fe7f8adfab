"""Fetch sessions: what a client says once is remembered, within limits."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.fetch_sessions import FetchSessions, SessionPartition
from penstock.broker.wire.fetch import FetchAnswer, FetchPartition, FetchRequest
from penstock.broker.wire.produce import TopicKey


def request(session_id: int, epoch: int, *offsets: tuple[int, int], forgotten: tuple[int, ...] = ()) -> FetchRequest:
    wanted = [FetchPartition(partition, offset, 1_000, -1) for partition, offset in offsets]
    topics: list[tuple[TopicKey, list[FetchPartition]]] = [(b"orders", wanted)] if wanted else []
    return FetchRequest(500, 1, 1 << 20, False, session_id, epoch, topics, [(b"orders", list(forgotten))])


def offsets_of(sessions: FetchSessions, asked: FetchRequest) -> dict[int, int]:
    return {number: each.wanted.offset for (_, number), each in sessions.open(asked).partitions.items()}


def test_a_later_request_only_names_what_changed() -> None:
    sessions = FetchSessions(10)
    first = sessions.open(request(0, 0, (0, 5), (1, 6)))
    assert not first.incremental
    assert offsets_of(sessions, request(first.id, 1, (0, 9))) == {0: 9, 1: 6}
    assert offsets_of(sessions, request(first.id, 2, (2, 0), forgotten=(1,))) == {0: 9, 2: 0}


def test_a_request_without_a_session_leaves_nothing_behind() -> None:
    sessions = FetchSessions(10)
    assert sessions.open(request(0, -1, (0, 5))).id == 0
    assert len(sessions) == 0


def test_a_session_that_is_unknown_or_has_moved_on_is_refused() -> None:
    sessions = FetchSessions(10)
    session = sessions.open(request(0, 0, (0, 5)))
    with pytest.raises(ProtocolError) as unknown:
        sessions.open(request(session.id + 1, 1))
    assert unknown.value.code is ErrorCode.fetch_session_id_not_found
    with pytest.raises(ProtocolError) as stale:
        sessions.open(request(session.id, 5))
    assert stale.value.code is ErrorCode.invalid_fetch_session_epoch


def test_the_session_used_least_recently_makes_room() -> None:
    sessions = FetchSessions(2)
    oldest = sessions.open(request(0, 0, (0, 0)))
    kept = sessions.open(request(0, 0, (0, 0)))
    sessions.open(request(oldest.id, 1))
    sessions.open(request(0, 0, (0, 0)))
    assert len(sessions) == 2
    assert sessions.open(request(oldest.id, 2)).id == oldest.id
    with pytest.raises(ProtocolError):
        sessions.open(request(kept.id, 1))


def test_only_news_is_told_again() -> None:
    partition = SessionPartition(FetchPartition(0, 5, 1_000, -1))
    quiet = FetchAnswer(0, 0, 10, 10, 0, None, 0)
    assert partition.is_news(quiet)
    assert not partition.is_news(quiet)
    assert partition.is_news(quiet._replace(high_watermark=11))
    assert partition.is_news(quiet._replace(high_watermark=11, length=80))
    assert partition.is_news(quiet._replace(high_watermark=11, log_start_offset=4))
    failed = quiet._replace(error_code=1)
    assert partition.is_news(failed)
    assert partition.is_news(failed)
