"""What partitions hold, and letting go of it: DeleteRecords, DescribeLogDirs and DescribeProducers."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from penstock.broker.errors import ProtocolError, code_of
from penstock.broker.request import Fields, Handler, Request
from penstock.errors import PenstockError
from penstock.log.store import Topic, check_topic_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

TO_HIGH_WATERMARK: Final = -1


def delete_records(broker: Broker, request: Request) -> Fields:
    topics: dict[str, list[Fields]] = {}
    for topic in request.body.topics:
        answers = topics.setdefault(topic.name, [])
        for wanted in topic.partitions:
            code, start = ErrorCode.none, -1
            try:
                start = _delete_before(broker, topic.name, wanted.partition_index, wanted.offset)
            except PenstockError as error:
                code = code_of(error)
            answers.append({"partition_index": wanted.partition_index, "low_watermark": start, "error_code": code})
    return {"topics": [{"name": name, "partitions": answers} for name, answers in topics.items()]}


def _delete_before(broker: Broker, name: str, partition: int, offset: int) -> int:
    topic = broker.topics.get(name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        raise ProtocolError(ErrorCode.unknown_topic_or_partition)
    if topic.internal:
        raise ProtocolError(ErrorCode.invalid_topic_exception, f"{name} is the broker's own; its records stay")
    if topic.config.compacts and not topic.config.deletes:
        raise ProtocolError(
            ErrorCode.policy_violation,
            f"{name} keeps the last record of every key; add 'delete' to its cleanup.policy to delete by offset",
        )
    log = topic.partitions[partition]
    return log.delete_records(log.high_watermark if offset == TO_HIGH_WATERMARK else offset)


def describe_log_dirs(broker: Broker, request: Request) -> Fields:
    total, usable, code = -1, -1, ErrorCode.none
    try:
        disk = shutil.disk_usage(broker.data_folder)
        total, usable = disk.total, disk.free
    except OSError:
        code = ErrorCode.kafka_storage_error
    result = {
        "error_code": code,
        "log_dir": str(broker.data_folder.absolute()),
        "topics": _sizes(broker, request) if code is ErrorCode.none else [],
        "total_bytes": total,
        "usable_bytes": usable,
        "is_cordoned": False,
    }
    return {"error_code": ErrorCode.none, "results": [result]}


def _sizes(broker: Broker, request: Request) -> list[Fields]:
    """The partitions that are asked for and exist. A topic of which none is left is left out."""
    wanted: dict[str, set[int]] | None = None
    if request.body.topics is not None:
        wanted = {}
        for asked in request.body.topics:
            wanted.setdefault(asked.topic, set()).update(asked.partitions)
    sizes: list[Fields] = []
    for name in broker.topics.names() if wanted is None else wanted:
        topic = broker.topics.get(name)
        partitions = [
            {
                "partition_index": number,
                "partition_size": log.size_bytes,
                "offset_lag": log.end_offset - log.high_watermark,
                "is_future_key": False,
            }
            for number, log in enumerate(topic.partitions if topic is not None else ())
            if wanted is None or number in wanted[name]
        ]
        if partitions:
            sizes.append({"name": name, "partitions": partitions})
    return sizes


def describe_producers(broker: Broker, request: Request) -> Fields:
    return {
        "topics": [
            {
                "name": asked.name,
                "partitions": [_producers(broker, asked.name, number) for number in asked.partition_indexes],
            }
            for asked in request.body.topics
        ]
    }


def _producers(broker: Broker, name: str, partition: int) -> Fields:
    try:
        topic = _existing(broker, name)
        if not 0 <= partition < len(topic.partitions):
            raise ProtocolError(
                ErrorCode.unknown_topic_or_partition,
                f"{name} has no partition {partition}; it has {len(topic.partitions)}, counted from 0",
            )
        log = topic.partitions[partition]
    except PenstockError as error:
        return {
            "partition_index": partition,
            "error_code": code_of(error),
            "error_message": str(error),
            "active_producers": [],
        }
    return {
        "partition_index": partition,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": [
            {
                "producer_id": state.producer_id,
                "producer_epoch": state.epoch,
                "last_sequence": state.last_sequence,
                "last_timestamp": state.last_timestamp_ms,
                "coordinator_epoch": state.coordinator_epoch,
                "current_txn_start_offset": (
                    -1 if state.transaction_first_offset is None else state.transaction_first_offset
                ),
            }
            for state in log.producers.producers()
        ],
    }


def _existing(broker: Broker, name: str) -> Topic:
    topic = broker.topics.get(name)
    if topic is None:
        check_topic_name(name)
        raise ProtocolError(
            ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}; create it, or look for a typo"
        )
    return topic


HANDLERS: Final[dict[int, Handler]] = {21: delete_records, 35: describe_log_dirs, 61: describe_producers}
VERSIONS: Final = {21: (0, 2), 35: (1, 5), 61: (0, 0)}
