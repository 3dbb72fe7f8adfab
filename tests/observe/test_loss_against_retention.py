"""Time to loss against the storage engine: when it says that records will be gone, they are gone, and not before.

Time is virtual. The engine is asked to expire records at every second of it, a reader falls behind at a known pace, and
the forecasts that were made on the way are compared with the second in which the engine overtook the reader.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log import retention
from penstock.log.partition import PartitionLog
from penstock.testing.clock import VirtualClock
from tests.log.engine import batch_of, open_log, put
from tests.observe.fake_survey import FakeStream

APPENDED_PER_S = 10
LOOK_EVERY_S = 5
VALUE = b"v" * 50


def overtaken(
    folder: Path, settings: dict[str, str], reads_per_s: float, *, longest_s: int = 3_000
) -> tuple[list[tuple[int, float | None]], int, PartitionLog]:
    """The forecasts, each with the second in which it was made, and the second in which the reader was overtaken."""
    clock = VirtualClock()
    log = open_log(folder / "p", {**settings, "internal.segment.bytes": "1000", "index.interval.bytes": "200"})
    stream = FakeStream(clock, settings, log)
    stream.members["billing"] = 1
    stream.committed["billing"] = 0
    read = 0.0
    forecasts: list[tuple[int, float | None]] = []
    for second in range(1, longest_s):
        clock.advance(1)
        for number in range(APPENDED_PER_S):
            at_ms = clock.wall_ms() - 1_000 + number * 1_000 // APPENDED_PER_S
            put(log, batch_of([(b"k", VALUE)], at_ms=at_ms), clock.wall_ms())
        retention.expire(log, clock.wall_ms())
        if log.log_start_offset > stream.committed["billing"]:
            return forecasts, second, log
        read = min(float(log.high_watermark), read + reads_per_s)
        stream.committed["billing"] = int(read)
        if second % LOOK_EVERY_S == 0:
            forecasts.append((second, stream.look()[1]["billing"].time_to_loss_s))
    raise AssertionError(f"the reader was never overtaken; the last forecasts were {forecasts[-5:]}")


def segment_s(log: PartitionLog) -> float:
    """For how long records go into one segment."""
    records = max(each.next_offset - each.base_offset for each in log.segments)
    return records / APPENDED_PER_S


def check(forecasts: list[tuple[int, float | None]], overtaken_s: int, from_s: int, slack_s: float) -> None:
    """Each forecast names the second in which it happened, or one that is earlier by at most the slack.

    The slack is what a forecast cannot know: records go by whole segments. For what a trend over a minute misses, a
    twentieth of what lay ahead is allowed.
    """
    known = [(at_s, time_s) for at_s, time_s in forecasts if at_s >= from_s]
    assert known
    for at_s, time_s in known:
        assert time_s is not None, f"at second {at_s} no loss was foreseen, and at {overtaken_s} it came"
        ahead_s = overtaken_s - at_s
        assert -1 - 0.05 * ahead_s <= ahead_s - time_s <= slack_s + 0.05 * ahead_s, (
            f"at second {at_s}, loss was foreseen in {time_s:.1f} s; it came in {ahead_s} s"
        )


@pytest.mark.parametrize("reads_per_s", [0.0, 3.0, 8.0])
def test_a_reader_is_overtaken_by_age_when_it_was_foreseen(tmp_path: Path, reads_per_s: float) -> None:
    forecasts, overtaken_s, log = overtaken(tmp_path, {"retention.ms": "120000"}, reads_per_s)
    # It takes 120 s of records, at 1 - reads/10 of a second more each second.
    expected_s = 120 / (1 - reads_per_s / APPENDED_PER_S)
    assert expected_s - 1 <= overtaken_s <= (expected_s + segment_s(log)) * 1.05 + 2
    check(forecasts, overtaken_s, from_s=90 if reads_per_s else 15, slack_s=segment_s(log) / 0.2 + 1)


@pytest.mark.parametrize("reads_per_s", [0.0, 5.0])
def test_a_reader_is_overtaken_by_size_when_it_was_foreseen(tmp_path: Path, reads_per_s: float) -> None:
    forecasts, overtaken_s, log = overtaken(tmp_path, {"retention.bytes": "100000"}, reads_per_s)
    check(forecasts, overtaken_s, from_s=65, slack_s=2 * segment_s(log) / (1 - reads_per_s / APPENDED_PER_S) + 1)


def test_of_two_limits_the_one_that_comes_first_is_foreseen(tmp_path: Path) -> None:
    by_size, size_s, _ = overtaken(tmp_path / "size", {"retention.bytes": "50000"}, 0.0)
    both, both_s, log = overtaken(tmp_path / "both", {"retention.bytes": "50000", "retention.ms": "600000"}, 0.0)
    assert both_s == size_s
    assert both[-1] == by_size[-1]
    check(both, both_s, from_s=15, slack_s=2 * segment_s(log) + 1)


def test_who_keeps_its_distance_is_never_overtaken_and_no_loss_is_foreseen(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="never overtaken") as found:
        overtaken(tmp_path, {"retention.ms": "60000"}, 10.0, longest_s=200)
    assert str([(second, None) for second in range(175, 200, 5)]) in str(found.value)
