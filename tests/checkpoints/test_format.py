"""Checkpoints and history in bytes: what goes in comes out, and what is damaged is never believed."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoints.format import (
    decode_checkpoint,
    decode_history,
    decode_runs,
    encode_checkpoint,
    encode_history,
    encode_runs,
    storable,
)
from penstock.errors import CorruptCheckpointError
from penstock.model import Checkpoint, CheckpointKey, Claim, Failing, HistoryEntry, Runs, Status
from tests.seeds import seed_of

KEY = CheckpointKey("billing", "orders", 3)
distances = st.one_of(
    st.integers(1, 3), st.integers(1, 300), st.integers(1, 1 << 66), st.integers(1, 1 << 210), st.just(1)
)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
times_ms = st.integers(0, 1 << 45)


@st.composite
def runs_behind(draw: st.DrawFn, base: int) -> Runs:
    edges = [base + each for each in itertools.accumulate(draw(st.lists(distances, max_size=400)))]
    edges = edges[: len(edges) // 2 * 2]
    return tuple(zip(edges[::2], edges[1::2], strict=True))


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    start = draw(st.one_of(st.integers(0, 1000), st.integers(-(1 << 200), 1 << 200)))
    runs = draw(runs_behind(start))
    last = runs[-1][1] if runs else start
    places = itertools.accumulate(draw(st.lists(st.integers(0, 1 << 80), max_size=4)), initial=start)
    claims = [
        Claim(first, end, *draw(st.tuples(texts, st.integers(0, 99), st.integers(0, 99), times_ms)))
        for first, end in itertools.pairwise(places)
    ]
    failing = st.builds(Failing, st.integers(start, last), st.integers(0, 99), texts, times_ms, times_ms)
    return Checkpoint(
        start,
        last + draw(st.integers(0, 1 << 70)),
        runs,
        tuple(draw(st.lists(failing, max_size=4))),
        draw(st.integers(0, 1 << 40)),
        draw(st.integers(0, 1 << 60)),
        draw(st.integers(0, 1 << 60)),
        draw(times_ms),
        tuple(claims),
    )


history = st.builds(
    HistoryEntry,
    st.integers(-(1 << 70), 1 << 200),
    st.integers(-(1 << 70), 1 << 200),
    st.sampled_from(Status),
    st.integers(0, 100),
    texts,
    times_ms,
    times_ms,
    texts,
    texts,
)


@given(checkpoints())
def test_a_checkpoint_comes_out_as_it_went_in(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint), KEY) == checkpoint


@given(st.lists(history, max_size=5))
def test_lines_of_history_come_out_as_they_went_in(lines: list[HistoryEntry]) -> None:
    assert decode_history(encode_history(lines), KEY) == lines


@given(st.integers(0, 1 << 70).flatmap(lambda base: st.tuples(st.just(base), runs_behind(base))))
def test_runs_come_out_as_they_went_in(based: tuple[int, Runs]) -> None:
    base, runs = based
    assert decode_runs(encode_runs(runs, base), base) == runs


@settings(max_examples=30)
@given(st.floats(0.01, 0.99), st.integers(0, 1 << 64), st.integers(0, 1 << 32))
def test_thoroughly_mixed_records_come_out_as_they_went_in(share: float, base: int, seed: int) -> None:
    rng = random.Random(seed)
    bits = [rng.random() < share for _ in range(5000)]
    runs = runs_of(bits, base + 1)
    assert decode_runs(encode_runs(runs, base), base) == runs


@pytest.mark.parametrize(
    ("share", "largest_bytes"), [(0.001, 4_000), (0.01, 16_000), (0.1, 80_000), (0.5, 130_000), (0.99, 16_000)]
)
def test_a_million_records_finished_at_random_stay_near_one_bit_each(share: float, largest_bytes: int) -> None:
    rng = random.Random(seed_of())
    runs = runs_of([rng.random() < share for _ in range(1_000_000)], 1)
    encoded = encode_runs(runs)
    assert len(encoded) < largest_bytes
    assert decode_runs(encoded) == runs


def test_a_million_alternating_records_are_a_few_bytes() -> None:
    runs = tuple((2 * number + 1, 2 * number + 2) for number in range(500_000))
    checkpoint = Checkpoint(0, 1_000_001, runs)
    encoded = encode_checkpoint(checkpoint)
    assert len(encoded) < 200
    assert decode_checkpoint(encoded, KEY) == checkpoint


def test_a_small_checkpoint_is_small() -> None:
    assert len(encode_checkpoint(Checkpoint(123_456, 123_956, ((123_457, 123_500),), saved_ms=1_700_000_000_000))) < 50


@given(checkpoints(), st.data())
def test_any_flipped_bit_is_noticed(checkpoint: Checkpoint, data: st.DataObject) -> None:
    encoded = bytearray(encode_checkpoint(checkpoint))
    position = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[position // 8] ^= 1 << position % 8
    with pytest.raises(CorruptCheckpointError):
        decode_checkpoint(bytes(encoded), KEY)


@given(checkpoints(), st.data())
def test_any_cut_is_noticed(checkpoint: Checkpoint, data: st.DataObject) -> None:
    encoded = encode_checkpoint(checkpoint)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    with pytest.raises(CorruptCheckpointError):
        decode_checkpoint(cut, KEY)


@given(st.binary(max_size=60))
def test_garbage_is_an_error_and_nothing_else(garbage: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_checkpoint(garbage, KEY)
    with pytest.raises(CorruptCheckpointError):
        decode_history(garbage, KEY)


@given(st.binary(min_size=1, max_size=60))
def test_garbage_in_place_of_runs_is_a_value_error_or_other_runs(garbage: bytes) -> None:
    try:
        runs = decode_runs(garbage)
    except ValueError:
        return
    assert isinstance(runs, tuple)


def test_the_error_says_whose_checkpoint_it_is_and_what_to_do() -> None:
    with pytest.raises(CorruptCheckpointError) as caught:
        decode_checkpoint(b"\x01garbage", KEY)
    text = str(caught.value)
    assert "orders-3 of group 'billing'" in text
    assert "Restore it from a backup" in text


def test_a_newer_version_is_told_from_damage() -> None:
    encoded = bytearray(encode_checkpoint(Checkpoint(0, 0)))
    encoded[0] = 2
    with pytest.raises(CorruptCheckpointError, match="version is 2"):
        decode_checkpoint(bytes(encoded), KEY)


@given(st.text())
def test_every_text_of_an_error_has_a_form_that_every_store_can_keep(text: str) -> None:
    kept = storable(text)
    assert "\0" not in kept
    assert kept.encode().decode() == kept
    if "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text):
        assert kept == text


def runs_of(bits: list[bool], first: int) -> Runs:
    found: list[tuple[int, int]] = []
    position = first
    for value, same in itertools.groupby(bits):
        length = len(list(same))
        if value:
            found.append((position, position + length))
        position += length
    return tuple(found)
