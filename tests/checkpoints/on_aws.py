"""What holds for S3 and DynamoDB, which both compare and set manifests: the tests of each call it with its name."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import IO

import pytest

from penstock.checkpoints.objects import store as _store
from penstock.checkpoints.objects.store import VersionedCheckpoints
from penstock.errors import CorruptCheckpointError, FencedError
from penstock.model import CheckpointKey, Lease, Runs
from tests.checkpoints.aws_wire import Wire, lose_answer, make_client
from tests.checkpoints.changes import assert_holds, nth_change, number_in
from tests.checkpoints.small_objects import open_small
from tests.sampling import sample
from tests.servers import LAUNCHER

SAVES = 6
NEVER = 10_000
"""A write that no writer comes to."""
DEATHS_IN_A_SAMPLE = 5


def fresh_key() -> CheckpointKey:
    return CheckpointKey(f"group-{uuid.uuid4().hex[:12]}", "topic", 0)


def claimed(store: VersionedCheckpoints, key: CheckpointKey, owner: str) -> Lease:
    """The lease, taken from whoever has it."""
    seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
    lease = store.claim(key.group, key.lease_name, owner, seen)
    assert lease is not None
    return lease


@contextmanager
def small(service: str) -> Iterator[tuple[VersionedCheckpoints, Wire]]:
    client = make_client(service)
    wire = Wire(client)
    with closing(open_small(service, client)) as store:
        yield store, wire


def check_a_writer_killed_before_any_request(service: str, seed: int) -> None:
    """Let a writer come to its end, then kill others before their first, second, third ... write. Each time the store
    holds all of the last change it was told of, or all of the one after it; and the next owner goes on, and cleans up.
    """
    command = [sys.executable, "-c", LAUNCHER, str(os.getpid()), sys.executable, "-m", "tests.checkpoints.dying_writer"]
    process = subprocess.Popen([*command, service], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        orders, answers = process.stdin, process.stdout
        assert orders is not None
        assert answers is not None
        with small(service) as (store, _):

            def live(die_at: int) -> tuple[int, int | None]:
                key = fresh_key()
                print(f"{key.group} {seed} {SAVES} {die_at}", file=orders, flush=True)
                acknowledged, writes = hear(answers)
                check_what_is_left(store, key, seed, acknowledged)
                return acknowledged, writes

            acknowledged, writes = live(die_at=NEVER)
            assert acknowledged == SAVES
            assert writes is not None
            assert writes > 2 * SAVES, "the writer wrote no parts, so little was tested"
            for die_at in sample(range(1, writes + 1), DEATHS_IN_A_SAMPLE):
                _, ended = live(die_at)
                assert ended is None, f"the writer should have died before write {die_at}"
    finally:
        process.kill()
        process.communicate()


def hear(output: IO[str]) -> tuple[int, int | None]:
    """The last change that a writer has acknowledged, once it is dead, and how many writes took it to its end."""
    acknowledged, writes = 0, None
    while (line := output.readline().strip()) != "dead":
        assert line, "the process that starts the writers has ended"
        assert not line.startswith("failed"), line
        if line.startswith("end"):
            writes = int(line.removeprefix("end "))
        else:
            acknowledged = int(line)
    return acknowledged, writes


def check_what_is_left(store: VersionedCheckpoints, key: CheckpointKey, seed: int, acknowledged: int) -> None:
    number = number_in(store, key)
    assert number in (acknowledged, acknowledged + 1)
    assert_holds(store, key, seed, number)
    lease = claimed(store, key, "next owner")
    store.save(lease, key, nth_change(seed, number + 1))
    assert_holds(store, key, seed, number + 1)
    assert set(store._objects.parts(key.group, key.lease_name)) == parts_needed(store, key)


def scattered(count: int, seed: int) -> Runs:
    """Runs of finished records without any pattern, so that they do not become small in bytes."""
    rng = random.Random(seed)
    edges = itertools.accumulate(rng.randrange(1, 50) for _ in range(2 * count))
    return tuple(zip(edges, edges, strict=True))


def check_a_missing_part_is_told(service: str) -> None:
    with small(service) as (store, _), small(service) as (other, _):
        key = fresh_key()
        lease = claimed(store, key, "owner")
        for number in range(1, 12):
            store.save(lease, key, nth_change(1, number))
        store._objects.remove_parts(key.group, key.lease_name, store._objects.parts(key.group, key.lease_name))
        with pytest.raises(CorruptCheckpointError, match="is missing"):
            other.state(key)
        with pytest.raises(CorruptCheckpointError, match="is missing"):
            save_many(other, lease, key)


def save_many(store: VersionedCheckpoints, lease: Lease, key: CheckpointKey) -> None:
    for number in range(12, 36):
        store.save(lease, key, nth_change(1, number))


def parts_needed(store: VersionedCheckpoints, key: CheckpointKey) -> set[str]:
    manifest = store._manifests.all(key.group)[key.lease_name]
    return store._version(key, manifest).parts | ({manifest.part} if manifest.part else set())


def check_a_paused_owner_is_fenced(service: str, seed: int) -> None:
    """An owner is stopped just before each of the writes of a save; another one takes over and saves; then the first
    one goes on. What it writes then changes nothing."""
    with small(service) as (old, wire), small(service) as (new, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(_store, "AT_ONCE", 1000)  # so that the last write of a save is the one that makes it count
        last, writes = a_save_with_parts(old, wire, seed)
        for pause_at in sample(range(1, writes + 1), 3):
            key = fresh_key()
            lease = claimed(old, key, "old owner")
            for number in range(1, last):
                old.save(lease, key, nth_change(seed, number))

            def take_over(number: int, key: CheckpointKey = key, pause_at: int = pause_at) -> None:
                if number == pause_at:
                    taken = claimed(new, key, "new owner")
                    for later in (last, last + 1):
                        new.save(taken, key, nth_change(seed, later))

            wire.arm(before=take_over)
            with pytest.raises(FencedError, match="'new owner' holds it"):
                old.save(lease, key, nth_change(seed, last))
            wire.arm()
            assert_holds(new, key, seed, last + 1)
            with pytest.raises(FencedError):
                old.renew(lease)
            old.release(lease)
            assert [each.owner for each in new.leases(key.group)] == ["new owner"]


def a_save_with_parts(store: VersionedCheckpoints, wire: Wire, seed: int) -> tuple[int, int]:
    """The number of a change whose save needs several writes, the last of which makes it count, and how many."""
    key = fresh_key()
    lease = claimed(store, key, "counting")
    for number in range(1, 100):
        wire.arm()
        store.save(lease, key, nth_change(seed, number))
        if number > 1 and wire.writes > 2:
            return number, wire.writes
    raise AssertionError("no save wrote parts, so none has a middle")


def check_lost_answers(service: str, seed: int) -> None:
    """The answer to one write after the other is lost, so the client sends it again: claims are won all the same, and
    nothing is saved twice."""
    with small(service) as (store, wire):
        for lost in sample(range(1, 12), 4):
            key = fresh_key()
            lose_answer(wire, lost)
            lease = store.claim(key.group, key.lease_name, "owner", None)
            assert lease is not None
            for number in range(1, 4):
                store.save(lease, key, nth_change(seed, number))
                lease = store.renew(lease)
            wire.arm()
            assert_holds(store, key, seed, 3)
            assert store.leases(key.group) == [lease]
