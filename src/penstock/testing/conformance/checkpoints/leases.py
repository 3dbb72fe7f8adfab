"""Cases about leases: compare-and-set decides who may write."""

from __future__ import annotations

import threading
from dataclasses import replace

from penstock.abc import CheckpointStore, Feature
from penstock.errors import FencedError
from penstock.model import Change, CheckpointKey, Lease
from penstock.testing.conformance.checkpoints.samples import StoreSuite, at, claimed, only_lease
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.suite import needs

COMPETITORS = 3
CLAIMS = 25
THREADS = 8


class LeaseCases(StoreSuite):
    def test_the_first_claim_has_epoch_1_and_each_one_after_it_one_more(self) -> None:
        store, group = self.open(), self.fresh_name("group")
        first = store.claim(group, "x", "a", None)
        assert first == Lease(group, "x", "a", 1, 0), f"the first claim gave {first}"
        second = store.claim(group, "x", "b", first)
        assert second == Lease(group, "x", "b", 2, 0), f"the second claim gave {second}"
        again = store.claim(group, "x", "b", second)
        assert again == Lease(group, "x", "b", 3, 0), f"claiming again what one holds gave {again}"
        assert list(store.leases(group)) == [again], f"leases() gave {store.leases(group)} instead of {again}"

    def test_a_claim_of_what_is_not_as_it_was_seen_gets_nothing(self) -> None:
        store, group = self.open(), self.fresh_name("group")
        missing = Lease(group, "x", "a", 1, 0)
        assert store.claim(group, "x", "b", missing) is None, "a lease that is not there was claimed as if it had been"
        held = store.claim(group, "x", "a", None)
        assert held is not None, "a lease that nobody has could not be claimed"
        held = store.renew(held)
        wrong = [
            None,
            replace(held, owner="c"),
            replace(held, owner=""),
            replace(held, epoch=held.epoch + 1),
            replace(held, epoch=held.epoch - 1),
            replace(held, beat=held.beat - 1),
            replace(held, beat=held.beat + 1),
        ]
        for seen in wrong:
            got = store.claim(group, "x", "b", seen)
            assert got is None, f"the lease is {held}; claimed as {seen}, it was given: {got}"
        assert list(store.leases(group)) == [held], f"claims that got nothing changed {held}: {store.leases(group)}"

    def test_a_renewal_raises_the_beat_by_one_and_nothing_else(self) -> None:
        store, group = self.open(), self.fresh_name("group")
        lease = store.claim(group, "x", "a", None)
        assert lease is not None, "a lease that nobody has could not be claimed"
        for beat in (1, 2, 3):
            lease = store.renew(lease)
            assert lease == Lease(group, "x", "a", 1, beat), f"renewal {beat} gave {lease}"
        assert list(store.leases(group)) == [lease], f"leases() gave {store.leases(group)} instead of {lease}"

    def test_who_lost_a_lease_cannot_renew_it(self) -> None:
        store, key = self.open(), self.fresh_key()
        old = claimed(store, key, "a")
        new = claimed(store, key, "b")
        with self.expect(FencedError, "an owner renewed a lease that another has claimed"):
            store.renew(old)
        mine = claimed(store, key, "b")
        with self.expect(FencedError, "an owner renewed a lease under an epoch that is over"):
            store.renew(new)
        store.release(mine)
        with self.expect(FencedError, "an owner renewed a lease that it has released"):
            store.renew(mine)
        with self.expect(FencedError, "a lease was renewed that nobody holds"):
            store.renew(only_lease(store, key.group))
        with self.expect(FencedError, "a lease was renewed that was never claimed"):
            store.renew(Lease(key.group, "never", "a", 1, 0))

    def test_a_released_lease_keeps_its_epoch_and_can_be_claimed(self) -> None:
        store, key = self.open(), self.fresh_key()
        lease = store.renew(claimed(store, key))
        store.release(lease)
        free = only_lease(store, key.group)
        assert (free.owner, free.epoch) == ("", lease.epoch), f"{lease} was released, and is {free}"
        assert store.claim(key.group, key.lease_name, "b", lease) is None, "it was claimed as it was before its release"
        got = store.claim(key.group, key.lease_name, "b", free)
        assert got == Lease(key.group, key.lease_name, "b", lease.epoch + 1, 0), f"claiming {free} gave {got}"

    def test_releasing_what_another_holds_changes_nothing(self) -> None:
        store, key = self.open(), self.fresh_key()
        old = claimed(store, key, "a")
        new = claimed(store, key, "b")
        for stranger in (old, replace(new, owner="a"), replace(new, epoch=1)):
            store.release(stranger)
            assert list(store.leases(key.group)) == [new], f"releasing {stranger} changed {new}"
        store.release(Lease(key.group, "never", "a", 1, 0))
        assert list(store.leases(key.group)) == [new], "releasing a lease that is not there made one"

    def test_leases_come_in_the_order_of_their_names_and_of_one_group_only(self) -> None:
        store, group, other = self.open(), self.fresh_name("group"), self.fresh_name("group")
        names = ["b", "a", "partition:t:10", "partition:t:9", "B", "é", "member:z"]
        for name in names:
            assert store.claim(group, name, "a", None) is not None, f"{name!r} could not be claimed"
        store.claim(other, "elsewhere", "a", None)
        found = [lease.name for lease in store.leases(group)]
        assert found == sorted(names), f"leases() gave {found} instead of {sorted(names)}"

    def test_leases_are_found_by_the_beginning_of_their_names(self) -> None:
        store, group = self.open(), self.fresh_name("group")
        names = ["member:t:a", "member:t:b", "member:t*:x", "member:t.%_[x]?:y", "partition:t:1", "partition:t:10"]
        for name in names:
            assert store.claim(group, name, "a", None) is not None, f"{name!r} could not be claimed"
        for prefix in ("", "member:", "member:t:", "member:t*", "member:t.%_[x]?:", "partition:t:1", "nothing"):
            found = [lease.name for lease in store.leases(group, prefix)]
            wanted = sorted(name for name in names if name.startswith(prefix))
            assert found == wanted, f"leases(group, {prefix!r}) gave {found} instead of {wanted}"

    def test_a_lease_is_forgotten_only_if_it_still_is_like_that(self) -> None:
        store, group = self.open(), self.fresh_name("group")
        lease = store.claim(group, "member:1", "a", None)
        assert lease is not None, "a lease that nobody has could not be claimed"
        renewed = store.renew(lease)
        store.forget_lease(lease)
        assert list(store.leases(group)) == [renewed], "a lease was forgotten whose beat had changed"
        store.forget_lease(renewed)
        assert list(store.leases(group)) == [], "a lease that was as given was not forgotten"
        store.forget_lease(renewed)
        again = store.claim(group, "member:1", "b", None)
        assert again is not None, "a lease that was forgotten could not be claimed"

    def test_of_many_threads_that_claim_at_once_one_gets_it(self) -> None:
        store, group = self.open(), self.fresh_name("group")
        seen: Lease | None = None
        for number in range(10):
            barrier = threading.Barrier(THREADS)

            def claim(owner: str, seen: Lease | None, barrier: threading.Barrier) -> Lease | None:
                barrier.wait(30)
                return store.claim(group, "x", owner, seen)

            futures = [self.in_background(claim, f"o{each}", seen, barrier) for each in range(THREADS)]
            got = [lease for lease in (future.result(60) for future in futures) if lease is not None]
            assert len(got) == 1, f"claim {number + 1} was given {len(got)} times: {got}"
            assert got[0].epoch == number + 1, f"claim {number + 1} has epoch {got[0].epoch}"
            seen = got[0]

    @needs(Feature.DURABLE, Feature.LEASES)
    def test_among_processes_no_lease_is_held_twice(self) -> None:
        """Each process claims from the others, adds to a counter in the checkpoint while it can, and reports how often.

        If two held one lease at once, both would add to the same number, and one addition would be lost.
        """
        key = self.fresh_key()
        said = self.run_together([self.child(compete, key, f"p{number}", CLAIMS) for number in range(COMPETITORS)])
        epochs = sorted(epoch for epoch, _ in said)
        assert epochs == list(range(1, len(epochs) + 1)), f"epochs were granted twice or left out: {epochs}"
        store = self.open()
        checkpoint = store.load(key)
        additions = sum(count for _, count in said)
        assert checkpoint is not None, "nothing was saved"
        assert checkpoint.start == additions, f"{additions} additions were acknowledged; the sum is {checkpoint.start}"


def compete(store: CheckpointStore, parent: Parent, key: CheckpointKey, owner: str, claims: int) -> None:
    """Claim a lease repeatedly, and add one to the checkpoint while it is held. Reports epochs and additions."""
    parent.send("ready")
    parent.receive()
    granted = 0
    while granted < claims:  # ends: when a claim is not granted, another one was
        seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
        lease = store.claim(key.group, key.lease_name, owner, seen)
        if lease is None:
            continue
        granted += 1
        parent.send((lease.epoch, _add_while_held(store, lease, key)))


def _add_while_held(store: CheckpointStore, lease: Lease, key: CheckpointKey) -> int:
    count = 0
    try:
        for _ in range(5):
            before = store.load(key)
            store.save(lease, key, Change(at(1 if before is None else before.start + 1)))
            count += 1
    except FencedError:
        pass  # another process has it now; a refused addition does not count
    return count
