"""Fetch sessions: what a client says once is remembered, within limits."""

from __future__ import annotations

import uuid

import pytest
from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError
from penstock.broker.fetch_sessions import FetchSessions, SessionPartition
from penstock.broker.wire.fetch import FetchAnswer, FetchPartition, FetchRequest
from penstock.broker.wire.produce import TopicKey

TOPIC_ID = uuid.UUID(int=7)


def request(
    session_id: int,
    epoch: int,
    *offsets: tuple[int, int],
    forgotten: tuple[int, ...] = (),
    topic: TopicKey = b"orders",
) -> FetchRequest:
    wanted = [FetchPartition(partition, offset, 1_000, -1) for partition, offset in offsets]
    topics: list[tuple[TopicKey, list[FetchPartition]]] = [(topic, wanted)] if wanted else []
    by_id = isinstance(topic, uuid.UUID)
    return FetchRequest(500, 1, 1 << 20, False, session_id, epoch, topics, [(topic, list(forgotten))], by_id)


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
        sessions.open(request(session.id % 1000 + 1, 1))
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


@pytest.mark.parametrize(("first", "then"), [(b"orders", TOPIC_ID), (TOPIC_ID, b"orders")])
def test_a_session_goes_on_in_the_way_it_began_by_name_or_by_id(first: TopicKey, then: TopicKey) -> None:
    sessions = FetchSessions(10)
    session = sessions.open(request(0, 0, (0, 5), topic=first))
    for later in (request(session.id, 1, (0, 9), topic=then), request(session.id, 1, topic=then)):
        with pytest.raises(ProtocolError) as other_way:
            sessions.open(later)
        assert other_way.value.code is ErrorCode.fetch_session_topic_id_error
    with pytest.raises(ProtocolError) as stale:
        sessions.open(request(session.id, 9, topic=then))
    assert stale.value.code is ErrorCode.invalid_fetch_session_epoch
    assert sessions.open(request(session.id, 1, topic=first)).id == session.id


def test_a_session_that_forgot_all_its_partitions_is_over() -> None:
    sessions = FetchSessions(10)
    session_id = sessions.open(request(0, 0, (0, 5))).id
    assert sessions.open(request(session_id, 1, forgotten=(0,))).id == 0
    assert len(sessions) == 0


def test_ids_are_random_so_that_no_client_goes_on_with_a_session_of_before_a_restart() -> None:
    before, after = FetchSessions(100), FetchSessions(100)
    old = {before.open(request(0, 0, (0, 0))).id for _ in range(100)}
    new = {after.open(request(0, 0, (0, 0))).id for _ in range(100)}
    assert len(old) == len(new) == 100
    assert old.isdisjoint(new)
    assert all(0 < session_id < 2**31 for session_id in old | new)


def test_all_sessions_together_remember_so_many_partitions_and_no_more() -> None:
    sessions = FetchSessions(10, partition_limit=5)
    first = sessions.open(request(0, 0, (0, 0), (1, 0), (2, 0)))
    second = sessions.open(request(0, 0, (0, 0), (1, 0), (2, 0)))
    assert (first.id, second.id != 0, len(sessions)) == (0, True, 1)
    grown = sessions.open(request(second.id, 1, *((number, 0) for number in range(6))))
    assert (grown.id, len(grown.partitions), len(sessions)) == (0, 6, 0)


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
