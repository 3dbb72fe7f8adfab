"""Figures side by side, with the bar that each has to reach: on the screen and in `benchmarks/results/`."""

from __future__ import annotations

import datetime
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

RESULTS: Final = Path(__file__).resolve().parent / "results"
PACKAGES: Final = ("penstock", "confluent-kafka", "kio", "crc32c", "cramjam", "numpy", "pyarrow", "numba")


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: ours, theirs, and what the ratio has to be."""

    what: str
    ours: float
    ours_is: str
    theirs: float
    theirs_is: str
    unit: str
    bar: float
    """The ratio of ours to theirs that is asked for."""
    lower_is_better: bool = False

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("inf")

    @property
    def met(self) -> bool:
        return self.ratio <= self.bar if self.lower_is_better else self.ratio >= self.bar

    def line(self) -> str:
        bar = f"{'<=' if self.lower_is_better else '>='} {self.bar:g}x"
        verdict = "met" if self.met else "MISSED"
        return (
            f"| {self.what} | {_number(self.ours)} {self.unit} ({self.ours_is}) "
            f"| {_number(self.theirs)} {self.unit} ({self.theirs_is}) | {self.ratio:.2f}x | {bar} | {verdict} |"
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement with a bar of its own, no peer to compare with."""

    what: str
    value: float
    unit: str
    bar: float | None = None
    lower_is_better: bool = False

    def line(self) -> str:
        if self.bar is None:
            return f"| {self.what} | {_number(self.value)} {self.unit} | | |"
        met = self.value <= self.bar if self.lower_is_better else self.value >= self.bar
        sign = "<=" if self.lower_is_better else ">="
        return (
            f"| {self.what} | {_number(self.value)} {self.unit} | {sign} {_number(self.bar)} {self.unit} "
            f"| {'met' if met else 'MISSED'} |"
        )


@dataclass(slots=True)
class Report:
    rows: list[Row] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        parts = ["# Benchmarks", "", _machine(), ""]
        if self.rows:
            parts += ["| | penstock | peer | ratio | bar | |", "|---|---|---|---|---|---|"]
            parts += [row.line() for row in self.rows] + [""]
        if self.figures:
            parts += ["| | measured | bar | |", "|---|---|---|---|"]
            parts += [figure.line() for figure in self.figures] + [""]
        parts += [f"- {note}" for note in self.notes]
        return "\n".join(parts) + "\n"

    def save(self, name: str) -> Path:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.json").write_text(
            json.dumps(
                {
                    "machine": _machine(),
                    "rows": [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in self.rows],
                    "figures": [asdict(figure) for figure in self.figures],
                    "notes": self.notes,
                },
                indent=2,
            )
            + "\n"
        )
        path = RESULTS / f"{name}.md"
        path.write_text(self.text())
        return path


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _machine() -> str:
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES if _version(name))
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{today}, {os.cpu_count()} cores, Python {platform.python_version()}, {packages}."


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return ""
