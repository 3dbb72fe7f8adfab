"""Cases: what a buffer does while its process lives."""

from __future__ import annotations

from penstock.abc import Buffer
from penstock.errors import BufferFullError
from penstock.testing.conformance.buffer_suite import (
    EVERYTHING_BYTES,
    LIMITED_RECORDS,
    SETTLE_S,
    BufferSuite,
    everything,
    number_in,
    numbered_record,
    records_of,
)


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
        buffer = self.open()
        first = buffer.put([numbered_record(number) for number in range(20)])
        for _ in range(2):
            found = buffer.peek(first + 4, 3, EVERYTHING_BYTES)
            assert [each.sequence - first for each in found] == [5, 6, 7], f"peek gave {found}"
        assert len(buffer) == 20, f"peek has removed something: {len(buffer)} of 20 are left"
        assert len(buffer.peek(-1, 20, 1)) == 1, "with few bytes allowed, it is one record, and not none"
        assert not buffer.peek(first + 19, 10, EVERYTHING_BYTES), "behind the last one there is nothing"

    def test_what_is_committed_is_not_given_again(self) -> None:
        buffer = self.open()
        first = buffer.put([numbered_record(number) for number in range(10)])
        size = buffer.size_bytes
        buffer.commit(first + 3)
        assert [number_in(each.record) for each in everything(buffer)] == [4, 5, 6, 7, 8, 9]
        assert len(buffer) == 6, f"{len(buffer)} are left of 10, when 4 were committed"
        assert 0 < buffer.size_bytes < size, f"it has {buffer.size_bytes} bytes, and had {size} before"
        buffer.commit(first + 3)
        buffer.commit(first + 1)
        assert len(buffer) == 6, "committing less than before changes nothing"
        buffer.commit(first + 9)
        assert (len(buffer), buffer.size_bytes) == (0, 0), f"{len(buffer)} records, {buffer.size_bytes} bytes are left"
        again = buffer.put([numbered_record(10)])
        assert again > first + 9, f"the number {again} was given before"
        assert [number_in(each.record) for each in everything(buffer)] == [10]

    def test_the_oldest_are_dropped(self) -> None:
        buffer = self.open()
        first = buffer.put([numbered_record(number) for number in range(10)])
        buffer.commit(first + 1)
        dropped = buffer.drop(3)
        assert [number_in(each.record) for each in dropped] == [2, 3, 4], f"drop gave {dropped}"
        assert [number_in(each.record) for each in everything(buffer)] == [5, 6, 7, 8, 9]
        assert len(buffer) == 5, f"{len(buffer)} are left"
        assert len(buffer.drop(100)) == 5, "more than there are is all of them"
        assert (len(buffer), buffer.size_bytes) == (0, 0), f"{len(buffer)} records, {buffer.size_bytes} bytes are left"

    def test_what_is_under_way_is_not_dropped(self) -> None:
        buffer = self.open()
        first = buffer.put([numbered_record(number) for number in range(10)])
        dropped = [*buffer.drop(2, first + 2), *buffer.drop(1, first + 2)]
        assert [number_in(each.record) for each in dropped] == [3, 4, 5], f"drop behind record 2 gave {dropped}"
        assert [number_in(each.record) for each in everything(buffer)] == [0, 1, 2, 6, 7, 8, 9]
        buffer.commit(first + 6)
        assert [number_in(each.record) for each in everything(buffer)] == [7, 8, 9]
        assert len(buffer) == 3, f"{len(buffer)} are left"
        buffer.commit(first + 9)
        assert (len(buffer), buffer.size_bytes) == (0, 0), f"{len(buffer)} records, {buffer.size_bytes} bytes are left"

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
        assert (len(buffer), buffer.size_bytes) == (0, 0), f"{len(buffer)} records, {buffer.size_bytes} bytes are left"

    def test_closing_twice_is_no_error(self) -> None:
        buffer = self.open()
        buffer.put([numbered_record(0)])
        buffer.close()
        buffer.close()


def put_many(buffer: Buffer, worker: int) -> None:
    for number in range(100):
        buffer.put([numbered_record(worker * 100 + number)])
