"""Cases about what a store keeps besides the checkpoint: state, history, and idempotency keys."""

from __future__ import annotations

from dataclasses import replace

from penstock.abc import Feature
from penstock.model import Change, Handled, Status
from penstock.testing.conformance.checkpoints.samples import NOW_MS, StoreSuite, at, claimed, history_entry
from penstock.testing.conformance.suite import needs

HUGE = 1 << 200
ODD_IDS = ("", " ", "a" * 5000, "nul\0", "nul\0 too", "\ud800 half a pair", "naïve 数 🦆", "'; DROP", "%", "A", "a")


class MemoryCases(StoreSuite):
    """State, history and idempotency keys are saved with the checkpoint, and found again."""

    @needs(Feature.STATE)
    def test_state_is_set_changed_and_removed_key_by_key(self) -> None:
        store, key, lease = self.owned()
        assert dict(store.state(key)) == {}, "there is state before any was saved"
        every_byte = bytes(range(256))
        store.save(lease, key, Change(at(1), state={b"a": b"1", b"b": b"", every_byte: every_byte, b"": b"x"}))
        expected = {b"a": b"1", b"b": b"", every_byte: every_byte, b"": b"x"}
        assert dict(store.state(key)) == expected, f"the state is {store.state(key)} instead of {expected}"
        store.save(lease, key, Change(at(2), state={b"a": b"2", b"b": None, b"never": None, b"c": b"3"}))
        expected = {b"a": b"2", every_byte: every_byte, b"": b"x", b"c": b"3"}
        assert dict(store.state(key)) == expected, f"the state is {store.state(key)} instead of {expected}"
        store.save(lease, key, Change(at(3)))
        assert dict(store.state(key)) == expected, "a change without state changed the state"

    @needs(Feature.STATE)
    def test_state_belongs_to_its_partition(self) -> None:
        store, key = self.open(), self.fresh_key()
        other = replace(key, partition=1)
        for each in (key, other):
            store.save(claimed(store, each), each, Change(at(1), state={b"k": b"%d" % each.partition}))
        assert [dict(store.state(each)) for each in (key, other)] == [{b"k": b"0"}, {b"k": b"1"}], (
            "the state of two partitions is mixed"
        )

    @needs(Feature.STATE, Feature.DURABLE)
    def test_state_of_many_keys_is_restored_by_the_next_owner(self) -> None:
        store, key, lease = self.owned()
        expected: dict[bytes, bytes] = {}
        for number in range(10):
            names = [b"key-%d" % self.rng.randrange(3000) for _ in range(500)]
            changed = {name: None if self.rng.random() < 0.2 else self.rng.randbytes(20) for name in names}
            store.save(lease, key, Change(at(number), state=changed))
            for name, value in changed.items():
                if value is None:
                    expected.pop(name, None)
                else:
                    expected[name] = value
        found = dict(self.open().state(key))
        assert found == expected, f"{len(found)} keys were restored instead of {len(expected)}, or with other values"

    @needs(Feature.HISTORY)
    def test_history_tells_all_lines_oldest_first_with_everything_in_them(self) -> None:
        store, key, lease = self.owned()
        lines = [
            history_entry(5, error="ValueError: «x»\nmore", status=Status.FAILED, attempt=1, begun_ms=1, ended_ms=2),
            history_entry(1, 5),
            history_entry(5, status=Status.EXHAUSTED, attempt=2, error="y", owner="o2", handler="h2"),
            history_entry(6, 7, status=Status.IGNORED),
        ]
        store.save(lease, key, Change(at(1), history=tuple(lines[:2])))
        store.save(lease, key, Change(at(2)))
        store.save(lease, key, Change(at(3), history=tuple(lines[2:])))
        assert list(store.history(key)) == lines, f"the history is {store.history(key)} instead of {lines}"
        newest = list(store.history(key, limit=3))
        assert newest == lines[1:], f"the newest 3 lines are {newest} instead of {lines[1:]}"
        other = replace(key, partition=1)
        assert list(store.history(other)) == [], "a partition has the history of another"

    @needs(Feature.HISTORY)
    def test_history_of_a_record_is_found_also_in_the_middle_of_a_run(self) -> None:
        store, key, lease = self.owned()
        run, failed, done = history_entry(10, 20), history_entry(15, status=Status.FAILED), history_entry(20)
        huge = history_entry(HUGE, HUGE + 10)
        across = history_entry(100, HUGE - 1)
        lines = (run, failed, done, huge, across)
        store.save(lease, key, Change(at(1), history=lines))
        expected = {
            9: [],
            10: [run],
            15: [run, failed],
            19: [run],
            20: [done],
            21: [],
            (1 << 63) + 5: [across],
            (1 << 64) + 5: [across],
            HUGE - 2: [across],
            HUGE - 1: [],
            HUGE: [huge],
            HUGE + 9: [huge],
            HUGE + 10: [],
        }
        for pointer, told in expected.items():
            found = list(store.history(key, pointer))
            assert found == told, f"the history of {pointer} is {found} instead of {told}"
        assert list(store.history(key, 15, limit=1)) == [failed], "of two lines, the newest one is not the newest"

    @needs(Feature.HISTORY)
    def test_history_that_is_not_to_be_forgotten_stays(self) -> None:
        store, key, lease = self.owned()
        for number in range(10):
            lines = (history_entry(number, begun_ms=NOW_MS, ended_ms=NOW_MS + number),)
            store.save(lease, key, Change(at(number), history=lines))
        last = history_entry(99, ended_ms=NOW_MS + 99)
        store.save(lease, key, Change(at(11), history=(last,), forget_history_before_ms=NOW_MS + 7))
        kept = [line.first for line in store.history(key) if line.ended_ms >= NOW_MS + 7]
        assert kept == [7, 8, 9, 99], f"of the lines 7, 8, 9 and 99, which were not to be forgotten, {kept} are there"

    @needs(Feature.DEDUPLICATION)
    def test_idempotency_keys_are_remembered_for_their_group_and_topic(self) -> None:
        store, key, lease = self.owned()
        assert store.handled(key.group, key.topic, ["a"]) == frozenset(), "a key is remembered that was never saved"
        assert store.handled(key.group, key.topic, []) == frozenset(), "of no keys, some are remembered"
        store.save(lease, key, Change(at(1), handled=tuple(Handled(each, NOW_MS) for each in ODD_IDS)))
        asked = [*ODD_IDS, "b", "nul", "\ud801 half a pair", "AA"]
        found = store.handled(key.group, key.topic, asked)
        assert found == frozenset(ODD_IDS), f"remembered are {sorted(map(repr, found))}"
        other = replace(key, partition=1)
        store.save(claimed(store, other), other, Change(at(1), handled=(Handled("from 1", NOW_MS),)))
        found = store.handled(key.group, key.topic, ["from 1", "A"])
        assert found == {"from 1", "A"}, f"of keys of two partitions of the topic, {sorted(found)} are remembered"
        for group, topic in ((key.group, "other"), (self.fresh_name("group"), key.topic)):
            found = store.handled(group, topic, asked)
            assert found == frozenset(), f"another group or topic remembers {sorted(map(repr, found))}"

    @needs(Feature.DEDUPLICATION)
    def test_many_idempotency_keys_are_looked_up_at_once(self) -> None:
        store, key = self.open(), self.fresh_key()
        ids = [f"id-{number}" for number in range(3000)]
        handled = tuple(Handled(each, NOW_MS) for each in (*ids[::2], *ids[:10:2]))
        store.save(claimed(store, key), key, Change(at(1), handled=handled))
        found = store.handled(key.group, key.topic, ids)
        assert found == frozenset(ids[::2]), f"of 3000 keys, {len(found)} are remembered instead of every second one"

    @needs(Feature.DEDUPLICATION)
    def test_idempotency_keys_within_the_window_are_not_forgotten(self) -> None:
        store, key, lease = self.owned()
        for number in range(10):
            store.save(lease, key, Change(at(number), handled=(Handled(f"id-{number}", NOW_MS + number),)))
        store.save(lease, key, Change(at(10), handled=(Handled("id-2", NOW_MS + 50),)))
        # One key is stored again by the same change that forgets older ones.
        refreshed = (Handled("id-3", NOW_MS + 60),)
        store.save(lease, key, Change(at(11), handled=refreshed, forget_handled_before_ms=NOW_MS + 7))
        inside = {"id-2", "id-3", "id-7", "id-8", "id-9"}
        found = store.handled(key.group, key.topic, inside)
        assert found == inside, f"of keys that were remembered within the window, {sorted(inside - found)} are gone"
