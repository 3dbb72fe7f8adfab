"""Judging one moment, for whoever looks now and then, such as cron."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.checkpoints.frames import replace_file
from penstock.observe.alerts.judge import Judge, JudgeMemory
from penstock.observe.alerts.rules import Kind, Rule
from penstock.observe.alerts.states import AlertState
from penstock.observe.facts import Snapshot

FORGOTTEN_AFTER_MS: Final = 7 * 86_400_000


def check(
    rules: Iterable[Rule], snapshots: Sequence[Snapshot], memory: JudgeMemory
) -> tuple[list[AlertState], JudgeMemory]:
    """What is wrong now, the gravest first, and what the next check must know.

    A rule need not hold for its `for_s`: nobody waits here, and what is wrong is wrong. What takes time to see, such as
    a topic that is silent, is seen from one check to the next, by what is remembered in between.
    """
    now = [msgspec.structs.replace(rule, for_s=0.0, quiet_s=0.0, **_at_once(rule)) for rule in rules]
    judge = Judge(now, longest_gap_s=math.inf)
    at_ms = snapshots[0].at_ms
    is_usable = memory.at_ms is not None and 0 <= at_ms - memory.at_ms <= FORGOTTEN_AFTER_MS
    judge.recall(memory if is_usable else JudgeMemory())
    states: list[AlertState] = []
    for snapshot in snapshots:
        states = judge.judge(snapshot)
    kept = judge.remember()
    kept.alerts = []
    return [state for state in states if state.is_firing], kept


def _at_once(rule: Rule) -> dict[str, float]:
    return {"threshold": 0.0} if rule.kind is Kind.STREAM_AWAY else {}


def read_memory(path: Path) -> tuple[JudgeMemory, str | None]:
    """What the check before this one knew, and what is wrong with it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=JudgeMemory), None
    except FileNotFoundError:
        return JudgeMemory(), None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return JudgeMemory(), f"{path} cannot be read ({error}): what stands still is seen from the next check on"


def write_memory(path: Path, memory: JudgeMemory) -> str | None:
    """What is wrong, if it cannot be kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(memory))
    except OSError as error:
        return f"{path} cannot be written ({error}): checks will not see what stands still"
    return None
