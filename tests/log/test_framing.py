"""What is let into the log is what a plain reading of its bytes would give back, and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidRecordError
from penstock.log.batches import compression
from penstock.log.batches.framing import MOST_RECORDS, check_records
from tests.log import batches
from tests.log.batches import Batch, Record, encode_record, frame, varint
from tests.log.engine import NOW_MS, open_log, put, read_all
from tests.log.test_arrow_engines import records_sections
from tests.sampling import examples
from tests.seeds import seed_of

unhurried = settings(deadline=None)


def may_enter(section: bytes, count: int) -> bool:
    """Whether a plain reading finds exactly these records, with the offsets 0, 1, 2 and so on."""
    try:
        found = list(batches.decode(frame(Batch(0, (), max(count - 1, 0)), section, count)))
    except batches.Refused:
        return False
    # No record in a batch that says so: its section is not looked at by readers, and must be empty.
    return [record.offset for record in found] == list(range(count)) and (count > 0 or not section)


def is_let_in(section: bytes, count: int) -> bool:
    try:
        check_records(section, count)
    except InvalidRecordError:
        return False
    return True


def records(count: int, *, size: int = 10, key: bytes | None = None, step_ms: int = 1, headers: int = 0) -> bytes:
    """Records that are alike but for their offsets and times."""
    named = tuple((f"name {number}", b"value") for number in range(headers))
    return b"".join(
        encode_record(Record(number, step_ms * number, key, bytes(size), named), 0, 0) for number in range(count)
    )


@settings(unhurried, max_examples=examples(80, soak=4000))
@given(records_sections())
@example((b"", 0))
@example((b"", 1))
@example((b"\0", 0))
def test_garbage_is_let_in_or_refused_as_a_plain_reading_says(drawn: tuple[bytes, int]) -> None:
    section, count = drawn
    assert is_let_in(section, count) == may_enter(section, count)


@st.composite
def runs(draw: st.DrawFn) -> tuple[bytes, int]:
    """Many records alike, in runs of different kinds, with a byte or a few that were changed, or none."""
    section = bytearray()
    number = 0
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.sampled_from([None, b"", b"key", bytes(70)]))
        size = draw(st.sampled_from([0, 1, 20, 63, 64, 200]))
        named = (("name", draw(st.sampled_from([None, b"value"]))),) * draw(st.sampled_from([0, 0, 1, 3]))
        step_ms = draw(st.sampled_from([0, 1, 100, 10_000, -1]))
        for _ in range(draw(st.integers(0, 150))):
            section += encode_record(Record(number, step_ms * number, key, bytes(size), named), 0, 0)
            number += 1
    for at in draw(st.lists(st.integers(0, max(len(section) - 1, 0)), max_size=2)):
        section[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(section), number + draw(st.sampled_from([0, 0, 0, 1, -1]))


@settings(unhurried, max_examples=examples(60, soak=3000))
@given(runs())
def test_runs_of_records_alike_are_let_in_or_refused_as_a_plain_reading_says(drawn: tuple[bytes, int]) -> None:
    section, count = drawn
    if count >= 0:
        assert is_let_in(section, count) == may_enter(section, count)
        if is_let_in(section, count):
            found = batches.decode(frame(Batch(0, (), max(count - 1, 0)), section, count))
            assert check_records(section, count) == all(record.key is not None for record in found)


@pytest.mark.parametrize("count", [1, 16, 17, 64, 65, 100, 8192, 8193, 20_000])
@pytest.mark.parametrize("step_ms", [0, 1])
def test_one_changed_byte_in_a_long_run_is_found_wherever_it_stands(count: int, step_ms: int) -> None:
    section = records(count, step_ms=step_ms)
    assert is_let_in(section, count)
    rng = random.Random(seed_of())
    for _ in range(60 if count < 1000 else 8):
        at = rng.randrange(len(section))
        changed = section[:at] + bytes([section[at] ^ 1 << rng.randrange(8)]) + section[at + 1 :]
        assert is_let_in(changed, count) == may_enter(changed, count)
    for claimed in (count - 1, count + 1, 2 * count):
        assert not is_let_in(section, claimed)


def test_a_batch_of_more_records_than_can_be_looked_into_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match=f"at most {MOST_RECORDS}"):
        check_records(b"", 2**31 - 1)
    check_records(records(20_000, size=0, step_ms=0), 20_000)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    ("section", "count", "said"),
    [
        pytest.param(varint(2**31 - 1) + records(1)[1:], 1, "record 0 of the batch is not filled", id="long record"),
        pytest.param(varint(-1) + records(1)[1:], 1, "record 0 of the batch has a negative length", id="negative"),
        pytest.param(records(1), 2**31 - 1, "at most", id="2^31-1 of 1"),
        pytest.param(records(1), 5, "ends within a record", id="5 of 1"),
        pytest.param(records(3), 1, "bytes follow the 1 records", id="1 of 3"),
        pytest.param(records(1) + records(1), 2, "record 1 of the batch has offset 0", id="offset twice"),
    ],
)
def test_a_batch_that_lies_is_refused_and_what_follows_is_read(
    tmp_path_factory: pytest.TempPathFactory, section: bytes, count: int, said: str, codec: int
) -> None:
    log = open_log(tmp_path_factory.mktemp("log"))
    lying = frame(Batch(0, (), count - 1, codec=codec), compression.compress(codec, section), count)
    with pytest.raises(InvalidRecordError, match=said):
        log.append(memoryview(bytearray(lying)), NOW_MS)
    put(log, memoryview(bytearray(batches.encode(batches.consecutive(0, [b"a", b"b"], codec=codec)))))
    assert [record.value for record in read_all(log)] == [b"a", b"b"]
