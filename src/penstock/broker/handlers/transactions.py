"""Requests of transactional producers, and of operators about transactions.

Versions: InitProducerId 0-5, AddPartitionsToTxn 0-3, AddOffsetsToTxn 0-4, EndTxn 0-4, WriteTxnMarkers 1,
DescribeTransactions 0, ListTransactions 0-2. Higher ones belong to transaction version 2 of the protocol, which is not
offered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import re2
from kio.schema.errors import ErrorCode

from penstock.broker.contracts import Marker
from penstock.broker.errors import code_of
from penstock.broker.internal_topics import INTERNAL_TOPICS
from penstock.broker.request import Apis, Fields, Request, Steps
from penstock.broker.transactions.state_log import group_by_topic
from penstock.broker.transactions.states import ProducerIdentity, TopicPartition, Transaction, TransactionState

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


LONGEST_PATTERN: Final = 1_000
"""Characters of a client's regular expression: the time of a match grows with its length."""
IDS_AT_A_TIME: Final = 100


async def init_producer_id(broker: Broker, request: Request) -> Fields:
    producer_id, epoch = request.get("producer_id", -1), request.get("producer_epoch", -1)
    if (producer_id == -1) != (epoch == -1):
        return {"error_code": ErrorCode.invalid_request, "producer_id": -1, "producer_epoch": -1}
    expected = None if producer_id == -1 else ProducerIdentity(producer_id, epoch)
    timeout_ms = request.body.transaction_timeout // timedelta(milliseconds=1)
    given = await broker.transactions.init_producer_id(request.body.transactional_id, timeout_ms, expected)
    return {
        "error_code": _as_known(given.error, request, fenced_since=4),
        "producer_id": given.producer_id,
        "producer_epoch": given.producer_epoch,
    }


async def add_partitions_to_txn(broker: Broker, request: Request) -> Fields:
    body = request.body
    partitions = [(topic.name, partition) for topic in body.v3_and_below_topics for partition in topic.partitions]
    codes = _not_allowed(broker, partitions)
    if not codes:
        identity = ProducerIdentity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        code = await broker.transactions.add_partitions(body.v3_and_below_transactional_id, identity, partitions)
        codes = dict.fromkeys(partitions, _as_known(code, request, fenced_since=2))
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic,
                "results_by_partition": [
                    {"partition_index": partition, "partition_error_code": code} for partition, code in results
                ],
            }
            for topic, results in _by_topic(codes).items()
        ]
    }


def _not_allowed(broker: Broker, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """A code for every partition if one of them cannot be added: they are added together or not at all."""
    codes = {}
    for topic, partition in partitions:
        if topic in INTERNAL_TOPICS:
            codes[topic, partition] = ErrorCode.topic_authorization_failed
        elif not broker.topics.exists(topic, partition):
            codes[topic, partition] = ErrorCode.unknown_topic_or_partition
        else:
            codes[topic, partition] = ErrorCode.operation_not_attempted
    return codes if set(codes.values()) - {ErrorCode.operation_not_attempted} else {}


async def add_offsets_to_txn(broker: Broker, request: Request) -> Fields:
    body = request.body
    identity = ProducerIdentity(body.producer_id, body.producer_epoch)
    code = await broker.transactions.add_offsets(body.transactional_id, identity, body.group_id)
    return {"error_code": _as_known(code, request, fenced_since=2)}


async def end_txn(broker: Broker, request: Request) -> Fields:
    body = request.body
    identity = ProducerIdentity(body.producer_id, body.producer_epoch)
    code = await broker.transactions.end(body.transactional_id, identity, commit=body.committed)
    return {"error_code": _as_known(code, request, fenced_since=2)}


async def write_txn_markers(broker: Broker, request: Request) -> Fields:
    results = []
    for wanted in request.body.markers:
        marker = Marker(wanted.producer_id, wanted.producer_epoch, wanted.transaction_result, wanted.coordinator_epoch)
        named = [(topic.name, partition) for topic in wanted.topics for partition in topic.partition_indexes]
        codes = {
            (topic, partition): ErrorCode.none
            if broker.topics.exists(topic, partition)
            else ErrorCode.unknown_topic_or_partition
            for topic, partition in named
        }
        known = [partition for partition, code in codes.items() if code is ErrorCode.none]
        for partition, error in (await broker.transactions.write_markers(known, marker)).items():
            codes[partition] = code_of(error)
        topics = [
            {
                "name": topic,
                "partitions": [{"partition_index": partition, "error_code": code} for partition, code in marked],
            }
            for topic, marked in _by_topic(codes).items()
        ]
        results.append({"producer_id": wanted.producer_id, "topics": topics})
    return {"markers": results}


def describe_transactions(broker: Broker, request: Request) -> Steps[Fields]:
    states = []
    for wanted in dict.fromkeys(request.body.transactional_ids):
        states.append(_describe(broker, wanted))
        yield
    return {"transaction_states": states}


def _describe(broker: Broker, transactional_id: str) -> Fields:
    described = broker.transactions.describe(transactional_id)
    if described is None or broker.transactions.refusal:
        missing = ErrorCode.transactional_id_not_found if transactional_id else ErrorCode.invalid_request
        return {
            "error_code": broker.transactions.refusal or missing,
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": [],
        }
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": described.state.label,
        "transaction_timeout": described.timeout_ms,
        "transaction_start_time": described.start_ms,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": partitions}
            for topic, partitions in group_by_topic(described.partitions).items()
        ],
    }


async def list_transactions(broker: Broker, request: Request) -> Fields:
    pattern = request.get("transactional_id_pattern")
    matches = _matcher(pattern) if pattern else None
    code = broker.transactions.refusal or (matches if isinstance(matches, ErrorCode) else ErrorCode.none)
    if code:
        return {"error_code": code, "unknown_state_filters": [], "transaction_states": []}
    by_label = {state.label: state for state in TransactionState}
    labels = request.body.state_filters
    states = {by_label[label] for label in labels if label in by_label}
    found = (
        broker.transactions.descriptions(
            states=states,
            producer_ids=frozenset(request.body.producer_id_filters),
            longer_than_ms=request.get("duration_filter", -1),
        )
        if states or not labels
        else []
    )
    if callable(matches):
        found = await _matching(found, matches)
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": [label for label in labels if label not in by_label],
        "transaction_states": [
            {
                "transactional_id": described.transactional_id,
                "producer_id": described.producer_id,
                "transaction_state": described.state.label,
            }
            for described in found
        ],
    }


async def _matching(found: list[Transaction], matches: Callable[[str], bool]) -> list[Transaction]:
    """The transactions whose id matches; other clients are served between slices."""
    chosen = []
    for start in range(0, len(found), IDS_AT_A_TIME):
        chosen += [each for each in found[start : start + IDS_AT_A_TIME] if matches(each.transactional_id)]
        await asyncio.sleep(0)
    return chosen


def _matcher(pattern: str) -> Callable[[str], bool] | ErrorCode:
    """Whether the whole id matches a client's regular expression. By RE2, as in Kafka: in linear time."""
    if len(pattern) > LONGEST_PATTERN:
        return ErrorCode.invalid_regular_expression
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error:
        return ErrorCode.invalid_regular_expression
    return lambda transactional_id: compiled.fullmatch(transactional_id) is not None


def _as_known(code: ErrorCode, request: Request, *, fenced_since: int) -> ErrorCode:
    """PRODUCER_FENCED is newer; older clients know INVALID_PRODUCER_EPOCH, and treat it the same."""
    if code is ErrorCode.producer_fenced and request.version < fenced_since:
        return ErrorCode.invalid_producer_epoch
    return code


def _by_topic(codes: Mapping[TopicPartition, ErrorCode]) -> dict[str, list[tuple[int, ErrorCode]]]:
    by_topic: dict[str, list[tuple[int, ErrorCode]]] = {}
    for (topic, partition), code in codes.items():
        by_topic.setdefault(topic, []).append((partition, code))
    return by_topic


APIS: Final[Apis] = {
    22: (init_producer_id, 0, 5),
    24: (add_partitions_to_txn, 0, 3),
    25: (add_offsets_to_txn, 0, 4),
    26: (end_txn, 0, 4),
    27: (write_txn_markers, 1, 1),
    65: (describe_transactions, 0, 0),
    66: (list_transactions, 0, 2),
}
