"""The suite for buffers.

    from penstock.testing import conformance
    TestMyBuffer = conformance.buffer(open_my_buffer, limited=open_a_small_one)

The factory opens the same buffer at each call, as the next process would; for a durable one it takes the folder.
`limited` opens one that holds at most 10 records.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from penstock.abc import Buffer, Buffered, Feature, Features
from penstock.errors import BufferFullError, SpoolInUseError
from penstock.model import NewRecord
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.suite import Factory, Opener, Suite, collect, needs
from penstock.testing.crashing import die

SETTLE_S: Final = 60.0
"""How long an action in another thread may take."""
EVERYTHING_BYTES: Final = 1 << 40
LIMITED_RECORDS: Final = 10

_BYTES: Final = (None, b"", b"\x00", b"plain", b"\xff\xfe\x00\x80", "größe".encode(), bytes(range(256)))


class BufferSuite(Suite[Buffer]):
    limited: ClassVar[Any] = None

    def open_limited(self) -> Buffer:
        """A buffer that holds at most LIMITED_RECORDS records."""
        if self.limited is None:
            self.skipTest("the suite cannot open a small buffer: pass conformance.buffer(..., limited=...)")
        opener: Opener[Buffer] = Opener(self.limited, self.opener.folder)
        buffer = opener()
        self.addCleanup(buffer.close)
        return buffer

    def filled(self, count: int) -> tuple[Buffer, int]:
        """A buffer with this many numbered records, and the sequence number of the first."""
        buffer = self.open()
        return buffer, buffer.put([numbered_record(number) for number in range(count)])

    def random_records(self, count: int, first: int = 0) -> list[NewRecord]:
        return [random_record(self.rng, number) for number in range(first, first + count)]


def random_record(rng: random.Random, number: int) -> NewRecord:
    headers = tuple((rng.choice(("trace", "", "größe")), rng.choice(_BYTES)) for _ in range(rng.choice((0, 0, 1, 3))))
    return NewRecord(
        rng.choice(("orders", "clicks")),
        rng.choice((None, b"%d" % number, b"%d" % number * rng.randrange(1, 300))),
        rng.choice(_BYTES),
        headers,
        1_700_000_000_000 + number,
        rng.choice((None, 0, 7)),
    )


def numbered_record(number: int) -> NewRecord:
    return NewRecord("orders", b"record %d" % number, b"key", (), 1_700_000_000_000 + number)


def number_in(record: NewRecord) -> int:
    return int((record.value or b"").split()[1])


def everything(buffer: Buffer) -> list[Buffered]:
    found: list[Buffered] = []
    after = -1
    while more := buffer.peek(after, 7, EVERYTHING_BYTES):  # ends: each round must advance
        assert more[0].sequence > after, f"peek behind {after} gave record {more[0].sequence}"
        found += more
        after = more[-1].sequence
    check_ascending(found)
    return found


def check_empty(buffer: Buffer) -> None:
    assert (len(buffer), buffer.size_bytes) == (0, 0), f"{len(buffer)} records, {buffer.size_bytes} bytes are left"


def check_ascending(found: Sequence[Buffered]) -> None:
    numbers = [each.sequence for each in found]
    assert numbers == sorted(set(numbers)), f"numbers must ascend, but these are {numbers}"


def records_of(found: Iterable[Buffered]) -> list[NewRecord]:
    return [each.record for each in found]


class UseCases(BufferSuite):
    def test_a_new_buffer_is_empty(self) -> None:
        buffer = self.open()
        assert (len(buffer), buffer.size_bytes) == (0, 0), f"it holds {len(buffer)} records, {buffer.size_bytes} bytes"
        assert not buffer.peek(-1, 10, EVERYTHING_BYTES), "peek gave something"
        assert not buffer.drop(10), "drop gave something"
        buffer.commit(-1)

    def test_records_come_out_as_they_went_in_and_in_their_order(self) -> None:
        buffer = self.open()
        put = self.random_records(200)
        for first in range(0, 200, 8):
            buffer.put(put[first : first + 8])
        found = records_of(everything(buffer))
        wrong = [pair for pair in zip(put, found, strict=False) if pair[0] != pair[1]]
        assert not wrong, f"put was {wrong[0][0]}, found was {wrong[0][1]}"
        assert len(found) == 200, f"{len(found)} of 200 records came out"

    def test_put_gives_the_number_of_the_first_and_the_others_follow(self) -> None:
        buffer = self.open()
        first = buffer.put([numbered_record(0), numbered_record(1)])
        second = buffer.put([numbered_record(2)])
        assert second == first + 2, f"two records were put at {first}, and the next one at {second}"
        numbers = [each.sequence for each in everything(buffer)]
        assert numbers == [first, first + 1, second], f"peek gave {numbers}"

    def test_peek_removes_nothing_and_keeps_to_its_limits(self) -> None:
        buffer, first = self.filled(20)
        for _ in range(2):
            found = buffer.peek(first + 4, 3, EVERYTHING_BYTES)
            assert [each.sequence - first for each in found] == [5, 6, 7], f"peek gave {found}"
        assert len(buffer) == 20, f"peek has removed something: {len(buffer)} of 20 are left"
        assert len(buffer.peek(-1, 20, 1)) == 1, "with few bytes allowed, it is one record, and not none"
        assert not buffer.peek(first + 19, 10, EVERYTHING_BYTES), "behind the last one there is nothing"

    def test_what_is_committed_is_not_given_again(self) -> None:
        buffer, first = self.filled(10)
        size = buffer.size_bytes
        buffer.commit(first + 3)
        assert [number_in(each.record) for each in everything(buffer)] == [4, 5, 6, 7, 8, 9]
        assert len(buffer) == 6, f"{len(buffer)} are left of 10, when 4 were committed"
        assert 0 < buffer.size_bytes < size, f"it has {buffer.size_bytes} bytes, and had {size} before"
        buffer.commit(first + 3)
        buffer.commit(first + 1)
        assert len(buffer) == 6, "committing less than before changes nothing"
        buffer.commit(first + 9)
        check_empty(buffer)
        again = buffer.put([numbered_record(10)])
        assert again > first + 9, f"the number {again} was given before"
        assert [number_in(each.record) for each in everything(buffer)] == [10]

    def test_the_oldest_are_dropped(self) -> None:
        buffer, first = self.filled(10)
        buffer.commit(first + 1)
        dropped = buffer.drop(3)
        assert [number_in(each.record) for each in dropped] == [2, 3, 4], f"drop gave {dropped}"
        assert [number_in(each.record) for each in everything(buffer)] == [5, 6, 7, 8, 9]
        assert len(buffer) == 5, f"{len(buffer)} are left"
        assert len(buffer.drop(100)) == 5, "more than there are is all of them"
        check_empty(buffer)

    def test_what_is_under_way_is_not_dropped(self) -> None:
        buffer, first = self.filled(10)
        dropped = [*buffer.drop(2, first + 2), *buffer.drop(1, first + 2)]
        assert [number_in(each.record) for each in dropped] == [3, 4, 5], f"drop behind record 2 gave {dropped}"
        assert [number_in(each.record) for each in everything(buffer)] == [0, 1, 2, 6, 7, 8, 9]
        buffer.commit(first + 6)
        assert [number_in(each.record) for each in everything(buffer)] == [7, 8, 9]
        assert len(buffer) == 3, f"{len(buffer)} are left"
        buffer.commit(first + 9)
        check_empty(buffer)

    def test_a_full_buffer_takes_none_of_what_does_not_fit(self) -> None:
        buffer = self.open_limited()
        first = buffer.put([numbered_record(number) for number in range(LIMITED_RECORDS - 1)])
        with self.expect(BufferFullError, f"{LIMITED_RECORDS - 1} records are there, and two more are one too many"):
            buffer.put([numbered_record(100), numbered_record(101)])
        assert len(buffer) == LIMITED_RECORDS - 1, f"a put that was refused left {len(buffer)} records"
        buffer.put([numbered_record(LIMITED_RECORDS - 1)])
        with self.expect(BufferFullError, "it is full"):
            buffer.put([numbered_record(102)])
        buffer.commit(first)
        buffer.put([numbered_record(LIMITED_RECORDS)])
        numbers = [number_in(each.record) for each in everything(buffer)]
        assert numbers == list(range(1, LIMITED_RECORDS + 1)), f"it holds {numbers}"
        buffer.drop(2)
        buffer.put([numbered_record(11), numbered_record(12)])

    def test_many_threads_put_and_each_record_is_there_once(self) -> None:
        buffer = self.open()
        workers = [self.in_background(put_many, buffer, worker) for worker in range(4)]
        for worker in workers:
            worker.result(SETTLE_S)
        found = [number_in(each.record) for each in everything(buffer)]
        assert sorted(found) == list(range(400)), f"{len(found)} records are there, of 400 that were put"
        for thread in range(4):
            ours = [number for number in found if number // 100 == thread]
            assert ours == sorted(ours), f"the records of one thread are out of order: {ours}"

    def test_one_thread_takes_while_another_puts(self) -> None:
        buffer = self.open()
        worker = self.in_background(put_many, buffer, 0)
        taken: list[int] = []
        while len(taken) < 100 and not (worker.done() and not len(buffer)):
            found = buffer.peek(-1, 13, EVERYTHING_BYTES)
            if found:
                taken += [number_in(each.record) for each in found]
                buffer.commit(found[-1].sequence)
        worker.result(SETTLE_S)
        assert taken == list(range(100)), f"taken were {taken}"
        check_empty(buffer)

    def test_closing_twice_is_no_error(self) -> None:
        buffer = self.open()
        buffer.put([numbered_record(0)])
        buffer.close()
        buffer.close()


def put_many(buffer: Buffer, worker: int) -> None:
    for number in range(100):
        buffer.put([numbered_record(worker * 100 + number)])


KILLS = 4


class BufferSurvivalCases(BufferSuite):
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
        buffer, first = self.filled(10)
        buffer.drop(2, first + 2)
        buffer.close()
        assert [number_in(each.record) for each in everything(self.open())] == [0, 1, 2, 5, 6, 7, 8, 9]

    @needs(Feature.DURABLE)
    def test_what_was_put_survives_a_kill(self) -> None:
        for kill in range(KILLS):
            with self.child(put_one_by_one, kill * 10_000) as child:
                said = [child.receive() for _ in range(self.rng.randint(1, 200))] + child.kill()
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
            child.receive()
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
        parent.send(number)
    parent.receive()


def put_and_commit(buffer: Buffer, parent: Parent, first: int, delay_s: float) -> None:
    """Until this process kills itself, at some moment."""
    killer = threading.Timer(delay_s, die)
    killer.start()
    for number in range(first, first + 100_000):
        buffer.put([numbered_record(number)])
        parent.send(("put", number))
        if number % 5 == 4:
            found = buffer.peek(-1, 3, EVERYTHING_BYTES)
            parent.send(("commit", number_in(found[-1].record)))  # before the commit, which may take effect from now on
            buffer.commit(found[-1].sequence)
    parent.receive()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def restore(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder)
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def changes(old: bytes, new: bytes) -> Iterator[int]:
    """Every state between the old bytes and the new, byte by byte."""
    first = next((at for at, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), len(old))
    last = len(new)
    if len(old) == len(new):
        last = next(at for at in range(len(new), 0, -1) if old[at - 1] != new[at - 1])
    yield from range(first, last + 1)


class BufferCases(UseCases, BufferSurvivalCases):
    """What `penstock.abc.Buffer` promises."""


def buffer(
    factory: Factory[Buffer], features: Features | None = None, *, limited: Factory[Buffer] | None = None
) -> type[BufferCases]:
    cases = collect(BufferCases, factory, features)
    if limited is not None:
        cases.limited = staticmethod(limited)
    return cases
