"""A transactional producer that speaks the protocol itself, so that a test knows exactly what was answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tests.clients import wire
from tests.clients.batches import batch
from tests.clients.waiting import eventually
from tests.crash.crash_points import call

NAME: Final = "transactional"


class Transaction:
    """One, by hand: each step is one request."""

    def __init__(self, connection: wire.Connection, topics: Sequence[str]) -> None:
        self._connection = connection
        self._topics = topics
        given = eventually("nobody else uses the name", lambda: initialised(connection))
        assert given is not None
        self._producer = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
        self._sequence = 0

    def write(self, value: bytes) -> None:
        """The value to all topics."""
        fields = {f"v3_and_below_{name}": number for name, number in self._producer.items()}
        partitions = [{"name": topic, "partitions": [0]} for topic in self._topics]
        answer = call(
            self._connection,
            "add_partitions_to_txn",
            3,
            v3_and_below_transactional_id=NAME,
            v3_and_below_topics=partitions,
            **fields,
        )
        codes = {part.partition_error_code for topic in answer.results_by_topic_v3_and_below for part in _parts(topic)}
        assert codes == {ErrorCode.none}
        producer_id, epoch = self._producer["producer_id"], self._producer["producer_epoch"]
        records = batch([value], producer_id=producer_id, epoch=epoch, sequence=self._sequence, transactional=True)
        self._sequence += 1
        data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]} for topic in self._topics]
        stored = call(self._connection, "produce", 9, transactional_id=NAME, acks=-1, timeout=10_000, topic_data=data)
        assert {topic.partition_responses[0].error_code for topic in stored.responses} == {ErrorCode.none}

    def commit_offset(self, group: str, offset: int) -> None:
        member = {"transactional_id": NAME, "group_id": group, **self._producer}
        assert call(self._connection, "add_offsets_to_txn", 3, **member).error_code is ErrorCode.none
        topics = [{"name": self._topics[0], "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        answer = call(self._connection, "txn_offset_commit", 3, **member, generation_id=-1, topics=topics)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none

    def end(self, *, commit: bool) -> ErrorCode:
        fields = {"transactional_id": NAME, "committed": commit, **self._producer}
        code: ErrorCode = call(self._connection, "end_txn", 3, **fields).error_code
        return code


def _parts(topic: Any) -> Any:
    return topic.results_by_partition


def initialised(connection: wire.Connection) -> Any:
    """The producer's identity; None while the coordinator still ends what an earlier one has left open."""
    answer = call(connection, "init_producer_id", 4, transactional_id=NAME, transaction_timeout=60_000)
    if answer.error_code is ErrorCode.concurrent_transactions:
        return None
    assert answer.error_code is ErrorCode.none
    return answer
