"""What a broker answers to Fetch, ListOffsets and OffsetForLeaderEpoch, field by field."""

from __future__ import annotations

import datetime
import threading
import time
import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.clients import confluent
from tests.clients.batches import batch, values_in
from tests.clients.every_request import Stage, set_stage
from tests.clients.names import fresh
from tests.clients.waiting import eventually
from tests.clients.wire import Connection, only_known
from tests.servers import Server


@pytest.fixture
def stage(connection: Connection) -> Stage:
    """A topic that holds one record."""
    return set_stage(connection)


def fetch(connection: Connection, stage: Stage, offset: int = 0, **more: Any) -> Any:
    """The answer for partition 0."""
    return fetch_all(connection, stage, offset, **more).responses[0].partitions[0]


def fetch_all(connection: Connection, stage: Stage, offset: int = 0, **more: Any) -> Any:
    of_partition: dict[str, int] = {
        name: more.pop(name) for name in ("current_leader_epoch", "partition") if name in more
    }
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **of_partition}
    topics = [{"topic_id": more.pop("topic_id", stage.topic_id), "partitions": [part]}]
    limits: dict[str, Any] = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
    limits.update(more)
    return connection.call("fetch", 16, topics=topics, **limits)


def append(connection: Connection, stage: Stage, *values: bytes) -> int:
    data = [{"name": stage.topic, "partition_data": [{"index": 0, "records": batch(values)}]}]
    answer = connection.call("produce", 9, acks=-1, timeout=5000, topic_data=data)
    (part,) = answer.responses[0].partition_responses
    assert part.error_code is ErrorCode.none
    offset: int = part.base_offset
    return offset


def test_records_come_with_the_bounds_of_the_log(connection: Connection, stage: Stage) -> None:
    append(connection, stage, b"second")
    answer = fetch(connection, stage)
    assert answer.error_code is ErrorCode.none
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (2, 2, 0)
    assert values_in(answer.records) == [(0, b"first"), (1, b"second")]
    assert answer.aborted_transactions is None
    # From inside the log to its end, and nothing at the end itself.
    assert values_in(fetch(connection, stage, 1).records) == [(1, b"second")]
    assert values_in(fetch(connection, stage, 2).records) == []


def test_an_offset_inside_a_batch_brings_the_whole_batch(connection: Connection, stage: Stage) -> None:
    append(connection, stage, b"a", b"b", b"c")
    assert values_in(fetch(connection, stage, 2).records) == [(1, b"a"), (2, b"b"), (3, b"c")]


@pytest.mark.parametrize("offset", [2, -1, 10**12])
def test_an_offset_out_of_range_is_an_error_never_silence(connection: Connection, stage: Stage, offset: int) -> None:
    answer = fetch(connection, stage, offset)
    assert answer.error_code is ErrorCode.offset_out_of_range
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (-1, -1, -1)
    assert not answer.records


def test_a_deleted_offset_is_out_of_range(server: Server, connection: Connection, stage: Stage) -> None:
    append(connection, stage, b"second")
    confluent.delete_records(server, stage.topic, 1)
    assert fetch(connection, stage, 0).error_code is ErrorCode.offset_out_of_range
    answer = fetch(connection, stage, 1)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.none, 1)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"topic_id": uuid.UUID(int=99)}, ErrorCode.unknown_topic_id),
        ({"partition": 5}, ErrorCode.unknown_topic_or_partition),
        ({"current_leader_epoch": 7}, ErrorCode.unknown_leader_epoch),
        ({"current_leader_epoch": 0}, ErrorCode.none),
    ],
)
def test_what_is_not_there_is_refused_partition_by_partition(
    connection: Connection, stage: Stage, wrong: dict[str, Any], code: ErrorCode
) -> None:
    answer = fetch_all(connection, stage, **wrong)
    assert answer.error_code is ErrorCode.none
    assert answer.responses[0].partitions[0].error_code is code


def test_a_topic_that_does_not_exist_is_refused_by_name(connection: Connection) -> None:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": fresh(), "partitions": [part]}]
    answer = connection.call("fetch", 12, replica_id=-1, max_wait=0, min_bytes=0, topics=topics)
    assert answer.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_or_partition


def test_the_first_batch_comes_whole_however_small_the_limit(connection: Connection, stage: Stage) -> None:
    append(connection, stage, b"x" * 10_000)
    assert values_in(fetch(connection, stage, 1, max_bytes=1).records) == [(1, b"x" * 10_000)]


