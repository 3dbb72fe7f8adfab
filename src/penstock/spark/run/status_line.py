"""The progress of running pipelines: lines redrawn in place on a terminal, else log lines."""

from __future__ import annotations

import contextlib
import datetime
import logging
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.spark.pipeline import Pipeline
    from penstock.spark.run.progress import QueryProgress

DRAW_EVERY_S: Final = 0.5
LOG_EVERY_S: Final = 60.0
RATE_OVER_S: Final = 5.0
MOST_LINES: Final = 8
_CLEAR: Final = "\r\x1b[J"

_log = logging.getLogger("penstock.spark")


def terminal(quiet: bool) -> TextIO | None:
    """Standard error if it is a terminal and `quiet` is false, else None."""
    return sys.stderr if not quiet and sys.stderr.isatty() else None


@contextlib.contextmanager
def shown_meanwhile(text: str, quiet: bool) -> Iterator[None]:
    """Show a line with the seconds passed while the block runs, redrawn if others write over it."""
    _log.info("%s", text)
    out = terminal(quiet)
    if out is None:
        yield
        return
    done, began_s = threading.Event(), time.monotonic()

    def draw() -> None:
        while not done.is_set():
            _draw(out, [f"{text}: {time.monotonic() - began_s:.0f} s"])
            done.wait(DRAW_EVERY_S)

    drawing = threading.Thread(target=draw, name="penstock-status", daemon=True)
    drawing.start()
    try:
        yield
    finally:
        done.set()
        drawing.join()
        _erase(out)


class StatusLine:
    """Shows the progress of the queries of some pipelines. Call `update` often: it limits its own rate."""

    def __init__(
        self, pipelines: Sequence[Pipeline], *, quiet: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pipelines = pipelines
        self._quiet = quiet
        self._out = terminal(quiet)
        self._clock = clock
        self._shown_s = clock()
        self._read: dict[str, deque[tuple[float, int]]] = {}
        self._started = False

    def starting(self) -> None:
        if self._out is not None:
            _draw(self._out, self._lines())

    def started(self) -> None:
        self._started = True
        for pipeline in self._pipelines:
            queries = ", ".join(query.name for query in pipeline.queries)
            _log.info("pipeline %s has started: %s; checkpoints in %s", pipeline.label, queries, pipeline.folder.path)

    def update(self) -> None:
        now_s = self._clock()
        if now_s - self._shown_s < (LOG_EVERY_S if self._out is None else DRAW_EVERY_S):
            return
        self._shown_s = now_s
        lines = self._lines()
        if self._out is not None:
            _draw(self._out, lines)
        elif not self._quiet:
            for line in lines:
                _log.info("%s", line)

    def ended(self) -> None:
        """Leave the final progress on the terminal or in the log."""
        lines = self._lines() if self._started and not self._quiet else []
        if self._out is not None:
            _erase(self._out)
            self._out.write("".join(f"{line}\n" for line in lines))
            self._out.flush()
        else:
            for line in lines:
                _log.info("%s", line)

    def _lines(self) -> list[str]:
        lines = [
            describe(f"{pipeline.label}.{name}", progress, self._rate(f"{pipeline.label}.{name}", progress.rows_read))
            for pipeline in self._pipelines
            for name, progress in _known(pipeline).items()
        ]
        more = len(lines) - MOST_LINES
        return [*lines[:MOST_LINES], f"and {more} more queries"] if more > 0 else lines

    def _rate(self, name: str, rows: int) -> float:
        """Rows read per second over the last RATE_OVER_S: 0 without input, whatever the last batch read."""
        now_s = self._clock()
        seen = self._read.setdefault(name, deque([(now_s, rows)]))
        seen.append((now_s, rows))
        while len(seen) > 2 and now_s - seen[1][0] >= RATE_OVER_S:
            seen.popleft()
        (then_s, before), passed_s = seen[0], now_s - seen[0][0]
        assert then_s <= now_s
        return (rows - before) / passed_s if passed_s > 0 else 0.0


def describe(name: str, progress: QueryProgress, rows_per_s: float) -> str:
    """The progress of one query in one line."""
    if progress.state == "waiting":
        return f"{name}: waiting to start again after {progress.error}"
    parts = [f"{name}: {progress.state}"]
    if progress.batch_id >= 0:
        parts.append(f"batch {progress.batch_id}")
        parts.append(f"{progress.rows_read:,} rows read ({rows_per_s:,.0f}/s)")
        parts.append(f"{progress.rows_written:,} written")
        if progress.rows_late:
            parts.append(f"{progress.rows_late:,} late")
        if progress.rows_refused:
            parts.append(f"{progress.rows_refused:,} refused")
        if progress.rows_bad:
            parts.append(f"{progress.rows_bad:,} bad ({progress.batch_rows_bad:,} in this batch)")
        if progress.rows_dropped:
            parts.append(f"{progress.rows_dropped:,} dropped")
        if progress.lag is not None:
            parts.append(f"lag {progress.lag:,}")
        if (watermark := _watermark(progress.watermark)) is not None:
            parts.append(f"watermark {watermark}")
        if progress.restarts:
            parts.append(f"{progress.restarts} restarts")
    elif progress.state == "running":
        parts.append("first batch in progress")
    if progress.state == "failed" and progress.error:
        parts.append(progress.error)
    return " · ".join(parts)


def _known(pipeline: Pipeline) -> Mapping[str, QueryProgress]:
    from penstock.spark.run.progress import QueryProgress

    known = pipeline.progress()
    return {query.name: known.get(query.name, QueryProgress(query.name)) for query in pipeline.queries}


def _watermark(text: str | None) -> str | None:
    """The time of day, with the date unless it is today; None before the first row."""
    if text is None:
        return None
    moment = datetime.datetime.fromisoformat(text)
    if moment.year == 1970:
        return None
    is_today = moment.date() == datetime.datetime.now(datetime.UTC).date()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def _draw(out: TextIO, lines: Sequence[str]) -> None:
    """Draw the lines and leave the cursor at their start: what others write then begins on a line of its own."""
    width = shutil.get_terminal_size().columns - 1
    cut = [line if len(line) <= width else line[: max(1, width - 1)] + "…" for line in lines]
    up = f"\x1b[{len(cut) - 1}A" if len(cut) > 1 else ""
    out.write(_CLEAR + "\n".join(cut) + up + "\r")
    out.flush()


def _erase(out: TextIO) -> None:
    out.write(_CLEAR)
    out.flush()
