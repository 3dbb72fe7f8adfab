"""Cases for stores with transactions: effects and checkpoint, both or neither.

They use the transaction's connection by `execute` with plain SQL, which both sqlite3 and psycopg have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from penstock.abc import CheckpointStore, Feature, StoreTransaction, TransactionalStore
from penstock.errors import FencedError
from penstock.model import Change, CheckpointKey
from penstock.testing.conformance.checkpoints.samples import (
    StoreSuite,
    at,
    claimed,
    number_saved,
    numbered_change,
)
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.suite import needs

KILLS = 3
MOST_EFFECTS = 30
SHARED_EFFECTS = 150


class OnPurpose(Exception):
    """Raised to leave a transaction."""


class TransactionCases(StoreSuite):
    """With exactly-once, an effect counts if and only if its checkpoint does."""

    @needs(Feature.TRANSACTIONS)
    def test_effects_and_checkpoint_are_committed_together(self) -> None:
        store, key, table = self._ready()
        lease = claimed(store, key)
        with transaction(store) as tx:
            put(tx, table, 1)
            tx.save(lease, key, numbered_change(1))
        assert effects(store, table) == [1], f"the effect is not there: {effects(store, table)}"
        assert number_saved(store, key) == 1, "the checkpoint is not there"

    @needs(Feature.TRANSACTIONS)
    def test_effects_and_checkpoint_are_rolled_back_together(self) -> None:
        store, key, table = self._ready()
        lease = claimed(store, key)
        with self.expect(OnPurpose, "a transaction swallowed the error that ended it"), transaction(store) as tx:
            put(tx, table, 1)
            tx.save(lease, key, numbered_change(1))
            raise OnPurpose
        assert effects(store, table) == [], f"effects of a failed transaction are there: {effects(store, table)}"
        assert number_saved(store, key) == 0, "the checkpoint of a failed transaction is there"
        with transaction(store) as tx:
            tx.save(lease, key, numbered_change(1))
        assert number_saved(store, key) == 1, "after a failed transaction, the next one saved nothing"

    @needs(Feature.TRANSACTIONS)
    def test_who_lost_the_lease_commits_no_effect(self) -> None:
        store, key, table = self._ready()
        old = claimed(store, key, "a")
        claimed(store, key, "b")
        with self.expect(FencedError, "who lost the lease committed"), transaction(store) as tx:
            put(tx, table, 1)
            tx.save(old, key, numbered_change(1))
        assert effects(store, table) == [], "the effect of an owner that was fenced is there"
        assert number_saved(store, key) == 0, "the checkpoint of an owner that was fenced is there"

    @needs(Feature.TRANSACTIONS)
    def test_who_swallows_that_the_lease_is_lost_commits_no_effect_either(self) -> None:
        store, key, table = self._ready()
        old = claimed(store, key, "a")
        claimed(store, key, "b")
        with self.expect(FencedError, "a transaction committed whose save had been refused"), transaction(store) as tx:
            put(tx, table, 1)
            try:
                tx.save(old, key, numbered_change(1))
            except FencedError:
                put(tx, table, 2)
        assert effects(store, table) == [], "the effect of an owner that was fenced is there"

    @needs(Feature.TRANSACTIONS, Feature.DURABLE)
    def test_a_claim_in_the_middle_of_a_transaction_comes_before_it_or_after_it(self) -> None:
        """The old owner has begun to save when the new one claims: it is refused, or has committed by then."""
        store, key, table = self._ready()
        other = self.open()
        for number in range(1, 6):
            old = claimed(store, key, "a")
            before = number_saved(store, key)
            refused = False
            try:
                with transaction(store) as tx:
                    put(tx, table, before + 1)
                    if number % 2:
                        tx.save(old, key, numbered_change(before + 1))
                        claim = self.in_background(claim_and_look, other, key)
                    else:
                        claim = self.in_background(claim_and_look, other, key)
                        tx.save(old, key, numbered_change(before + 1))
            except FencedError:
                refused = True
            seen = claim.result(60)
            expected = before if refused else before + 1
            assert seen in (expected, before + 1), f"the new owner found {seen}, where the old one has left {expected}"
            assert seen == expected, f"the new owner found {seen}; later, the old one committed {expected}"
            assert effects(store, table) == list(range(1, expected + 1)), "effects and checkpoint do not agree"

    @needs(Feature.TRANSACTIONS)
    def test_a_savepoint_undoes_only_what_is_inside(self) -> None:
        store, key, table = self._ready()
        lease = claimed(store, key)
        with transaction(store) as tx:
            put(tx, table, 1)
            with self.expect(OnPurpose, "a savepoint swallowed the error that ended it"), tx.savepoint():
                put(tx, table, 2)
                raise OnPurpose
            with tx.savepoint():
                put(tx, table, 3)
                with self.expect(OnPurpose, "a savepoint swallowed the error that ended it"), tx.savepoint():
                    put(tx, table, 4)
                    raise OnPurpose
                put(tx, table, 5)
            tx.save(lease, key, Change(at(1)))
        assert effects(store, table) == [1, 3, 5], f"the effects are {effects(store, table)} instead of [1, 3, 5]"

    @needs(Feature.TRANSACTIONS)
    def test_a_statement_that_fails_inside_a_savepoint_spoils_nothing_else(self) -> None:
        store, key, table = self._ready()
        lease = claimed(store, key)
        with transaction(store) as tx:
            put(tx, table, 1)
            why = "a statement about a table that does not exist did not fail"
            with self.expect(Exception, why), tx.savepoint():
                put(tx, table, 2)
                put(tx, "no_such_table", 3)
            put(tx, table, 4)
            tx.save(lease, key, Change(at(1)))
        assert effects(store, table) == [1, 4], f"the effects are {effects(store, table)} instead of [1, 4]"

    @needs(Feature.TRANSACTIONS)
    def test_ending_the_transaction_from_inside_is_refused(self) -> None:
        endings: dict[str, Callable[[Any], object]] = {
            "commit()": lambda connection: connection.commit(),
            "rollback()": lambda connection: connection.rollback(),
            "COMMIT": lambda connection: connection.execute("COMMIT"),
            "ROLLBACK": lambda connection: connection.execute("ROLLBACK"),
            "END": lambda connection: connection.execute(" -- now\n end"),
        }
        for name, end in endings.items():
            store, key, table = self._ready()
            lease = claimed(store, key)
            with self.expect(Exception, f"{name} inside of a transaction was allowed"), transaction(store) as tx:
                put(tx, table, 1)
                end(tx.connection)
                tx.save(lease, key, numbered_change(1))
            assert effects(store, table) == [], f"{name} inside of a transaction has kept its effect"
            assert number_saved(store, key) == 0, f"{name} inside of a transaction has kept its checkpoint"

    @needs(Feature.TRANSACTIONS)
    def test_threads_have_transactions_of_their_own(self) -> None:
        store, key, table = self._ready()
        group = key.group

        def run(partition: int) -> None:
            mine = CheckpointKey(group, key.topic, partition)
            lease = claimed(store, mine)
            for number in range(1, 6):
                with transaction(store) as tx:
                    put(tx, table, 100 * partition + number)
                    tx.save(lease, mine, numbered_change(number) if partition == 1 else Change(at(number)))

        for future in [self.in_background(run, partition) for partition in range(1, 6)]:
            future.result(60)
        expected = sorted(100 * partition + number for partition in range(1, 6) for number in range(1, 6))
        assert effects(store, table) == expected, f"{len(effects(store, table))} effects instead of {len(expected)}"

    @needs(Feature.TRANSACTIONS, Feature.DURABLE)
    def test_after_a_kill_there_are_as_many_effects_as_the_checkpoint_says(self) -> None:
        store, key, table = self._ready()
        for number in range(KILLS):
            with self.child(put_numbers, key, table, f"owner-{number}") as child:
                said = [child.receive() for _ in range(self.rng.randrange(1, MOST_EFFECTS))]
                said += child.kill()
            found = number_saved(store, key)
            assert found >= max(said), f"{max(said)} was committed before the kill, and {found} is there"
            assert effects(store, table) == list(range(1, found + 1)), "effects and checkpoint do not agree"

    @needs(Feature.TRANSACTIONS, Feature.DURABLE)
    def test_two_processes_that_take_the_lease_from_each_other_have_each_effect_once(self) -> None:
        store, key, table = self._ready()
        self.run_together([self.child(put_in_turns, key, table, owner, SHARED_EFFECTS) for owner in ("a", "b", "c")])
        found = effects(store, table)
        assert found == list(range(1, SHARED_EFFECTS + 1)), (
            f"there are {len(found)} effects, {len(set(found))} different ones, instead of {SHARED_EFFECTS}"
        )

    def _ready(self) -> tuple[CheckpointStore, CheckpointKey, str]:
        """A store, a checkpoint, and a table for effects in its database."""
        store, key = self.open(), self.fresh_key()
        table = self.fresh_name("effect").replace("-", "_")
        with transaction(store) as tx:
            tx.connection.execute(f"CREATE TABLE {table} (number INTEGER)")
        return store, key, table


def transaction(store: CheckpointStore) -> Any:
    assert isinstance(store, TransactionalStore), f"{store!r} has Feature.TRANSACTIONS, but no transaction()"
    return store.transaction()


def put(tx: StoreTransaction, table: str, number: int) -> None:
    tx.connection.execute(f"INSERT INTO {table} VALUES ({number})")


def effects(store: CheckpointStore, table: str) -> list[int]:
    with transaction(store) as tx:
        rows = tx.connection.execute(f"SELECT number FROM {table} ORDER BY number").fetchall()
    return [cast(int, row[0]) for row in rows]


def claim_and_look(store: CheckpointStore, key: CheckpointKey) -> int:
    """Take the lease over, and return how far its owner was."""
    claimed(store, key, "b")
    return number_saved(store, key)


def put_numbers(store: CheckpointStore, parent: Parent, key: CheckpointKey, table: str, owner: str) -> None:
    """Effects one by one, each with its checkpoint, until killed."""
    lease = claimed(store, key, owner)
    number = number_saved(store, key)
    while True:  # until killed
        number += 1
        with transaction(store) as tx:
            put(tx, table, number)
            tx.save(lease, key, numbered_change(number))
        parent.send(number)


def put_in_turns(
    store: CheckpointStore, parent: Parent, key: CheckpointKey, table: str, owner: str, count: int
) -> None:
    """Effects one by one up to `count`, by the holder of the lease; a process that loses it takes it back."""
    parent.send("ready")
    parent.receive()
    while True:  # ends: each transaction under the lease makes progress
        seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
        lease = store.claim(key.group, key.lease_name, owner, seen)
        if lease is None:
            continue
        try:
            for _ in range(3):
                checkpoint = store.load(key)
                done = 0 if checkpoint is None else checkpoint.start
                if done >= count:
                    return
                with transaction(store) as tx:
                    put(tx, table, done + 1)
                    tx.save(lease, key, Change(at(done + 1)))
        except FencedError:
            continue
