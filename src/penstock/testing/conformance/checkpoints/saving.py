"""Cases about saving and loading: exactly what was saved, only by the holder of the lease, and after a kill."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Mapping
from dataclasses import replace

from penstock.abc import CheckpointStore, Feature
from penstock.errors import CorruptCheckpointError, FencedError, GroupError
from penstock.model import Change, Checkpoint, CheckpointKey, Failing, Lease
from penstock.testing.conformance.checkpoints.samples import (
    NOW_MS,
    StoreSuite,
    at,
    claimed,
    full_checkpoint,
    history_entry,
    number_saved,
    numbered_change,
    only_lease,
)
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.suite import needs

MANY_RUNS = 300_000
HUGE = 1 << 200
ODD_NAMES = (
    "with space",
    "a/b/../c",
    "a:b",
    ":",
    "-",
    ".",
    "..",
    "UPPER",
    "upper",
    "naïve-数-🦆",
    "100%_'quoted\"",
    "back\\slash",
    "tab\tand\nline",
    "*[?]{}",
    "x" * 240,
    "x" * 239 + "y",
)


class SavingCases(StoreSuite):
    def test_what_was_never_saved_is_not_there(self) -> None:
        store, key = self.open(), self.fresh_key()
        self.check_saved(store, key, None, "nothing was saved")
        assert dict(store.checkpoints(key.group)) == {}, "a group of which nothing was saved has checkpoints"
        assert key.group not in store.groups(), "a group of which nothing was saved is listed"
        claimed(store, key)
        self.check_saved(store, key, None, "a lease was claimed, and nothing saved")
        assert key.group in store.groups(), "a group that has a lease is not listed"

    def test_what_is_saved_is_loaded_with_everything_in_it(self) -> None:
        store, key, lease = self.owned()
        for checkpoint in (at(0, next=0), full_checkpoint(), at(5), full_checkpoint(1 << 62)):
            store.save(lease, key, Change(checkpoint))
            self.check_saved(store, key, checkpoint, "it was saved last")

    def test_checkpoints_are_told_apart_by_group_topic_and_partition(self) -> None:
        store = self.open()
        groups, topics = [self.fresh_name("group") for _ in "ab"], ["t", "t-1", "t-1:1"]
        keys = [CheckpointKey(*each) for each in itertools.product(groups, topics, (0, 1, 11))]
        for number, key in enumerate(keys):
            store.save(claimed(store, key), key, Change(at(number)))
        for number, key in enumerate(keys):
            self.check_saved(store, key, at(number), f"{key} was saved among others")
        for group in groups:
            expected = {key: at(number) for number, key in enumerate(keys) if key.group == group}
            found = dict(store.checkpoints(group))
            assert found == expected, f"checkpoints({group!r}) gave {sorted(map(str, found))}"
            assert group in store.groups(), f"groups() does not have {group!r}"

    def test_names_may_be_odd(self) -> None:
        store, mark = self.open(), self.fresh_name("odd")
        keys = [CheckpointKey(f"{mark}{name}", name, 0) for name in ODD_NAMES]
        for number, key in enumerate(keys):
            lease = claimed(store, key, owner=f"owner {ODD_NAMES[number]}")
            change = numbered_change(1)
            store.save(lease, key, replace(change, checkpoint=at(number)) if not self._has_all() else change)
        for number, key in enumerate(keys):
            if self._has_all():
                assert number_saved(store, key) == 1, f"nothing is there for {key}"
            else:
                self.check_saved(store, key, at(number), f"{key} was saved")
        missing = {key.group for key in keys} - set(store.groups())
        assert not missing, f"groups() does not have {sorted(missing)}"

    def test_pointers_may_be_of_any_size(self) -> None:
        store, key, lease = self.owned()
        for base in ((1 << 63) - 2, (1 << 64) - 2, HUGE, 17 * HUGE + 3):
            checkpoint = Checkpoint(
                base,
                base + HUGE,
                ((base + 1, base + 3), (base + (1 << 70), base + (1 << 71))),
                (Failing(base, 1, "", NOW_MS, NOW_MS),),
            )
            store.save(lease, key, Change(checkpoint))
            self.check_saved(store, key, checkpoint, f"its pointers have {base.bit_length()} bits")

    def test_the_set_of_finished_records_may_be_large(self) -> None:
        store, key, lease = self.owned()
        even = at(0, next=2 * MANY_RUNS + 1, finished=tuple((2 * n + 1, 2 * n + 2) for n in range(MANY_RUNS)))
        edges = list(itertools.accumulate(self.rng.choices(range(1, 300), k=MANY_RUNS // 3 * 2)))
        mixed = at(0, next=edges[-1], finished=tuple(zip(edges[::2], edges[1::2], strict=True)))
        for checkpoint in (even, mixed, at(9)):
            store.save(lease, key, Change(checkpoint))
            self.check_saved(store, key, checkpoint, f"it has {len(checkpoint.finished)} runs")

    def test_texts_of_errors_may_be_odd(self) -> None:
        store, key, lease = self.owned()
        for text in ("x" * 100_000, "nul \0 in it", "half a pair \udc80", "naïve 数 🦆\r\n"):
            failing = (Failing(1, 1, text, NOW_MS, NOW_MS),)
            lines = (history_entry(1, error=text),) if Feature.HISTORY in self.features else ()
            store.save(lease, key, Change(at(1, failing=failing), history=lines))
            loaded = store.load(key)
            assert loaded is not None, "a checkpoint with an odd text was not saved"
            assert loaded.failing[0].error[:4] == text[:4], (
                f"the error {text[:20]!r} became {loaded.failing[0].error!r}"
            )

    def test_who_lost_the_lease_can_save_nothing_of_a_change(self) -> None:
        store, key = self.open(), self.fresh_key()
        old = claimed(store, key, "a")
        new = claimed(store, key, "b")
        first = self._one_of(numbered_change(1))
        store.save(new, key, first)
        strangers: Mapping[str, Lease] = {
            "the owner before": old,
            "the owner before, with the new epoch": replace(old, epoch=new.epoch),
            "the owner, with an epoch that is over": replace(new, epoch=old.epoch),
            "the owner, with an epoch to come": replace(new, epoch=new.epoch + 1),
            "nobody": replace(new, owner=""),
        }
        for who, lease in strangers.items():
            with self.expect(FencedError, f"{who} saved"):
                store.save(lease, key, self._one_of(numbered_change(2)))
            self._check_number(store, key, 1, f"the save of {who} was refused")
        store.release(new)
        with self.expect(FencedError, "who has released the lease saved"):
            store.save(new, key, self._one_of(numbered_change(2)))
        with self.expect(FencedError, "somebody saved in the name of nobody, under a lease that was released"):
            store.save(only_lease(store, key.group), key, self._one_of(numbered_change(2)))
        self._check_number(store, key, 1, "a save after the release was refused")
        never = self.fresh_key()
        with self.expect(FencedError, "somebody saved who has never claimed the lease"):
            store.save(Lease(never.group, never.lease_name, "a", 1, 0), never, self._one_of(numbered_change(1)))
        self._check_number(store, never, 0, "a save without a lease was refused")

    def test_the_lease_of_one_partition_does_not_serve_for_another(self) -> None:
        store, key = self.open(), self.fresh_key()
        other = replace(key, partition=1)
        claimed(store, other, "b")
        with self.expect(FencedError, "a partition was saved with the lease of another"):
            store.save(claimed(store, key, "a"), other, Change(at(1)))
        self.check_saved(store, other, None, "it was saved with the lease of another partition only")

    def test_the_beat_of_a_lease_does_not_matter_when_saving(self) -> None:
        store, key, lease = self.owned()
        store.renew(store.renew(lease))
        store.save(lease, key, Change(at(1)))
        self.check_saved(store, key, at(1), "the lease was renewed elsewhere, and is still the same")

    def test_threads_may_save_at_once(self) -> None:
        store, group = self.open(), self.fresh_name("group")

        def save_many(key: CheckpointKey) -> None:
            lease = claimed(store, key)
            for number in range(1, 11):
                lease = store.renew(lease)
                store.save(lease, key, self._one_of(numbered_change(number)))

        keys = [CheckpointKey(group, "t", partition) for partition in range(8)]
        for future in [self.in_background(save_many, key) for key in keys]:
            future.result(60)
        for key in keys:
            self._check_number(store, key, 10, "ten changes were saved by a thread among others")

    @needs(Feature.DURABLE)
    def test_two_stores_on_one_storage_see_what_the_other_does(self) -> None:
        one, two, key = self.open(), self.open(), self.fresh_key()
        old = claimed(one, key, "a")
        one.save(old, key, self._one_of(numbered_change(1)))
        self._check_number(two, key, 1, "it was saved by another store")
        assert list(two.leases(key.group)) == [old], "a lease that was claimed in another store is not seen"
        new = claimed(two, key, "b")
        with self.expect(FencedError, "an owner saved that was replaced by way of another store"):
            one.save(old, key, self._one_of(numbered_change(2)))
        two.save(new, key, self._one_of(numbered_change(2)))
        self._check_number(one, key, 2, "it was saved by another store")

    def test_a_group_in_use_is_not_forgotten(self) -> None:
        store, key, lease = self.owned()
        store.save(lease, key, Change(at(1)))
        with self.expect(GroupError, "a group was forgotten that is in use"):
            store.forget(key.group)
        self.check_saved(store, key, at(1), "its group was in use and could not be forgotten")

    def test_a_forgotten_group_is_gone_and_its_old_owners_stay_fenced(self) -> None:
        store, key, other = self.open(), self.fresh_key(), self.fresh_key()
        store.save(claimed(store, other), other, self._one_of(numbered_change(1)))
        lease = claimed(store, key, "a")
        store.save(lease, key, self._one_of(numbered_change(1)))
        store.release(lease)
        store.forget(key.group)
        self._check_number(store, key, 0, "its group was forgotten")
        assert list(store.leases(key.group)) == [], "a group that was forgotten has leases"
        assert key.group not in store.groups(), "a group that was forgotten is listed"
        self._check_number(store, other, 1, "another group was forgotten")
        with self.expect(FencedError, "an owner of a group that was forgotten saved"):
            store.save(lease, key, Change(at(2)))
        again = claimed(store, key, "a")
        assert again.epoch > lease.epoch, f"a forgotten group came back with epoch {again.epoch} after {lease.epoch}"
        with self.expect(FencedError, "an owner from before the group was forgotten saved"):
            store.save(lease, key, Change(at(2)))
        store.save(again, key, self._one_of(numbered_change(1)))
        self._check_number(store, key, 1, "it was saved after its group had been forgotten")
        store.forget(self.fresh_name("group"))

    def test_a_damaged_checkpoint_is_an_error_that_names_it_and_a_new_one_can_be_saved(self) -> None:
        if self.spoil is None:
            raise unittest.SkipTest("no function was given that damages a checkpoint: checkpoint_store(..., spoil=...)")
        store, key, lease = self.owned()
        for number in (1, 2):
            store.save(lease, key, Change(at(number)))
        self.spoil(store, key)
        fresh = self.open() if Feature.DURABLE in self.features else store
        with self.expect(CorruptCheckpointError, "a damaged checkpoint was loaded") as caught:
            fresh.load(key)
        assert key.group in str(caught.error), f"the error does not name the group: {caught.error}"
        with self.expect(CorruptCheckpointError, "a damaged checkpoint was among those of its group"):
            fresh.checkpoints(key.group)
        fresh.save(lease, key, Change(at(3)))
        self.check_saved(fresh, key, at(3), "it was saved in place of a damaged one")

    def test_a_store_may_be_closed_twice(self) -> None:
        store = self.opener()
        store.close()
        store.close()

    def _has_all(self) -> bool:
        return {Feature.STATE, Feature.HISTORY, Feature.DEDUPLICATION} <= self.features

    def _one_of(self, change: Change) -> Change:
        """The change, or as much of it as the store can keep."""
        return change if self._has_all() else Change(change.checkpoint)

    def _check_number(self, store: CheckpointStore, key: CheckpointKey, number: int, why: str) -> None:
        if self._has_all():
            found = number_saved(store, key)
        else:
            checkpoint = store.load(key)
            found = 0 if checkpoint is None else checkpoint.start
        assert found == number, f"{why}: of {key}, number {found} is there instead of {number}"


KILLS = 4
MOST_SAVES = 40
LARGE = 3000


class StoreCrashCases(StoreSuite):
    """What was saved survives, and a change is never half saved, whenever a process dies."""

    @needs(Feature.DURABLE, Feature.STATE, Feature.HISTORY, Feature.DEDUPLICATION)
    def test_after_a_kill_a_change_is_there_as_a_whole_or_not_at_all(self) -> None:
        key = self.fresh_key()
        last = 0
        for number in range(KILLS):
            size = LARGE if number % 2 else 0
            with self.child(save_numbers, key, f"owner-{number}", size) as child:
                said = [child.receive() for _ in range(self.rng.randrange(1, MOST_SAVES))]
                said += child.kill()
            found = number_saved(self.open(), key)
            acknowledged = max(last, *said)
            assert acknowledged <= found <= acknowledged + 1, (
                f"{acknowledged} was acknowledged before the process was killed, and {found} is there"
            )
            last = found

    @needs(Feature.DURABLE, Feature.LEASES)
    def test_what_a_killed_owner_held_can_be_taken_over_at_once(self) -> None:
        key = self.fresh_key()
        with self.child(save_numbers, key, "first", 0) as child:
            child.receive()
            child.kill()
        store = self.open()
        old = only_lease(store, key.group)
        assert old.owner == "first", f"the owner was killed, and the lease says {old}"
        new = claimed(store, key, "second")
        number = number_saved(store, key)
        with self.expect(FencedError, "an owner that is dead could still save"):
            store.save(old, key, numbered_change(number + 1))
        store.save(new, key, numbered_change(number + 1))
        assert number_saved(store, key) == number + 1, "the new owner's save is not there"


def save_numbers(store: CheckpointStore, parent: Parent, key: CheckpointKey, owner: str, size: int) -> None:
    """Save numbered changes, and report each saved number, until killed."""
    lease = claimed(store, key, owner)
    number = number_saved(store, key)
    while True:  # until killed
        number += 1
        store.save(lease, key, numbered_change(number, size))
        parent.send(number)