def test_a_limit_for_the_whole_answer_leaves_out_what_does_not_fit(server: Server, connection: Connection) -> None:
    topic = confluent.create_topic(server, partitions=3)
    for partition in range(3):
        confluent.produce(server, topic, [b"x" * 10_000], partition=partition)
    parts = [{"partition": each, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for each in range(3)]
    topics = [{"topic": topic, "partitions": parts}]
    answer = connection.call("fetch", 12, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=15_000, topics=topics)
    sizes = [len(part.records or b"") for part in answer.responses[0].partitions]
    assert sizes[0] > 10_000
    assert sum(sizes) <= 20_200


def test_a_fetch_waits_for_records_and_no_longer_than_it_was_told(server: Server, connection: Connection) -> None:
    with Connection(server) as other:
        stage = set_stage(other)
        begin = time.monotonic()
        assert values_in(fetch(connection, stage, 1, max_wait=300, min_bytes=1).records) == []
        assert 0.25 < time.monotonic() - begin < 5
        later = threading.Timer(0.2, append, (other, stage, b"late"))
        begin = time.monotonic()
        later.start()
        answer = fetch(connection, stage, 1, max_wait=10_000, min_bytes=1)
        later.join()
    assert values_in(answer.records) == [(1, b"late")]
    assert time.monotonic() - begin < 5


def test_a_session_tells_only_what_has_changed(connection: Connection, stage: Stage) -> None:
    opened = fetch_all(connection, stage, 0, session_id=0, session_epoch=0)
    session = opened.session_id
    assert opened.error_code is ErrorCode.none
    assert session > 0
    assert len(opened.responses) == 1
    # Now from behind the record: the change is told, and there is nothing to say.
    moved = fetch_all(connection, stage, 1, session_id=session, session_epoch=1)
    assert (moved.error_code, moved.session_id, moved.responses) == (ErrorCode.none, session, ())
    append(connection, stage, b"new")
    going_on = {"session_id": session, "max_wait": 0, "min_bytes": 0, "topics": []}
    answer = connection.call("fetch", 16, session_epoch=2, **going_on)
    assert values_in(answer.responses[0].partitions[0].records) == [(1, b"new")]
    assert connection.call("fetch", 16, session_epoch=9, **going_on).error_code is ErrorCode.invalid_fetch_session_epoch


def test_a_session_that_nobody_knows_is_refused(connection: Connection, stage: Stage) -> None:
    answer = fetch_all(connection, stage, 0, session_id=123_456_789, session_epoch=1)
    assert (answer.error_code, answer.responses) == (ErrorCode.fetch_session_id_not_found, ())


def test_a_fetch_outside_any_session_opens_none(connection: Connection, stage: Stage) -> None:
    assert fetch_all(connection, stage, 0, session_id=0, session_epoch=-1).session_id == 0


def test_aborted_transactions_are_listed_for_those_who_read_committed(connection: Connection, stage: Stage) -> None:
    who = {
        "transactional_id": stage.transactional_id,
        "producer_id": stage.producer_id,
        "producer_epoch": stage.producer_epoch,
    }
    connection.call(
        "add_partitions_to_txn",
        3,
        **{f"v3_and_below_{name}": value for name, value in who.items()},
        v3_and_below_topics=[{"name": stage.topic, "partitions": [0]}],
    )
    records = batch(
        [b"never mind"], producer_id=stage.producer_id, epoch=stage.producer_epoch, sequence=0, transactional=True
    )
    data = [{"name": stage.topic, "partition_data": [{"index": 0, "records": records}]}]
    connection.call("produce", 9, transactional_id=stage.transactional_id, acks=-1, timeout=5000, topic_data=data)
    open_still = fetch(connection, stage, isolation_level=1)
    assert (open_still.high_watermark, open_still.last_stable_offset) == (2, 1)
    assert values_in(open_still.records) == [(0, b"first")]
    assert connection.call("end_txn", 3, **who, committed=False).error_code is ErrorCode.none
    eventually("the marker is written", lambda: fetch(connection, stage).high_watermark == 3)
    answer = fetch(connection, stage, isolation_level=1)
    (aborted,) = answer.aborted_transactions
    assert (aborted.producer_id, aborted.first_offset) == (stage.producer_id, 1)
    assert (answer.high_watermark, answer.last_stable_offset) == (3, 3)
    assert values_in(answer.records) == [(0, b"first"), (1, b"never mind")]
    assert fetch(connection, stage, isolation_level=0).aborted_transactions is None


LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (LATEST, (2, -1)),
        (EARLIEST, (0, -1)),
        (MAX_TIMESTAMP, (0, 1_700_000_000_000)),
        (EARLIEST_LOCAL, (0, -1)),
        (LATEST_TIERED, (-1, -1)),
        (0, (0, 1_700_000_000_000)),
        (1_700_000_000_001, (-1, -1)),
    ],
)
def test_list_offsets_knows_every_special_time(
    connection: Connection, stage: Stage, timestamp: int, expected: tuple[int, int]
) -> None:
    append(connection, stage, b"second")
    part = {"partition_index": 0, "timestamp": timestamp}
    answer = connection.call("list_offsets", 9, replica_id=-1, topics=[{"name": stage.topic, "partitions": [part]}])
    (found,) = answer.topics[0].partitions
    assert found.error_code is ErrorCode.none
    assert (found.offset, found.timestamp) == expected


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"partition_index": 7, "timestamp": -1}, ErrorCode.unknown_topic_or_partition),
        ({"partition_index": 0, "timestamp": -1, "current_leader_epoch": 3}, ErrorCode.unknown_leader_epoch),
    ],
)
def test_list_offsets_refuses_what_is_not_there(
    connection: Connection, stage: Stage, part: dict[str, int], code: ErrorCode
) -> None:
    answer = connection.call("list_offsets", 7, replica_id=-1, topics=[{"name": stage.topic, "partitions": [part]}])
    assert answer.topics[0].partitions[0].error_code is code


