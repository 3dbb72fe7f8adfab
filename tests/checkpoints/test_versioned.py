from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from penstock.checkpoints.objects import segments as _segments
from penstock.checkpoints.objects.manifests import Segment
from penstock.checkpoints.objects.store import VersionedCheckpoints
from penstock.errors import FencedError, GroupError, StoreUnavailableError
from penstock.model import Change, Checkpoint, CheckpointKey, Handled, HistoryEntry, Lease, Status
from tests.checkpoints.changes import assert_holds, nth_change
from tests.checkpoints.memory_objects import MemoryObjects
from tests.checkpoints.on_aws import parts_needed
from tests.seeds import seed_of

KEY = CheckpointKey("group", "topic", 0)


def claimed(store: VersionedCheckpoints, key: CheckpointKey, owner: str) -> Lease:
    seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
    lease = store.claim(key.group, key.lease_name, owner, seen)
    assert lease is not None
    return lease


def test_many_changes_by_many_owners_leave_what_they_say_and_nothing_else() -> None:
    seed = seed_of()
    rng = random.Random(seed)
    objects = MemoryObjects()
    store = VersionedCheckpoints(objects)
    lease = claimed(store, KEY, "owner 0")
    for number in range(1, 300):
        if rng.random() < 0.05:
            store = VersionedCheckpoints(objects)  # as another process would, which remembers nothing
            lease = claimed(store, KEY, f"owner {number}")
        store.save(lease, KEY, nth_change(seed, number))
        if number % 20 == 0:
            assert_holds(VersionedCheckpoints(objects), KEY, seed, number)
    store.release(lease)
    assert set(objects.parts(KEY.group, KEY.lease_name)) == parts_needed(store, KEY)


def test_a_partition_has_few_segments_however_many_changes_there_were() -> None:
    objects = MemoryObjects()
    store = VersionedCheckpoints(objects)
    lease = claimed(store, KEY, "owner")
    for number in range(1, 2000):
        state = {b"%d" % number: b"x" * 30}
        store.save(lease, KEY, Change(Checkpoint(number, number), state=state, handled=(Handled(str(number), number),)))
    version = store._version(KEY, store._manifests.all(KEY.group)[KEY.lease_name])
    assert max(len(version.state), len(version.handled)) <= 12
    assert len(store.state(KEY)) == 1999
    assert len(store.handled(KEY.group, KEY.topic, [str(number) for number in range(3000)])) == 1999


def test_what_is_forgotten_is_removed_from_the_store_too() -> None:
    objects = MemoryObjects()
    store = VersionedCheckpoints(objects)
    lease = claimed(store, KEY, "owner")
    for number in range(1, 400):
        lines = (HistoryEntry(number, number + 1, Status.SUCCEEDED, 1, "", number, number, "owner", "handler"),)
        handled = (Handled(str(number), number),)
        store.save(
            lease, KEY, Change(Checkpoint(number, number), lines, {}, handled, max(0, number - 10), max(0, number - 10))
        )
    version = store._version(KEY, store._manifests.all(KEY.group)[KEY.lease_name])
    assert sum(segment.size_bytes for segment in version.lines) < 3000
    assert [line.first for line in store.history(KEY)] == list(range(389, 400))
    known = store.handled(KEY.group, KEY.topic, [str(number) for number in range(500)])
    assert known == {str(number) for number in range(389, 400)}


def test_a_segment_is_merged_with_those_before_it_that_are_not_much_larger() -> None:
    sizes = (1000, 100, 30, 10)
    segments = [Segment(str(size), size) for size in sizes]
    assert _segments.from_where(segments, 1) == 4
    assert _segments.from_where(segments, 10) == 2
    assert _segments.from_where(segments, 400) == 0
    assert _segments.from_where(segments, 400, limit_bytes=600) == 1


def test_renewing_and_saving_at_once_lose_nothing() -> None:
    seed = seed_of()
    objects = MemoryObjects()
    store = VersionedCheckpoints(objects)
    lease = claimed(store, KEY, "owner")
    is_over = threading.Event()
    beats: list[int] = []

    def renew() -> None:
        now = lease
        while not is_over.is_set():
            now = store.renew(now)
            beats.append(now.beat)

    renewer = threading.Thread(target=renew)
    renewer.start()
    try:
        for number in range(1, 150):
            store.save(lease, KEY, nth_change(seed, number))
    finally:
        is_over.set()
        renewer.join()
    assert_holds(store, KEY, seed, 149)
    assert beats == list(range(1, len(beats) + 1))


