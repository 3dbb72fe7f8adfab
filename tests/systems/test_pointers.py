"""Pointers of every stream system pass through every checkpoint store, the tracker, leases and the command line."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

import penstock
from penstock.abc import CheckpointStore
from penstock.checkpoints.opening import open_store
from penstock.cli.main import app as command
from penstock.consuming.loop.tracker import Tracker
from penstock.model import Batch, Checkpoint, CheckpointKey, Claim, Record
from penstock.model.clock import SystemClock
from tests.checkpoints import small_objects
from tests.clients.names import fresh
from tests.postgres import shared_postgres
from tests.redis_server import shared_url
from tests.sampling import sample
from tests.servers import Penstock
from tests.systems.every_system import SYSTEMS

COUNT: Final = 6
WAIT_S: Final = 60.0
ENOUGH_READS: Final = 200


@contextmanager
def kafka_store(folder: Path) -> Iterator[Callable[[], CheckpointStore]]:
    with Penstock(folder / "kafka-store") as broker:
        yield lambda: open_store(f"kafka://{broker.bootstrap}")


@contextmanager
def url_store(name: str, folder: Path) -> Iterator[Callable[[], CheckpointStore]]:
    if name == "s3":
        small_objects.make_bucket()
    urls: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:{folder}/checkpoints.db",
        "file": lambda: f"file:{folder}/checkpoints",
        "postgres": lambda: shared_postgres().fresh_database(),
        "redis": lambda: f"{shared_url()}?prefix={folder.name}:",
        "dynamodb": small_objects.dynamodb_url,
        "s3": small_objects.s3_url,
    }
    url = urls[name]()
    yield lambda: open_store(url)


STORES: Final[dict[str, Callable[[Path], AbstractContextManager[Callable[[], CheckpointStore]]]]] = {
    **{name: functools.partial(url_store, name) for name in ("sqlite", "file", "postgres", "redis", "dynamodb", "s3")},
    "kafka": kafka_store,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("system", SYSTEMS)
def test_pointers_pass_through_every_store_and_the_command_line(
    system: Callable[[Path], AbstractContextManager[str]], tmp_path: Path
) -> None:
    topic = fresh()
    with system(tmp_path / "system") as url:
        with penstock.connect(url) as stream:
            stream.create_topic(topic, partitions=1)
            for number in range(COUNT):
                stream.send(topic, f'{{"number": {number}}}'.encode()).result(WAIT_S)
            batches = _batches(stream, topic, COUNT)
            records = [record for batch in batches for record in batch]
            rest = _batches(stream, topic, COUNT - 1, next(batch.edge(1) for batch in batches if len(batch)))
            texts = [stream.pointer_text(record.offset) for record in records]
            assert [stream.parse_pointer(text) for text in texts] == [record.offset for record in records]
        assert len(records) == COUNT
        _check_command_line(url, topic, records, texts)
    for name in sample(STORES, 3):
        with STORES[name](tmp_path) as opened:
            _check_store(opened, CheckpointKey(fresh(), topic, records[0].partition), batches, rest)


def _batches(stream: penstock.Connection, topic: str, count: int, start: int | None = None) -> list[Batch]:
    """The batches of the partition that has so many records, from its start or from a pointer on."""
    with closing(stream.open_topic(topic)) as opened:
        for partition in opened.partitions():
            at = opened.span(partition)[0] if start is None else start
            batches: list[Batch] = []
            for _ in range(ENOUGH_READS):
                batches.append(opened.read(partition, at, count, 0.2))
                at = batches[-1].next
                if sum(map(len, batches)) == count:
                    return [batch for batch in batches if len(batch) or batch.start != batch.next]
    raise AssertionError(f"the {count} records of {topic} did not come")


def _check_command_line(url: str, topic: str, records: Sequence[Record], texts: Sequence[str]) -> None:
    """Each pointer is shown in the system's own form, and accepted in it."""
    partition = str(records[0].partition)
    for number in (0, COUNT // 2, COUNT - 1):
        arguments = ["consume", topic, "--url", url, "--partition", partition, "--from", f"offset:{texts[number]}"]
        done = CliRunner().invoke(command, [*arguments, "--format", "json"])
        assert done.exit_code == 0, done.output
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        shown = [str(line.get("offset", line.get("pointer"))) for line in lines]
        assert shown == list(texts[number:])
        assert [json.loads(line["value"])["number"] for line in lines] == list(range(number, COUNT))


def _check_store(
    opened: Callable[[], CheckpointStore], key: CheckpointKey, batches: Sequence[Batch], rest: Sequence[Batch]
) -> None:
    """An owner finishes the first and the last record, fails at the second one, and dies; another one goes on."""
    edges = {
        pointer: (batch.edge(index), batch.edge(index + 1))
        for batch in batches
        for index, pointer in enumerate(batch.pointers())
    }
    first, second, *_, last = edges
    start = batches[0].start
    with closing(opened()) as store:
        lease = store.claim(key.group, key.lease_name, "one", None)
        assert lease is not None
        tracker = _tracker(key, Checkpoint(start, start), "one")
        for batch in batches:
            tracker.read(batch)
        for pointer in (first, last):
            tracker.succeeded(*edges[pointer], 1, 1)
        tracker.failed(second, *edges[second], "it fails", 1)
        change = tracker.change()
        claim = Claim(edges[second][0], edges[last][0], "one", 1, 1, 1_000)
        change = dataclasses.replace(change, checkpoint=dataclasses.replace(change.checkpoint, claims=(claim,)))
        store.save(lease, key, change)
    with closing(opened()) as store:
        found = store.load(key)
        assert found == change.checkpoint
        assert found.start == edges[first][1]
        assert found.next == batches[-1].next
        assert store.checkpoints(key.group) == {key: found}
        assert [entry.first for entry in store.history(key, second)] == [edges[second][0]]
        [seen] = store.leases(key.group)
        lease = store.claim(key.group, key.lease_name, "two", seen)
        assert lease is not None
        tracker = _tracker(key, dataclasses.replace(found, claims=()), "two")
        for batch in rest:
            tracker.read(batch)
        assert tracker.attempts(second) == 1
        assert [tracker.is_finished(pointer) for pointer in edges] == [True, *[False] * (COUNT - 2), True]
        for pointer in [*edges][1:-1]:
            tracker.succeeded(*edges[pointer], 1, 1)
        store.save(lease, key, tracker.change(last=True))
        store.release(lease)
        done = store.load(key)
        assert done is not None
        assert (done.start, done.next) == (batches[-1].next, batches[-1].next)


def _tracker(key: CheckpointKey, checkpoint: Checkpoint, owner: str) -> Tracker:
    return Tracker(key, checkpoint, owner=owner, handler="handler", clock=SystemClock())
