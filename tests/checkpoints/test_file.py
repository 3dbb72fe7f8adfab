"""What is particular about checkpoints in plain files: torn writes, damage, and journals that are begun anew."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.checkpoints.file.locks import Locks, file_name
from penstock.checkpoints.file.store import FileCheckpoints
from penstock.errors import ConfigError, ConnectionClosedError, CorruptCheckpointError, StoreUnavailableError
from penstock.model import Change, Checkpoint
from tests.checkpoints.samples import KEY, NOW_MS, change, lease_on, start_of
from tests.checkpoints.spoiling import flip
from tests.seeds import seed_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileCheckpoints]:
    with FileCheckpoints(tmp_path) as opened:
        yield opened


def journal_of(folder: Path) -> Path:
    (path,) = folder.glob("groups/*/partitions/*/journal")
    return path


def test_a_journal_cut_anywhere_in_its_last_change_has_the_one_before(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path) as store:
        lease = lease_on(store)
        store.save(lease, KEY, change(1))
        whole = journal_of(tmp_path).read_bytes()
        store.save(lease, KEY, change(2))
        longer = journal_of(tmp_path).read_bytes()
    for length in range(len(whole), len(longer)):
        journal_of(tmp_path).write_bytes(longer[:length])
        with FileCheckpoints(tmp_path) as again:
            assert start_of(again) == 1, f"cut to {length} bytes of {len(longer)}"
            assert again.state(KEY) == {b"number": b"1"}
            assert [line.first for line in again.history(KEY)] == [1]
            again.save(lease, KEY, change(2))
            assert start_of(again) == 2
        with FileCheckpoints(tmp_path) as again:
            assert start_of(again) == 2
            assert [line.first for line in again.history(KEY)] == [1, 2]


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\xf5pck", b"\xf5pck\xff\xff\xff\xff", b"garbage" * 99])
def test_what_a_power_cut_leaves_behind_the_last_change_is_removed(tmp_path: Path, tail: bytes) -> None:
    with FileCheckpoints(tmp_path) as store:
        lease = lease_on(store)
        store.save(lease, KEY, change(1))
    with open(journal_of(tmp_path), "ab") as file:
        file.write(tail)
    with FileCheckpoints(tmp_path) as again:
        assert start_of(again) == 1
        again.save(lease, KEY, change(2))
    with FileCheckpoints(tmp_path) as again:
        assert start_of(again) == 2
        assert tail not in journal_of(tmp_path).read_bytes() or tail == b"\xf5pck"


def test_any_flipped_bit_is_noticed_or_costs_the_last_change_only(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    with FileCheckpoints(tmp_path) as store:
        lease = lease_on(store)
        for number in (1, 2, 3):
            store.save(lease, KEY, change(number))
    content = journal_of(tmp_path).read_bytes()
    for position in rng.sample(range(len(content)), 60):
        journal_of(tmp_path).write_bytes(content)
        flip(journal_of(tmp_path), position)
        with FileCheckpoints(tmp_path) as again:
            try:
                told = str(start_of(again))
            except CorruptCheckpointError as error:
                told = str(error)
        noticed = "orders-0 of group 'billing' is damaged" in told
        assert noticed or told == "2", f"a bit of byte {position} was flipped, and {told} is there"


def test_a_damaged_journal_is_kept_when_a_new_one_is_begun(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path) as store:
        lease = lease_on(store)
        store.save(lease, KEY, change(1))
        store.save(lease, KEY, change(2))
    flip(journal_of(tmp_path), 40)
    damaged = journal_of(tmp_path).read_bytes()
    with FileCheckpoints(tmp_path) as again:
        with pytest.raises(CorruptCheckpointError):
            again.load(KEY)
        again.save(lease, KEY, change(7))
        assert start_of(again) == 7
    assert journal_of(tmp_path).with_name("journal.damaged").read_bytes() == damaged


def test_a_damaged_lease_lets_nobody_write(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path) as store:
        lease = lease_on(store)
        store.save(lease, KEY, change(1))
        (path,) = tmp_path.glob("groups/*/leases/*.lease")
        flip(path, 20)
        with pytest.raises(CorruptCheckpointError, match="lease"):
            store.save(lease, KEY, change(2))
        with pytest.raises(CorruptCheckpointError, match="lease"):
            store.leases(KEY.group)
        assert start_of(store) == 1


def test_journals_that_are_begun_anew_lose_nothing(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path, rotate_bytes=300) as store:
        lease = lease_on(store)
        for number in range(1, 101):
            store.save(lease, KEY, replace(change(number), state={b"%d" % number: b"x"}))
        assert len(list(journal_of(tmp_path).parent.glob("history.*"))) > 5
        assert journal_of(tmp_path).stat().st_size < 20_000
    with FileCheckpoints(tmp_path) as again:
        assert start_of(again) == 100
        assert len(again.state(KEY)) == 100
        assert [line.first for line in again.history(KEY)] == list(range(1, 101))
        assert [line.first for line in again.history(KEY, 50)] == [50]
        ids = [f"id-{number}" for number in range(1, 101)]
        assert again.handled(KEY.group, KEY.topic, ids) == frozenset(ids)


def test_history_that_may_be_forgotten_goes_from_the_disk(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path, rotate_bytes=300) as store:
        lease = lease_on(store)
        for number in range(1, 201):
            cut_ms = NOW_MS + number - 20
            store.save(lease, KEY, replace(change(number), forget_happenings_before_ms=cut_ms))
        lines = [line.first for line in store.history(KEY)]
        assert lines == list(range(180, 201))
        assert len(list(journal_of(tmp_path).parent.glob("history.*"))) < 12


def test_idempotency_keys_that_may_be_forgotten_go(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path, rotate_bytes=2000) as store:
        lease = lease_on(store)
        for number in range(1, 101):
            store.save(lease, KEY, replace(change(number), forget_handled_before_ms=NOW_MS + number - 5))
        ids = [f"id-{number}" for number in range(1, 101)]
        assert store.handled(KEY.group, KEY.topic, ids) == frozenset(ids[94:])
    assert b"id-20" not in journal_of(tmp_path).read_bytes()


def test_a_crash_while_a_journal_is_begun_anew_leaves_the_old_one(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path, rotate_bytes=300) as store:
        lease = lease_on(store)
        while not list(tmp_path.glob("groups/*/partitions/*/history.1")):
            store.save(lease, KEY, change((start_of(store) or 0) + 1))
        last = start_of(store)
        assert last is not None
    # What is left when the process dies between the two steps: a file of history that no journal knows of.
    folder = journal_of(tmp_path).parent
    (folder / "history.2").write_bytes((folder / "history.1").read_bytes())
    (folder / "journal.new").write_bytes(b"half")
    with FileCheckpoints(tmp_path, rotate_bytes=300) as again:
        assert [line.first for line in again.history(KEY)] == list(range(1, last + 1))
        for number in range(last + 1, last + 30):
            again.save(lease, KEY, change(number))
        assert [line.first for line in again.history(KEY)] == list(range(1, last + 30))


def test_a_save_that_the_disk_refused_is_not_believed_and_the_next_one_counts(
    store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lease_on(store)
    store.save(lease, KEY, change(1))

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(StoreUnavailableError, match="cannot be written"):
            store.save(lease, KEY, change(2))
    before = journal_of(store.folder).stat().st_ino
    store.save(lease, KEY, change(2, told=False))
    assert journal_of(store.folder).stat().st_ino != before, "what could not be synced was written to again"
    with FileCheckpoints(store.folder) as again:
        assert start_of(again) == 2


def test_a_lock_that_is_not_given_back_makes_the_store_unavailable(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path, lock_timeout_s=0.05) as store:
        lease = lease_on(store)
        with (
            Locks(tmp_path / "locks", 1.0).of_lease(KEY.group, KEY.lease_name),
            pytest.raises(StoreUnavailableError, match="was not free"),
        ):
            store.save(lease, KEY, change(1))
        store.save(lease, KEY, change(1))
        assert start_of(store) == 1


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("penstock checkpoints, version 2\n")
    with pytest.raises(ConfigError, match="version 2"):
        FileCheckpoints(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(StoreUnavailableError, match="cannot be used"):
        FileCheckpoints(tmp_path / "x")


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path)
    store.close()
    with pytest.raises(ConnectionClosedError, match="are closed"):
        store.load(KEY)


def test_a_large_checkpoint_does_not_begin_a_journal_at_each_save(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    edges = sorted(rng.sample(range(1, 2_000_000), 100_000))
    runs = tuple(zip(edges[::2], edges[1::2], strict=True))
    with FileCheckpoints(tmp_path, rotate_bytes=1000) as store:
        lease = lease_on(store)
        inodes = []
        for number in range(8):
            store.save(lease, KEY, Change(Checkpoint(0, 2_000_000, runs, processed=number)))
            inodes.append(journal_of(tmp_path).stat().st_ino)
        assert len(set(inodes)) <= 3


def test_file_names_are_safe_and_tell_all_names_apart() -> None:
    names = ["", ".", "..", "a/b", "A", "a", "x" * 300, "x" * 301, "é", "con", "\0", "a b", "a\nb"]
    files = [file_name(name) for name in names]
    assert len({name.lower() for name in files}) == len(names)
    assert all("/" not in name and "\0" not in name and not name.startswith(".") for name in files)
    assert max(len(name.encode()) for name in files) < 100


def test_several_may_open_a_new_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_at_last = os.replace

    def while_another_opens_it(old: Path, new: Path) -> None:
        monkeypatch.setattr(os, "replace", replace_at_last)
        FileCheckpoints(tmp_path).close()
        replace_at_last(old, new)

    monkeypatch.setattr(os, "replace", while_another_opens_it)
    with FileCheckpoints(tmp_path) as store:
        store.save(lease_on(store), KEY, change(1))
        assert start_of(store) == 1
    assert not list(tmp_path.glob("format.*")), "nothing is left beside it"
