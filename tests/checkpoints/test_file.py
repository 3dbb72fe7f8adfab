"""What is particular about checkpoints in plain files: damage, locks, and a disk that fails."""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.checkpoints.objects.files import FileCheckpoints, file_name
from penstock.errors import ConfigError, ConnectionClosedError, CorruptCheckpointError, StoreUnavailableError
from tests.checkpoints.samples import KEY, change, lease_on, start_of
from tests.seeds import seed_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FileCheckpoints]:
    with FileCheckpoints(tmp_path) as opened:
        yield opened


def manifest_of(folder: Path) -> Path:
    (path,) = folder.glob("groups/*/heads/*")
    return path


def test_any_flipped_bit_is_noticed_and_lets_nobody_write(tmp_path: Path) -> None:
    rng = random.Random(seed_of())
    with FileCheckpoints(tmp_path) as store:
        lease = lease_on(store)
        for number in (1, 2, 3):
            store.save(lease, KEY, change(number))
    content = manifest_of(tmp_path).read_bytes()
    for position in rng.sample(range(len(content)), min(60, len(content))):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        manifest_of(tmp_path).write_bytes(damaged)
        with FileCheckpoints(tmp_path) as again:
            for use in (
                lambda: start_of(again),
                lambda: again.save(lease, KEY, change(4)),
                lambda: again.leases(KEY.group),
            ):
                with pytest.raises(CorruptCheckpointError, match=manifest_of(tmp_path).name):
                    use()
    manifest_of(tmp_path).write_bytes(content)
    with FileCheckpoints(tmp_path) as again:
        assert start_of(again) == 3


def test_what_a_killed_writer_left_incomplete_is_ignored(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path) as store:
        lease = lease_on(store)
        store.save(lease, KEY, change(1))
    manifest = manifest_of(tmp_path)
    manifest.with_name(f"{manifest.name}.new").write_bytes(b"half")
    with FileCheckpoints(tmp_path) as again:
        assert start_of(again) == 1
        assert again.leases(KEY.group) == [lease]
        again.save(lease, KEY, change(2))
        assert start_of(again) == 2


def test_a_save_that_the_disk_refused_is_not_believed_and_the_next_one_counts(
    store: FileCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = lease_on(store)
    store.save(lease, KEY, change(1))

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(StoreUnavailableError, match="cannot be read or written"):
            store.save(lease, KEY, change(2))
    assert start_of(store) == 1
    store.save(lease, KEY, change(2))
    with FileCheckpoints(store.folder) as again:
        assert start_of(again) == 2
        assert [line.first for line in again.history(KEY)] == [1, 2]


def test_a_lock_that_is_not_given_back_makes_the_store_unavailable(tmp_path: Path) -> None:
    with FileCheckpoints(tmp_path, lock_timeout_s=0.05) as store:
        lease = lease_on(store)
        (lock,) = (tmp_path / "locks").iterdir()
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StoreUnavailableError, match="was not free"):
                store.save(lease, KEY, change(1))
        store.save(lease, KEY, change(1))
        assert start_of(store) == 1


@pytest.mark.parametrize("version", [1, 3])
def test_a_folder_of_another_version_is_refused(tmp_path: Path, version: int) -> None:
    (tmp_path / "format").write_text(f"penstock checkpoints, version {version}\n")
    with pytest.raises(ConfigError, match=f"version {version}"):
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
