"""Cases for spools: what is there when the process was killed, at any moment, and who may use the folder."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.abc import Buffer, Feature
from penstock.errors import SpoolInUseError
from penstock.testing.conformance.buffer_suite import (
    EVERYTHING_BYTES,
    BufferSuite,
    everything,
    number_in,
    numbered_record,
    records_of,
)
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.suite import needs
from penstock.testing.crashing import die

KILLS = 4


class SurvivalCases(BufferSuite):
    @needs(Feature.DURABLE)
    def test_what_is_not_committed_is_there_when_it_is_opened_again(self) -> None:
        put = self.random_records(50)
        buffer = self.open()
        first = buffer.put(put[:20])
        buffer.put(put[20:])
        buffer.commit(first + 9)
        buffer.close()
        again = self.open()
        assert len(again) == 40, f"{len(again)} of 40 are there"
        assert records_of(everything(again)) == put[10:], "they are not as they were put, or not in their order"
        last = everything(again)[-1].sequence
        next_one = again.put([numbered_record(0)])
        assert next_one > last, f"the number {next_one} was given before"
        again.commit(last)
        assert [number_in(each.record) for each in everything(again)] == [0]

    @needs(Feature.DURABLE)
    def test_what_was_dropped_stays_dropped(self) -> None:
        buffer = self.open()
        first = buffer.put([numbered_record(number) for number in range(10)])
        buffer.drop(2, first + 2)
        buffer.close()
        assert [number_in(each.record) for each in everything(self.open())] == [0, 1, 2, 5, 6, 7, 8, 9]

    @needs(Feature.DURABLE)
    def test_what_was_put_survives_a_kill(self) -> None:
        for kill in range(KILLS):
            with self.child(put_one_by_one, kill * 10_000) as child:
                said = [child.hear() for _ in range(self.rng.randint(1, 200))] + child.kill()
            found = self.numbers_there()
            ours = [number for number in found if number >= kill * 10_000]
            assert ours[: len(said)] == said, f"put had returned for {len(said)} records; {len(ours)} are there"
            assert ours == list(range(kill * 10_000, kill * 10_000 + len(ours))), "others than those that were put"

    @needs(Feature.DURABLE)
    def test_a_kill_while_it_is_used_loses_nothing_and_forgets_only_the_newest_commits(self) -> None:
        last = -1
        for kill in range(KILLS):
            with self.child(put_and_commit, kill * 100_000, self.rng.uniform(0.005, 0.1)) as child:
                said = child.wait_until_killed()
            put = [number for what, number in said if what == "put"]
            committed = [number for what, number in said if what == "commit"]
            with self.opened() as buffer:
                found = [number_in(record) for record in records_of(everything(buffer))]
                assert found == sorted(found), "they are out of order"
                newest = max([last, *committed])
                lost = {number for number in put if number > newest and number not in found}
                assert not lost, f"{len(lost)} records are lost that were put and never committed: {sorted(lost)[:5]}"
                last = found[-1] if found else newest
                buffer.commit(everything(buffer)[-1].sequence if found else -1)

    @needs(Feature.DURABLE)
    def test_a_put_that_was_cut_at_any_byte_is_there_whole_or_not_at_all(self) -> None:
        folder = self.opener.folder
        if folder is None:
            self.skipTest("it keeps its files where this cannot see them: let the factory take a folder")
        with self.opened() as buffer:
            buffer.put([numbered_record(0)])
            buffer.put([numbered_record(1), numbered_record(2)])
            before = contents(folder)
            buffer.put([numbered_record(3), numbered_record(4)])
            after = contents(folder)
        changed = [path for path in sorted(after) if before.get(path) != after[path]]
        assert changed, "a put has changed no file, so nothing of it can survive"
        for path in changed:
            old, new = before.get(path, b""), after[path]
            for cut in changes(old, new):
                restore(folder, before | {path: new[:cut] + old[cut:]})
                self._check_cut(f"{path} cut at byte {cut}")

    def _check_cut(self, where: str) -> None:
        with self.opened() as buffer:
            found = [number_in(record) for record in records_of(everything(buffer))]
            assert found in ([0, 1, 2], [0, 1, 2, 3, 4]), f"{where}: it holds {found}"
            buffer.put([numbered_record(9)])
        again = self.numbers_there()
        assert again == [*found, 9], f"{where}: with one more, and opened again, it holds {again}"

    @needs(Feature.DURABLE)
    def test_a_second_owner_is_refused_until_the_first_has_ended(self) -> None:
        with self.opened() as buffer:
            buffer.put([numbered_record(0)])
            with self.expect(SpoolInUseError, "this process has it open"):
                self.opener()
            buffer.put([numbered_record(1)])
        with self.child(put_one_by_one, 2) as child:
            child.hear()
            with self.expect(SpoolInUseError, "another process has it open"):
                self.opener()
            child.kill()
        found = [number_in(record) for record in records_of(everything(self.open()))]
        assert found[:3] == [0, 1, 2], f"it holds {found}"

    def numbers_there(self) -> list[int]:
        with self.opened() as buffer:
            return [number_in(record) for record in records_of(everything(buffer))]

    @contextmanager
    def opened(self) -> Iterator[Buffer]:
        buffer = self.opener()
        try:
            yield buffer
        finally:
            buffer.close()


def put_one_by_one(buffer: Buffer, parent: Parent, first: int) -> None:
    """Until it is killed."""
    for number in range(first, first + 10_000):
        buffer.put([numbered_record(number)])
        parent.say(number)
    parent.hear()


def put_and_commit(buffer: Buffer, parent: Parent, first: int, delay_s: float) -> None:
    """Until this process has died of itself, at some moment."""
    killer = threading.Timer(delay_s, die)
    killer.start()
    for number in range(first, first + 100_000):
        buffer.put([numbered_record(number)])
        parent.say(("put", number))
        if number % 5 == 4:
            found = buffer.peek(-1, 3, EVERYTHING_BYTES)
            parent.say(("commit", number_in(found[-1].record)))  # before it is done: it may be, from now on
            buffer.commit(found[-1].sequence)
    parent.hear()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def changes(old: bytes, new: bytes) -> Iterator[int]:
    """How far a change from the old bytes to the new may have come, byte by byte."""
    first = next((at for at, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), len(old))
    last = len(new)
    if len(old) == len(new):
        last = next(at for at in range(len(new), 0, -1) if old[at - 1] != new[at - 1])
    yield from range(first, last + 1)