@pytest.mark.parametrize(("asked", "epoch", "end"), [(0, 0, 1), (5, -1, -1), (-1, -1, -1)])
def test_the_end_of_an_epoch_is_the_end_of_the_log_for_the_present_one(
    connection: Connection, stage: Stage, asked: int, epoch: int, end: int
) -> None:
    part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": asked}
    topics = [{"topic": stage.topic, "partitions": [part]}]
    (answer,) = connection.call("offset_for_leader_epoch", 4, topics=topics).topics[0].partitions
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (ErrorCode.none, epoch, end)


def test_nothing_is_throttled(connection: Connection, stage: Stage) -> None:
    assert fetch_all(connection, stage).throttle_time == datetime.timedelta(0)


@pytest.mark.parametrize(("first", "then"), [(12, 13), (13, 12), (7, 17)])
def test_a_session_does_not_change_between_names_and_ids(
    connection: Connection, stage: Stage, first: int, then: int
) -> None:
    def fetch_in(version: int, session_id: int, epoch: int, *, again: bool) -> Any:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        topics = [{"topic": stage.topic, "topic_id": stage.topic_id, "partitions": [part]}] if again else []
        fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": topics}
        session = {"session_id": session_id, "session_epoch": epoch}
        return connection.call("fetch", version, **only_known("fetch", version, {**fields, **session}))

    opened = fetch_in(first, 0, 0, again=True)
    assert opened.error_code is ErrorCode.none
    for again in (True, False):
        refused = fetch_in(then, opened.session_id, 1, again=again)
        assert (refused.error_code, refused.responses) == (ErrorCode.fetch_session_topic_id_error, ())
    gone_on = fetch_in(first, opened.session_id, 1, again=False)
    assert (gone_on.error_code, gone_on.session_id) == (ErrorCode.none, opened.session_id)


def test_a_session_of_which_nothing_is_left_is_over(connection: Connection, stage: Stage) -> None:
    session_id = fetch_all(connection, stage, session_epoch=0).session_id
    forgotten = [{"topic_id": stage.topic_id, "partitions": [0]}]
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_id": session_id}
    last = connection.call("fetch", 16, topics=[], forgotten_topics_data=forgotten, session_epoch=1, **limits)
    assert (last.error_code, last.session_id, last.responses) == (ErrorCode.none, 0, ())
    after = connection.call("fetch", 16, topics=[], session_epoch=2, **limits)
    assert after.error_code is ErrorCode.fetch_session_id_not_found


def test_an_unknown_topic_id_is_told_again_and_again(connection: Connection, stage: Stage) -> None:
    opened = fetch_all(connection, stage, session_epoch=0, topic_id=uuid.uuid4())
    assert opened.responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_id": opened.session_id}
    (again,) = connection.call("fetch", 16, topics=[], session_epoch=1, **limits).responses
    assert again.partitions[0].error_code is ErrorCode.unknown_topic_id
