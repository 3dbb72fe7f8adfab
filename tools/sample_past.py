"""The past of a sample stream: an hour of the console's history, and what a pipeline on Spark has left in its folder.

Both are written here as the console and Spark would have written them, as nobody wants to wait an hour for a picture.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from penstock.observe.facts import (
    GroupFacts,
    LetterFacts,
    PartitionFacts,
    PipelineFacts,
    QueryFacts,
    ReaderFacts,
    Snapshot,
    TopicFacts,
)
from penstock.observe.history.history import History

HOUR_S: Final = 3_600
STEP_S: Final = 30
PIPELINE: Final = "usage"
LETTERS: Final = "card-transactions.dlq"


def add_history(path: Path, sent: Mapping[str, int], dice: random.Random) -> None:
    """What a console that watched for the last hour has kept, of topics to which so many records were sent in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    history = History(path)
    now_s = int(time.time())
    try:
        for at_s in range(now_s - HOUR_S, now_s, STEP_S):
            history.add(_moment(at_s, (at_s - now_s + HOUR_S) / HOUR_S, sent, dice))
    finally:
        history.close()


def add_pipeline(folder: Path) -> None:
    """What a pipeline that has run for an hour has left in its folder."""
    folder.mkdir(parents=True)
    now_s = time.time()
    (folder / "pipeline.json").write_text(json.dumps({"format": 1, "name": PIPELINE, "version": None}))
    queries = [_progress(each, now_s) for each in _queries(1.0, int(now_s * 1000), random.Random(1))]
    (folder / "progress.json").write_text(json.dumps({"pipeline": PIPELINE, "queries": queries}))
    lost = "BrokerUnavailableError: the broker did not answer within 30 s"
    told = [
        {"at": now_s - 3_300, "query": "spend", "what": "started", "error": None, "batch_id": -1},
        {"at": now_s - 3_290, "query": "late-orders", "what": "started", "error": None, "batch_id": -1},
        {"at": now_s - 1_505, "query": "spend", "what": "restarted", "error": lost, "batch_id": 701},
    ]
    (folder / "happenings.jsonl").write_text("".join(json.dumps(each) + "\n" for each in told))


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """The pipeline is seen to run for as long as this lasts: its lock is held, as Spark's driver holds it."""
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _moment(at_s: int, part: float, sent: Mapping[str, int], dice: random.Random) -> Snapshot:
    """`part` of the hour is over: traffic swells and ebbs, billing stumbles, catches up, and stumbles again."""
    swell = 1 + 0.35 * math.sin(part * 9.4)
    topics = {}
    for name, count in sent.items():
        held = (PartitionFacts(name, 0, 0, int(count * part), int(150 * count * part)),)
        topics[name] = TopicFacts(name, held, rate_per_s=count / HOUR_S * swell * dice.uniform(0.93, 1.07))
    stumble = max(0.0, math.sin(part * 8.5)) * 2_400 + part**4 * 6_000
    lags = {"billing": stumble, "shipping": 20 * dice.random(), "search-index": 450 * dice.uniform(0.9, 1.1)}
    groups = {}
    for name, lag in lags.items():
        reader = ReaderFacts(name, "orders", 0, 10_000, 0, 10_000 + int(lag), lag_s=lag / 7)
        rate = sum(sent.values()) / HOUR_S / 3.2 * (1 + 0.35 * math.sin(part * 9.4 - 0.4)) * dice.uniform(0.9, 1.05)
        groups[name] = GroupFacts(name, "stable", 1, (reader,), rate_per_s=rate)
    letters = {LETTERS: LetterFacts(LETTERS, int(90 * part))}
    pipelines = {PIPELINE: PipelineFacts(PIPELINE, "", True, _queries(part, at_s * 1000, dice))}
    return Snapshot(at_s * 1000, topics, groups, letters, pipelines)


def _queries(part: float, at_ms: int, dice: random.Random) -> tuple[QueryFacts, ...]:
    wave = 1 + 0.3 * math.sin(part * 9.4)
    made = []
    for name, scale in (("spend", 1.0), ("late-orders", 0.2)):
        rows = int(184_220 * part * scale)
        made.append(
            QueryFacts(
                query=name,
                state="running",
                batch_id=int(1_412 * part),
                rows_read=rows,
                rows_written=rows // 6,
                rows_late=int(37 * part * scale),
                restarts=1 if part > 0.6 and name == "spend" else 0,
                lag=int(96 * wave * scale * dice.uniform(0.7, 1.3)),
                batch_s=round(0.31 * wave * dice.uniform(0.85, 1.2) * (0.6 + 0.4 * scale), 3),
                rows_per_s=round(812 * wave * scale * dice.uniform(0.95, 1.05), 1),
                state_rows=int(2_380 * (0.4 + 0.6 * part) * scale),
                watermark=time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at_ms / 1000 - 62)),
                error=None,
                at_ms=at_ms,
            )
        )
    return tuple(made)


def _progress(query: QueryFacts, now_s: float) -> dict[str, Any]:
    told = asdict(query)
    del told["at_ms"]
    return {**told, "sources": [], "at": now_s}
