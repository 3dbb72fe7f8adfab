"""Cases in which processes are killed while they save."""

from __future__ import annotations

from penstock.abc import CheckpointStore, Feature
from penstock.errors import FencedError
from penstock.model import CheckpointKey
from penstock.testing.conformance.checkpoint_samples import (
    StoreSuite,
    claimed,
    number_saved,
    numbered_change,
    only_lease,
)
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.suite import needs

KILLS = 4
MOST_SAVES = 40
LARGE = 3000


class CrashCases(StoreSuite):
    """What was saved is there, and half a change never is, whenever a process dies."""

    @needs(Feature.DURABLE, Feature.STATE, Feature.HISTORY, Feature.DEDUPLICATION)
    def test_after_a_kill_a_change_is_there_as_a_whole_or_not_at_all(self) -> None:
        key = self.fresh_key()
        last = 0
        for number in range(KILLS):
            size = LARGE if number % 2 else 0
            with self.child(save_numbers, key, f"owner-{number}", size) as child:
                said = [child.hear() for _ in range(self.rng.randrange(1, MOST_SAVES))]
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
            child.hear()
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
    """Save changes number by number, and say each number that was saved, until killed."""
    lease = claimed(store, key, owner)
    number = number_saved(store, key)
    while True:  # until killed
        number += 1
        store.save(lease, key, numbered_change(number, size))
        parent.say(number)
