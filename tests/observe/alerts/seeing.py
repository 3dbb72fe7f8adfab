"""Snapshots as tests of alerts need them: times in seconds from a beginning, and one thing wrong at a time."""

from __future__ import annotations

from typing import Final

from penstock.observe.facts import (
    CaptureFacts,
    GroupFacts,
    LetterFacts,
    PartitionFacts,
    PipelineFacts,
    QueryFacts,
    ReaderFacts,
    Snapshot,
    TopicFacts,
)

BEGAN_MS: Final = 1_800_000_000_000


def at(
    second: float,
    *facts: GroupFacts | TopicFacts | LetterFacts | PipelineFacts | CaptureFacts,
    problem: str | None = None,
) -> Snapshot:
    return Snapshot(
        at_ms=BEGAN_MS + round(second * 1000),
        topics={each.name: each for each in facts if isinstance(each, TopicFacts)},
        groups={each.name: each for each in facts if isinstance(each, GroupFacts)},
        letters={each.spec: each for each in facts if isinstance(each, LetterFacts)},
        pipelines={each.name: each for each in facts if isinstance(each, PipelineFacts)},
        problem=problem,
        captures={each.name: each for each in facts if isinstance(each, CaptureFacts)},
    )


def capture(
    name: str = "shop",
    *,
    phase: str = "streaming",
    source: str = "postgresql://db/shop",
    reported_s: float = 0.0,
    time_to_loss_s: float | None = None,
    error: str | None = None,
    is_lost: bool = False,
) -> CaptureFacts:
    at_ms = BEGAN_MS + round(reported_s * 1000)
    return CaptureFacts(name, source, phase, at_ms, time_to_loss_s=time_to_loss_s, is_lost=is_lost, error=error)


def group(
    name: str = "billing",
    *,
    committed: int | None = 0,
    end: int = 0,
    start: int = 0,
    lag_s: float | None = 0.0,
    time_to_loss_s: float | None = None,
    lost: int = 0,
    member: str | None = "worker-1",
) -> GroupFacts:
    """A group that reads one partition of `orders`."""
    reader = ReaderFacts(
        name, "orders", 0, committed, start, end, member, lag_s=lag_s, time_to_loss_s=time_to_loss_s, lost=lost
    )
    return GroupFacts(name, "stable", 1 if member else 0, (reader,))


def topic(name: str = "orders", end: int = 0, *, is_internal: bool = False) -> TopicFacts:
    return TopicFacts(name, (PartitionFacts(name, 0, 0, end),), is_internal=is_internal)


def letters(waiting: int, spec: str = "orders.dlq") -> LetterFacts:
    return LetterFacts(spec, waiting)


def pipeline(
    name: str = "usage",
    *,
    state: str = "running",
    batch_id: int = 0,
    lag: int | None = 0,
    error: str | None = None,
    is_running: bool = True,
) -> PipelineFacts:
    query = QueryFacts("spend", state, batch_id, 0, 0, 0, 0, lag, 0.1, 0.0, 0, None, error, BEGAN_MS)
    return PipelineFacts(name, f"/pipelines/{name}", is_running, (query,))