def test_an_owner_needs_no_reading_to_save() -> None:
    objects = MemoryObjects()
    store = VersionedCheckpoints(objects)
    lease = claimed(store, KEY, "owner")
    reads = objects.reads
    for number in range(1, 4):
        store.save(lease, KEY, Change(Checkpoint(number, number)))
        lease = store.renew(lease)
    assert objects.reads == reads


@pytest.mark.parametrize("is_saved_first", [False, True])
def test_a_save_whose_answer_is_unknown_is_told_apart_from_one_that_was_refused(is_saved_first: bool) -> None:
    """The write is done, or not; another owner claims; and then the first one hears that it was not done."""
    objects = MemoryObjects()
    old, new = VersionedCheckpoints(objects), VersionedCheckpoints(objects)
    lease = claimed(old, KEY, "old")
    swap = objects.swap_manifest

    def lose(group: str, name: str, stamp: str | None, data: bytes) -> str | None:
        objects.swap_manifest = swap  # type: ignore[method-assign]
        if is_saved_first:
            swap(group, name, stamp, data)
        claimed(new, KEY, "new")
        return swap(group, name, stamp, data)

    objects.swap_manifest = lose  # type: ignore[method-assign]
    if is_saved_first:
        old.save(lease, KEY, nth_change(1, 1))
    else:
        with pytest.raises(FencedError):
            old.save(lease, KEY, nth_change(1, 1))
    assert_holds(new, KEY, 1, int(is_saved_first))


def test_parts_of_a_write_that_may_still_arrive_are_kept() -> None:
    """The answer to a save never comes. Its manifest arrives long afterwards, before the owner has tried again."""
    objects = MemoryObjects()
    store = VersionedCheckpoints(objects)
    lease = claimed(store, KEY, "owner")
    for number in range(1, 9):
        store.save(lease, KEY, nth_change(3, number))
    swap, late = objects.swap_manifest, list[Callable[[], object]]()

    def vanish(group: str, name: str, stamp: str | None, data: bytes) -> str | None:
        late.append(lambda: swap(group, name, stamp, data))
        raise StoreUnavailableError("no answer")

    objects.swap_manifest = vanish  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailableError):
        store.save(lease, KEY, nth_change(3, 9))
    objects.swap_manifest = swap  # type: ignore[method-assign]
    late.pop()()
    assert_holds(VersionedCheckpoints(objects), KEY, 3, 9)
    store.save(lease, KEY, nth_change(3, 9))
    store.save(lease, KEY, nth_change(3, 10))
    assert_holds(store, KEY, 3, 10)


def test_a_version_that_is_replaced_while_it_is_read_is_read_again() -> None:
    objects = MemoryObjects()
    store, reader = VersionedCheckpoints(objects), VersionedCheckpoints(objects)
    lease = claimed(store, KEY, "owner")
    for number in range(1, 30):
        store.save(lease, KEY, nth_change(5, number))
    get = objects.get_part

    def change_first(group: str, name: str, part: str) -> bytes | None:
        objects.get_part = get  # type: ignore[method-assign]
        for number in range(30, 60):
            store.save(lease, KEY, nth_change(5, number))
        store._cleaner.clean(group, name)
        return get(group, name, part)

    objects.get_part = change_first  # type: ignore[method-assign]
    assert reader.state(KEY) == VersionedCheckpoints(objects).state(KEY)
    assert_holds(reader, KEY, 5, 59)


def test_a_group_that_is_claimed_while_it_is_forgotten_stays() -> None:
    objects = MemoryObjects()
    store, other = VersionedCheckpoints(objects), VersionedCheckpoints(objects)
    last = CheckpointKey("group", "topic", 1)
    for key in (KEY, last):
        lease = claimed(store, key, "owner")
        store.save(lease, key, nth_change(7, 1))
        store.release(lease)
    objects.before_swap = lambda: claimed(other, last, "newcomer")
    with pytest.raises(GroupError, match="is in use"):
        store.forget("group")
    assert {lease.name: lease.owner for lease in store.leases("group")} == {
        KEY.lease_name: "",
        last.lease_name: "newcomer",
    }
    assert store.load(KEY) == store.load(last) == nth_change(7, 1).checkpoint
