"""The numbers of a snapshot that go into the history."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from penstock.observe.facts import GroupFacts, PipelineFacts, QueryFacts, Snapshot, TopicFacts, total

METRICS: Final[Mapping[str, Mapping[str, str]]] = {
    "system": {
        "rate_per_s": "Records appended a second, to all topics but internal ones.",
        "read_per_s": "Records read a second, by all groups.",
        "lag": "Records that groups have not read, in total.",
        "lag_s": "How long the oldest of them has been waiting, in seconds.",
        "letters": "Dead letters that wait, in all stores.",
    },
    "topic": {
        "rate_per_s": "Records appended a second.",
        "size_bytes": "Bytes on the disk.",
        "records": "Records that can be read.",
    },
    "group": {
        "lag": "Records that it has not read.",
        "lag_s": "How long the oldest of them has been waiting, in seconds.",
        "rate_per_s": "Records read a second.",
    },
    "letters": {"waiting": "Dead letters that wait."},
    "pipeline": {
        "rows_per_s": "Rows processed a second, by all queries.",
        "lag": "Records in the sources that its queries have not read.",
        "batch_s": "How long the last batch took, of the slowest query.",
        "state_rows": "Rows that stateful operators keep.",
        "rows_late": "Rows of this run that arrived after their windows were closed.",
    },
    "query": {
        "rows_per_s": "Rows processed a second.",
        "lag": "Records in its sources that it has not read.",
        "batch_s": "How long the last batch took.",
        "state_rows": "Rows that its stateful operators keep.",
        "rows_late": "Rows of this run that arrived after their windows were closed.",
    },
}
"""The metrics of each kind, with their meanings. The name of the subject is "" for the system, and PIPELINE/QUERY for a
query."""

Series = tuple[str, str, str]
_DIGITS: Final = 4


def measured(snapshot: Snapshot) -> dict[Series, float | None]:
    """Every metric of everything in a snapshot; None where it is unknown.

    Values are rounded to four significant digits: smaller changes are not worth a row of history.
    """
    found: dict[Series, float | None] = {}
    topics = [each for each in snapshot.topics.values() if not each.is_internal]
    _add(found, "system", "", _system(snapshot, topics))
    for topic in topics:
        values = {"rate_per_s": topic.rate_per_s, "size_bytes": topic.size_bytes, "records": topic.records}
        _add(found, "topic", topic.name, values)
    for name, group in snapshot.groups.items():
        _add(found, "group", name, _group(group))
    for spec, letters in snapshot.letters.items():
        _add(found, "letters", spec, {"waiting": letters.waiting})
    for name, pipeline in snapshot.pipelines.items():
        _add(found, "pipeline", name, _pipeline(pipeline))
        for query in pipeline.queries:
            _add(found, "query", f"{name}/{query.query}", _query(query, pipeline.is_running))
    return found


def _system(snapshot: Snapshot, topics: list[TopicFacts]) -> dict[str, float | None]:
    rates = [each.rate_per_s for each in topics if each.rate_per_s is not None]
    reads = [each.rate_per_s for each in snapshot.groups.values() if each.rate_per_s is not None]
    return {
        "rate_per_s": sum(rates) if rates or not topics else None,
        "read_per_s": sum(reads) if reads or not snapshot.groups else None,
        "lag": total(each.lag for each in snapshot.groups.values()),
        "lag_s": max((each.lag_s for each in snapshot.groups.values() if each.lag_s is not None), default=None),
        "letters": sum(each.waiting for each in snapshot.letters.values()),
    }


def _group(group: GroupFacts) -> dict[str, float | None]:
    return {"lag": group.lag, "lag_s": group.lag_s, "rate_per_s": group.rate_per_s}


def _pipeline(pipeline: PipelineFacts) -> dict[str, float | None]:
    queries = pipeline.queries
    running = queries if pipeline.is_running else ()
    return {
        "rows_per_s": sum(each.rows_per_s for each in running),
        "lag": pipeline.lag,
        "batch_s": max((each.batch_s for each in running), default=None),
        "state_rows": sum(each.state_rows for each in queries),
        "rows_late": sum(each.rows_late for each in queries),
    }


def _query(query: QueryFacts, is_running: bool) -> dict[str, float | None]:
    return {
        "rows_per_s": query.rows_per_s if is_running else 0.0,
        "lag": query.lag,
        "batch_s": query.batch_s if is_running else None,
        "state_rows": query.state_rows,
        "rows_late": query.rows_late,
    }


def _add(found: dict[Series, float | None], kind: str, name: str, values: Mapping[str, float | None]) -> None:
    assert values.keys() == METRICS[kind].keys()
    for metric, value in values.items():
        found[kind, name, metric] = None if value is None or not math.isfinite(value) else _rounded(value)


def _rounded(value: float) -> float:
    if value == 0 or abs(value) >= 10**_DIGITS:
        return float(round(value))
    return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
