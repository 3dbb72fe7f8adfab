"""The records of `__transaction_state`: Kafka's own formats, both ways."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.transactions.state_log import decode_key, decode_value, encode_key, encode_value
from penstock.broker.transactions.states import Transaction, TransactionState
from penstock.errors import CorruptBatchError
from tests import real_parts

SAMPLE = Transaction(
    transactional_id="naïve-id",
    producer_id=4001,
    producer_epoch=7,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({("orders", 0), ("orders", 3), ("bills", 1)}),
    start_ms=1_700_000_000_000,
    last_update_ms=1_700_000_000_123,
    previous_producer_id=4000,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
longs = st.integers(-1, 2**63 - 1)
transactions = st.builds(
    Transaction,
    transactional_id=texts,
    producer_id=longs,
    producer_epoch=st.integers(-1, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    partitions=st.frozensets(st.tuples(texts, st.integers(0, 2**31 - 1)), max_size=200),
    start_ms=longs,
    last_update_ms=longs,
    previous_producer_id=longs,
)


@given(transaction=transactions)
def test_what_is_written_is_read_back(transaction: Transaction) -> None:
    assert decode_key(encode_key(transaction.transactional_id)) == transaction.transactional_id
    assert decode_value(transaction.transactional_id, encode_value(transaction)) == transaction


def test_an_id_without_a_transaction_has_no_partitions() -> None:
    empty = replace(SAMPLE, state=TransactionState.EMPTY, partitions=frozenset(), start_ms=-1)
    assert decode_value("naïve-id", encode_value(empty)) == empty


def test_a_value_that_ends_too_soon_is_refused_wherever_it_ends() -> None:
    value = encode_value(SAMPLE)
    for length in range(len(value)):
        with pytest.raises(CorruptBatchError):
            decode_value("t", value[:length])


@pytest.mark.parametrize(
    ("position", "byte", "complaint"),
    [(1, 2, "version 2"), (16, 9, "9 is not a valid TransactionState"), (17, 0xFF, "claims"), (19, 0xFF, "not UTF-8")],
)
def test_a_value_that_makes_no_sense_is_refused(position: int, byte: int, complaint: str) -> None:
    value = bytearray(encode_value(SAMPLE))
    value[position] = byte
    with pytest.raises(CorruptBatchError, match=complaint):
        decode_value("t", bytes(value))


def test_a_number_without_end_is_refused() -> None:
    value = encode_value(SAMPLE)
    with pytest.raises(CorruptBatchError, match="does not end"):
        decode_value("t", value[:17] + b"\xff" * 20)


def test_a_key_of_another_kind_is_told_apart() -> None:
    assert decode_key(b"\x00\x07anything") is None
    with pytest.raises(CorruptBatchError):
        decode_key(b"\x00")


def test_equal_transactions_are_written_as_equal_bytes() -> None:
    shuffled = replace(SAMPLE, partitions=frozenset(sorted(SAMPLE.partitions, reverse=True)))
    assert encode_value(shuffled) == encode_value(SAMPLE)


def test_kafka_reads_what_is_written() -> None:
    empty = replace(SAMPLE, state=TransactionState.EMPTY, partitions=frozenset(), previous_producer_id=-1, start_ms=-1)
    lines = [f"{encode_key(each.transactional_id).hex()} {encode_value(each).hex()}" for each in (SAMPLE, empty)]
    ongoing, idle = [json.loads(line) for line in _java("read", "\n".join(lines))]
    assert ongoing == {
        "version": 1,
        "transactionalId": "naïve-id",
        "left": 0,
        "producerId": 4001,
        "previousProducerId": 4000,
        "producerEpoch": 7,
        "transactionTimeoutMs": 60_000,
        "transactionStatus": 1,
        "transactionPartitions": [
            {"topic": "bills", "partitionIds": [1]},
            {"topic": "orders", "partitionIds": [0, 3]},
        ],
        "transactionLastUpdateTimestampMs": 1_700_000_000_123,
        "transactionStartTimestampMs": 1_700_000_000_000,
    }
    assert (idle["transactionStatus"], idle["transactionPartitions"], idle["left"]) == (0, None, 0)


def test_what_kafka_writes_is_read() -> None:
    lines = _java("write", "")
    read = [_decode(line) for line in lines]
    assert read == [replace(SAMPLE, previous_producer_id=-1), SAMPLE]


def _decode(line: str) -> Transaction:
    key, value = (bytes.fromhex(word) for word in line.split())
    transactional_id = decode_key(key)
    assert transactional_id is not None
    return decode_value(transactional_id, value)


def _java(mode: str, stdin: str) -> list[Any]:
    source = Path(__file__).with_name("JavaStateLog.java")
    command = [real_parts.java_with_compiler(), "-cp", real_parts.kafka_class_path(), str(source), mode]
    done = subprocess.run(command, input=stdin.encode(), stdout=subprocess.PIPE, check=True, timeout=120)
    return done.stdout.decode().splitlines()
