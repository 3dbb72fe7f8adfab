"""Evaluating one snapshot, for checks that run now and then, such as from cron."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from penstock.checkpoints.durable_files import replace_file
from penstock.observe.alerts.evaluator import Evaluator, EvaluatorState
from penstock.observe.alerts.rules import AlertState, Rule, RuleKind
from penstock.observe.facts import Snapshot

FORGOTTEN_AFTER_MS: Final = 7 * 86_400_000


def check(
    rules: Iterable[Rule], snapshots: Sequence[Snapshot], memory: EvaluatorState
) -> tuple[list[AlertState], EvaluatorState]:
    """What is wrong now, most severe first, and the state for the next check.

    A rule fires without waiting for its `for_s`, as nothing runs in between. Conditions that take time to see, such as
    a silent topic, are seen from one check to the next by the stored state.
    """
    now = [msgspec.structs.replace(rule, for_s=0.0, quiet_s=0.0, **_at_once(rule)) for rule in rules]
    evaluator = Evaluator(now, longest_gap_s=math.inf)
    at_ms = snapshots[0].at_ms
    is_usable = memory.at_ms is not None and 0 <= at_ms - memory.at_ms <= FORGOTTEN_AFTER_MS
    evaluator.recall(memory if is_usable else EvaluatorState())
    states: list[AlertState] = []
    for snapshot in snapshots:
        states = evaluator.evaluate(snapshot)
    kept = evaluator.remember()
    kept.alerts = []
    return [state for state in states if state.is_firing], kept


def _at_once(rule: Rule) -> dict[str, float]:
    return {"threshold": 0.0} if rule.kind is RuleKind.STREAM_AWAY else {}


def read_memory(path: Path) -> tuple[EvaluatorState, str | None]:
    """The state of the previous check, and what is wrong with it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EvaluatorState), None
    except FileNotFoundError:
        return EvaluatorState(), None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return EvaluatorState(), f"{path} cannot be read ({error}): stalls are detected from the next check on"


def write_memory(path: Path, memory: EvaluatorState) -> str | None:
    """Store the state. Returns what is wrong if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(memory))
    except OSError as error:
        return f"{path} cannot be written ({error}): checks will not detect stalls"
    return None
