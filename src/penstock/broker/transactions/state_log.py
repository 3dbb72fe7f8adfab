"""The records of `__transaction_state`, in Kafka's own formats, so that Kafka's tools can read them.

A key is a TransactionLogKey (version 0), a value a TransactionLogValue: version 1 is written, 0 and 1 are read. A key
without a value says that the transactional id has expired.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.broker.transactions.states import NO_PRODUCER_ID, TopicPartition, Transaction, TransactionState
from penstock.errors import CorruptBatchError

KEY_VERSION: Final = 0
VALUE_VERSION: Final = 1

_PREVIOUS_PRODUCER_ID_TAG: Final = 0

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">hqhib")
"""Version, producer id, producer epoch, timeout, state."""
_TIMES: Final = struct.Struct(">qq")
"""Last update, start."""


def encode_key(transactional_id: str) -> bytes:
    encoded = transactional_id.encode()
    return struct.pack(">hh", KEY_VERSION, len(encoded)) + encoded


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for a kind of key that a later version of Kafka may have left here."""
    reader = _Reader(key)
    if reader.take(_SHORT) != KEY_VERSION:
        return None
    return reader.text(reader.take(_SHORT))


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
        out += _unsigned(0)
    else:
        by_topic = group_by_topic(transaction.partitions)
        out += _unsigned(len(by_topic) + 1)
        for topic, partitions in by_topic.items():
            encoded = topic.encode()
            out += _unsigned(len(encoded) + 1) + encoded
            out += _unsigned(len(partitions) + 1) + struct.pack(f">{len(partitions)}i", *partitions)
            out += _unsigned(0)
    out += _TIMES.pack(transaction.last_update_ms, transaction.start_ms)
    if transaction.previous_producer_id == NO_PRODUCER_ID:
        out += _unsigned(0)
    else:
        out += _unsigned(1) + _unsigned(_PREVIOUS_PRODUCER_ID_TAG) + _unsigned(_LONG.size)
        out += _LONG.pack(transaction.previous_producer_id)
    return bytes(out)


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """Raises CorruptBatchError where the value cannot be understood: guessing could undo a decision."""
    reader = _Reader(value)
    version = reader.take(_SHORT)
    if version not in (0, 1):
        raise CorruptBatchError(
            f"the state of transactional id {transactional_id!r} is stored in version {version}, which is not known "
            "here; it was written by a later release"
        )
    flexible = version >= 1
    producer_id = reader.take(_LONG)
    producer_epoch = reader.take(_SHORT)
    timeout_ms = reader.take(_INT)
    state = reader.state()
    partitions: list[TopicPartition] = []
    for _ in range(reader.count(flexible)):
        topic = reader.text(reader.count(flexible) if flexible else reader.take(_SHORT))
        partitions += [(topic, reader.take(_INT)) for _ in range(reader.count(flexible))]
        if flexible:
            reader.tags()
    last_update_ms = reader.take(_LONG)
    start_ms = reader.take(_LONG)
    previous = reader.tags().get(_PREVIOUS_PRODUCER_ID_TAG) if flexible else None
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=state,
        partitions=frozenset(partitions),
        start_ms=start_ms,
        last_update_ms=last_update_ms,
        previous_producer_id=NO_PRODUCER_ID if previous is None else _Reader(previous).take(_LONG),
    )


def group_by_topic(partitions: frozenset[TopicPartition]) -> dict[str, list[int]]:
    """In the order of the names and numbers, so that equal sets give equal bytes."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def _unsigned(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Reader:
    """Takes one field after the other; CorruptBatchError where the bytes end too soon or make no sense."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def raw(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise CorruptBatchError(f"a record of the transaction state ends too soon: {self._data.hex()}")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def take(self, field: struct.Struct) -> int:
        value: int = field.unpack(self.raw(field.size))[0]
        return value

    def unsigned(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.raw(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise CorruptBatchError(f"a record of the transaction state has a number without end: {self._data.hex()}")

    def count(self, flexible: bool) -> int:
        """How many elements follow; none where the array is null."""
        return max(0, self.unsigned() - 1 if flexible else self.take(_INT))

    def text(self, length: int) -> str:
        try:
            return self.raw(length).decode()
        except UnicodeDecodeError as error:
            raise CorruptBatchError(f"a record of the transaction state is not UTF-8: {self._data.hex()}") from error

    def state(self) -> TransactionState:
        number = self.raw(1)[0]
        try:
            return TransactionState(number)
        except ValueError as error:
            raise CorruptBatchError(f"a record of the transaction state names an unknown state {number}") from error

    def tags(self) -> dict[int, bytes]:
        return {self.unsigned(): self.raw(self.unsigned()) for _ in range(self.unsigned())}
