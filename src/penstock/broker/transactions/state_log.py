"""The records of `__transaction_state`, in Kafka's formats, so that Kafka's tools can read them.

A key is a TransactionLogKey (version 0), a value a TransactionLogValue: version 1 is written, 0 and 1 are read. A key
without a value means that the transactional id has expired.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.broker.stored_fields import DamagedRecordError, FieldReader
from penstock.broker.transactions.states import NO_PRODUCER_ID, TopicPartition, Transaction, TransactionState
from penstock.broker.wire.primitives import uvarint
from penstock.errors import CorruptBatchError

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1

_PREVIOUS_PRODUCER_ID_TAG: Final = 0

_LONG: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">hqhib")
"""Version, producer id, producer epoch, timeout, state."""
_TIMES: Final = struct.Struct(">qq")
"""Last update, start."""


def encode_key(transactional_id: str) -> bytes:
    encoded = transactional_id.encode()
    return struct.pack(">hh", KEY_VERSION, len(encoded)) + encoded


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for an unknown type of key from a later version of Kafka."""
    reader = FieldReader(key)
    try:
        return reader.string() if reader.int16() == KEY_VERSION else None
    except DamagedRecordError as error:
        raise CorruptBatchError(f"a key of the transaction state is damaged: {error}: {key.hex()}") from error


def encode_value(transaction: Transaction) -> bytes:
    out = bytearray(
        _HEAD.pack(
            VALUE_VERSION,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            transaction.state,
        )
    )
    if transaction.state is TransactionState.EMPTY:
        out += uvarint(0)
    else:
        by_topic = group_by_topic(transaction.partitions)
        out += uvarint(len(by_topic) + 1)
        for topic, partitions in by_topic.items():
            encoded = topic.encode()
            out += uvarint(len(encoded) + 1) + encoded
            out += uvarint(len(partitions) + 1) + struct.pack(f">{len(partitions)}i", *partitions)
            out += uvarint(0)
    out += _TIMES.pack(transaction.last_update_ms, transaction.start_ms)
    if transaction.previous_producer_id == NO_PRODUCER_ID:
        out += uvarint(0)
    else:
        out += uvarint(1) + uvarint(_PREVIOUS_PRODUCER_ID_TAG) + uvarint(_LONG.size)
        out += _LONG.pack(transaction.previous_producer_id)
    return bytes(out)


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """The transaction that a value describes. CorruptBatchError if it cannot be decoded: guessing could undo a
    decision."""
    try:
        return _decode(transactional_id, FieldReader(value))
    except (DamagedRecordError, ValueError) as error:
        raise CorruptBatchError(
            f"the state of transactional id {transactional_id!r} is damaged: {error}: {value.hex()}"
        ) from error


def _decode(transactional_id: str, reader: FieldReader) -> Transaction:
    version = reader.int16()
    if version not in (0, 1):
        raise CorruptBatchError(
            f"the state of transactional id {transactional_id!r} is stored in version {version}, which is unknown "
            "here; it was written by a later release"
        )
    reader.flexible = version >= 1
    producer_id, producer_epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    state = TransactionState(reader.int8())
    partitions: list[TopicPartition] = []
    for _ in range(reader.array_length(nullable=True)):
        topic = reader.string()
        partitions += [(topic, reader.int32()) for _ in range(reader.array_length())]
        reader.end_of_structure()
    last_update_ms, start_ms = reader.int64(), reader.int64()
    previous = reader.end_of_structure().get(_PREVIOUS_PRODUCER_ID_TAG)
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        start_ms=start_ms,
        last_update_ms=last_update_ms,
        previous_producer_id=NO_PRODUCER_ID if previous is None else FieldReader(previous).int64(),
    )


def group_by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    """Sorted by name and number, so that equal sets give equal bytes."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic
