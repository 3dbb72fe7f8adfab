"""The suite for dead letters.

    from penstock.testing import conformance
    TestMyLetters = conformance.dead_letters(open_my_letters)

The factory opens the same letters at each call, as a second process would.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from penstock.abc import DeadLetters, Feature, Features
from penstock.errors import ConfigError
from penstock.model import DeadLetter, DeadLetterFilter, LetterState, Record
from penstock.model.letter import letter_id
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.suite import Factory, Suite, collect, needs
from penstock.testing.crashing import die

T = TypeVar("T")

SETTLE_S: Final = 60.0
"""How long an action in another thread may take."""
ANY_STATE: Final = frozenset(LetterState)

_BYTES: Final = (
    None,
    b"",
    b"\x00",
    b"plain",
    b"\xff\xfe\x00\x80",
    "größe".encode(),
    b"penstock-letter",
    bytes(range(256)),
)
_NAMES: Final = ("trace", "trace", "", "größe", "penstock-letter", "penstock-letter-headers", "a'b\"c%s:x")
_KINDS: Final = ("ValueError", "TimeoutError", "Reject")
_WORDS: Final = ("no such order", "größe", "100%", "a'b", "_", "\\", "ValueError", "line\nbreak", "CASE", "case")


class LetterSuite(Suite[DeadLetters]):
    """The base of all cases for dead letters. Each case has its own group, by which it finds its letters."""

    def setUp(self) -> None:
        super().setUp()
        self.group = self.fresh_name("group")

    def letter(self, number: int = 0, **changes: object) -> DeadLetter:
        """A letter of this case's group. Another number is another record."""
        return replace(plain_letter(self.group, number), **changes)  # type: ignore[arg-type]

    def with_one(self) -> DeadLetters:
        """An opened store in which this case has put `self.letter()`."""
        letters = self.open()
        letters.put([self.letter()])
        return letters

    def random_letters(self, count: int) -> list[DeadLetter]:
        return [random_letter(self.rng, self.group, number) for number in range(count)]

    def all(self, letters: DeadLetters) -> list[DeadLetter]:
        """Everything that this case has put, in any state."""
        return list(letters.browse(DeadLetterFilter(group=self.group, states=ANY_STATE), 1_000_000))

    def one(self, letters: DeadLetters) -> DeadLetter:
        found = self.all(letters)
        assert len(found) == 1, f"one letter was put, and {len(found)} are there"
        return found[0]

    def states(self, letters: DeadLetters) -> list[LetterState]:
        return [letter.state for letter in self.all(letters)]


def plain_letter(group: str, number: int) -> DeadLetter:
    topic, partition = "orders", number % 3
    return DeadLetter(
        id=letter_id(group, topic, partition, number),
        group=group,
        record=Record(topic, partition, number, b"key", b"value", (("trace", b"1"),), 1_700_000_000_000 + number),
        error=f"ValueError: no such order {number}",
        error_kind="ValueError",
        traceback='Traceback (most recent call last):\n  File "app.py", line 1\nValueError: no such order\n',
        attempts=3,
        first_ms=1_700_000_001_000,
        last_ms=1_700_000_002_000 + number,
        handler="bill",
        handler_version="1",
    )


def random_letter(rng: random.Random, group: str, number: int) -> DeadLetter:
    topic, partition = rng.choice(("orders", "clicks", "orders.retry")), rng.randrange(4)
    pointer = rng.choice((number, number + 2**40, number + 2**70))
    headers = tuple((rng.choice(_NAMES), rng.choice(_BYTES)) for _ in range(rng.choice((0, 0, 1, 3, 6))))
    kind = rng.choice(_KINDS)
    first_ms = rng.randrange(1_700_000_000_000, 1_700_000_000_050)
    return DeadLetter(
        id=letter_id(group, topic, partition, pointer),
        group=group,
        record=Record(
            topic,
            partition,
            pointer,
            rng.choice(_BYTES),
            rng.choice(_BYTES),
            headers,
            rng.choice((None, 0, 1_700_000_000_000)),
        ),
        error=f"{kind}: {' '.join(rng.choices(_WORDS, k=rng.randrange(3)))}",
        error_kind=kind,
        traceback=rng.choice(("", "Traceback …\n")),
        attempts=rng.randrange(1, 9),
        first_ms=first_ms,
        last_ms=first_ms + rng.randrange(50),
        handler=rng.choice(("bill", "ship")),
        handler_version=rng.choice(("", "1.2.0")),
    )


def random_filter(rng: random.Random, letters: Sequence[DeadLetter], group: str) -> DeadLetterFilter:

    def maybe(choices: Sequence[T]) -> T | None:
        return rng.choice(choices) if rng.random() < 0.35 else None

    times_ms = range(1_699_999_999_990, 1_700_000_000_110)
    some = rng.sample(letters, min(len(letters), rng.randrange(1, 10))) if rng.random() < 0.25 else []
    return DeadLetterFilter(
        ids=frozenset(letter.id for letter in some) | (frozenset({"unknown"}) if some else frozenset()),
        group=group,
        topic=maybe(("orders", "clicks", "orders.retry", "nothing")),
        partition=maybe((0, 1, 2, 3, 9)),
        error_kind=maybe((*_KINDS, "valueerror", "Value")),
        error_contains=maybe((*_WORDS, "", ":", "%", "case n", "Value")),
        since_ms=maybe(times_ms),
        until_ms=maybe(times_ms),
        states=frozenset(rng.sample(list(LetterState), rng.randrange(5))),
    )


class BrowsingCases(LetterSuite):
    def test_letters_come_in_the_order_in_which_they_were_put(self) -> None:
        letters = self.open()
        put = [self.letter(number, last_ms=1_700_000_000_000 - number) for number in range(20)]
        for start in range(0, 20, 4):
            letters.put(put[start : start + 4])
        seen = [letter.id for letter in self.all(letters)]
        assert seen == [letter.id for letter in put], f"put as 0 to 19, the letters came as {_numbers(seen, put)}"

    def test_pages_of_any_size_give_each_letter_once(self) -> None:
        letters = self.open()
        put = self.random_letters(23)
        letters.put(put)
        which = DeadLetterFilter(group=self.group)
        for limit in (1, 2, 7, 22, 23, 24, 100):
            seen: list[str] = []
            for _ in range(len(put) + 1):
                page = letters.browse(which, limit, seen[-1] if seen else None)
                assert len(page) <= limit, f"a page of at most {limit} letters has {len(page)}"
                if not page:
                    break
                seen += [letter.id for letter in page]
            assert seen == [letter.id for letter in put], (
                f"with {limit} letters a page, paging gave {_numbers(seen, put)} instead of each once and in order"
            )

    def test_paging_goes_on_when_letters_leave_the_filter_or_come_back(self) -> None:
        letters = self.open()
        put = [self.letter(number) for number in range(12)]
        letters.put(put)
        which = DeadLetterFilter(group=self.group)
        seen = [letter.id for letter in letters.browse(which, 4)]
        letters.discard(seen[2:])  # the last one seen does not match any more
        letters.put([replace(put[1], last_ms=put[1].last_ms + 1_000_000)])  # and one that was seen has failed again
        seen += [letter.id for letter in letters.browse(which, 4, seen[-1])]
        letters.put([replace(put[7], last_ms=put[7].last_ms + 1_000_000)])
        seen += [letter.id for letter in letters.browse(which, 100, seen[-1])]
        assert seen == [letter.id for letter in put], (
            f"while letters changed, paging gave {_numbers(seen, put)}: a letter must keep its place"
        )

    def test_a_page_after_an_unknown_letter_is_refused(self) -> None:
        letters = self.with_one()
        with self.expect(ConfigError, "paging after an unknown letter would miss some letters, or repeat some"):
            letters.browse(DeadLetterFilter(group=self.group), 10, "unknown")

    def test_filters_give_what_matches(self) -> None:
        letters = self.open()
        put = self.random_letters(150)
        letters.put(put)
        ids = [letter.id for letter in put]
        letters.discard(self.rng.sample(ids, 20))
        letters.take(self.rng.sample(ids, 60), "first")
        letters.settle(self.rng.sample(ids, 60), "first", redriven=True)
        everything = self.all(letters)
        assert len({letter.state for letter in everything}) == 4, "the letters are to be in all states"
        # The case of letters must be covered, and not by chance.
        swapped = [DeadLetterFilter(group=self.group, error_contains=put[0].error.swapcase(), states=frozenset())]
        for which in [*swapped, *(random_filter(self.rng, put, self.group) for _ in range(150))]:
            expected = [letter for letter in everything if which.matches(letter)]
            found = list(letters.browse(which, 1000))
            assert found == expected, (
                f"{which} gave {_numbers([letter.id for letter in found], put)} instead of "
                f"{_numbers([letter.id for letter in expected], put)}"
            )
            count = letters.count(which)
            assert count == len(expected), f"{which} matches {len(expected)} letters, and {count} were counted"
            if expected:
                after = self.rng.choice(everything)
                behind = [each for each in expected if everything.index(each) > everything.index(after)]
                page = list(letters.browse(which, 3, after.id))
                assert page == behind[:3], f"{which} behind letter {ids.index(after.id)} gave another page"

    def test_a_filter_of_very_many_ids_is_understood(self) -> None:
        letters = self.open()
        letters.put([self.letter(number) for number in range(3)])
        ids = frozenset({self.letter(1).id, *(f"unknown-{number}" for number in range(40_000))})
        found = letters.browse(DeadLetterFilter(ids=ids, group=self.group))
        assert [letter.id for letter in found] == [self.letter(1).id], "one of 40,001 ids is that of a letter"

    def test_many_letters_are_all_there(self) -> None:
        letters = self.open()
        put = [self.letter(number) for number in range(3_000)]
        for start in range(0, len(put), 500):
            letters.put(put[start : start + 500])
        assert letters.count(DeadLetterFilter(group=self.group)) == len(put), "3,000 letters were put"
        last = letters.browse(DeadLetterFilter(group=self.group), 10, put[-4].id)
        assert list(last) == put[-3:], "behind the fourth from the end come the last three"

    def test_another_opening_sees_everything_at_once(self) -> None:
        letters, other = self.open(), self.open()
        assert self.all(other) == [], "nothing was put yet"
        letters.put([self.letter(0), self.letter(1)])
        assert self.all(other) == [self.letter(0), self.letter(1)], "what was put is there for everybody"
        other.discard([self.letter(0).id])
        assert self.states(letters) == [LetterState.DISCARDED, LetterState.WAITING], "so is what happened to it"
        assert letters.count(DeadLetterFilter(group=self.group, states=ANY_STATE)) == 2, "and it is counted"


def _numbers(ids: Sequence[str], put: Sequence[DeadLetter]) -> list[int]:
    """The numbers of these letters in the order of putting; -1 for unknown ones."""
    known = [letter.id for letter in put]
    return [known.index(id) if id in known else -1 for id in ids]


WAITING, TAKEN, REDRIVEN, DISCARDED = (
    LetterState.WAITING,
    LetterState.TAKEN,
    LetterState.REDRIVEN,
    LetterState.DISCARDED,
)


class StateCases(LetterSuite):
    def test_a_letter_put_twice_is_kept_once(self) -> None:
        letters = self.with_one()
        letters.put([self.letter(), self.letter()])
        assert self.one(letters) == self.letter(), "the same letter was put three times"

    def test_the_newer_of_two_failures_is_kept(self) -> None:
        letters = self.open()
        older = self.letter()
        newer = replace(
            older, error="TimeoutError: late", error_kind="TimeoutError", attempts=7, last_ms=older.last_ms + 5
        )
        letters.put([older])
        letters.put([newer])
        assert self.one(letters) == newer, "the record has failed again since"
        letters.put([older])
        assert self.one(letters) == newer, "an older failure does not take the place of a newer one"

    def test_letters_are_waiting_when_they_are_put(self) -> None:
        letters = self.open()
        letters.put([self.letter(state=REDRIVEN)])
        assert self.one(letters).state is WAITING, "a letter that was just put is waiting"

    def test_taken_letters_are_given_and_marked(self) -> None:
        letters = self.open()
        put = [self.letter(number) for number in range(4)]
        letters.put(put)
        taken = letters.take([put[3].id, "unknown", put[1].id], "first")
        assert [letter.id for letter in taken] == [put[1].id, put[3].id], "those asked for that are there, in order"
        assert all(letter.state is TAKEN for letter in taken), "they are given as taken"
        assert self.states(letters) == [WAITING, TAKEN, WAITING, TAKEN], "and marked as taken"
        assert [letter.record for letter in taken] == [put[1].record, put[3].record], "with their records"

    def test_a_taker_that_comes_back_is_given_its_letters_again(self) -> None:
        letters = self.with_one()
        letters.take([self.letter().id], "first")
        assert len(letters.take([self.letter().id], "first")) == 1, "a redrive that was killed goes on under its name"

    def test_a_redriven_letter_counts_its_redrives(self) -> None:
        letters = self.with_one()
        for redrives in (1, 2):
            letters.take([self.letter().id], "first")
            letters.settle([self.letter().id], "first", redriven=True)
            assert (self.one(letters).state, self.one(letters).redrives) == (REDRIVEN, redrives), "it was sent again"
            letters.settle([self.letter().id], "first", redriven=True)
            assert self.one(letters).redrives == redrives, "settling twice counts as one redrive"
            assert not letters.take([self.letter().id], "second"), "a letter that was redriven is not taken"
            letters.put([self.letter(last_ms=self.letter().last_ms + redrives)])

    def test_a_letter_that_was_not_sent_is_waiting_again(self) -> None:
        letters = self.with_one()
        letters.take([self.letter().id], "first")
        letters.settle([self.letter().id], "first", redriven=False)
        assert self.one(letters) == self.letter(), "nothing has happened to it"

    def test_a_redriven_letter_that_fails_again_is_waiting_with_the_newer_error(self) -> None:
        letters = self.with_one()
        letters.take([self.letter().id], "first")
        letters.settle([self.letter().id], "first", redriven=True)
        again = self.letter(error="KeyError: 1", error_kind="KeyError", last_ms=self.letter().last_ms + 10)
        letters.put([again])
        assert self.one(letters) == replace(again, redrives=1), "it failed again after one redrive"

    def test_a_letter_that_comes_back_while_it_is_redriven_is_not_taken_for_redriven(self) -> None:
        letters = self.with_one()
        letters.take([self.letter().id], "first")
        again = self.letter(
            redrives=1, last_ms=self.letter().last_ms + 10
        )  # sent, read and failed before it is settled
        letters.put([again])
        letters.settle([self.letter().id], "first", redriven=True)
        assert self.one(letters) == again, "the newer failure is waiting, after one redrive, whatever its taker says"

    def test_only_the_last_taker_settles(self) -> None:
        letters = self.with_one()
        letters.take([self.letter().id], "first")
        taken = letters.take([self.letter().id], "second")
        assert [letter.id for letter in taken] == [self.letter().id], "one whose taker may be dead is taken again"
        letters.settle([self.letter().id], "first", redriven=True)
        assert (self.one(letters).state, self.one(letters).redrives) == (TAKEN, 0), "it is the second one's by now"
        letters.settle([self.letter().id], "second", redriven=True)
        assert (self.one(letters).state, self.one(letters).redrives) == (REDRIVEN, 1), "who has settled it"

    def test_settling_what_nobody_took_changes_nothing(self) -> None:
        letters = self.with_one()
        letters.settle([self.letter().id, "unknown"], "first", redriven=True)
        letters.settle([self.letter().id], "", redriven=True)
        assert self.one(letters) == self.letter(), "it is waiting as before"

    def test_discarded_letters_stay_and_are_not_taken(self) -> None:
        letters = self.open()
        put = [self.letter(number) for number in range(3)]
        letters.put(put)
        letters.take([put[1].id], "first")
        assert letters.discard([put[0].id, put[1].id, "unknown"]) == 2, "two of them were not discarded before"
        assert letters.discard([letter.id for letter in put]) == 1, "one of them was not discarded before"
        assert self.states(letters) == [DISCARDED] * 3, "they can still be looked at"
        assert not letters.take([letter.id for letter in put], "second"), "a discarded letter cannot be taken"
        letters.settle([put[1].id], "first", redriven=True)
        assert self.states(letters) == [DISCARDED] * 3, "who had taken one has it no more"

    def test_a_discarded_letter_is_waiting_only_when_its_record_fails_again(self) -> None:
        letters = self.with_one()
        letters.discard([self.letter().id])
        letters.put([self.letter()])
        assert self.one(letters).state is DISCARDED, "it is the failure that was discarded, put once more"
        letters.put([self.letter(last_ms=self.letter().last_ms + 1)])
        assert self.one(letters).state is WAITING, "this failure was not discarded"

    def test_nothing_to_do_is_no_error(self) -> None:
        letters = self.open()
        letters.put([])
        letters.settle([], "first", redriven=True)
        assert not letters.take([], "first"), "nothing was asked for"
        assert letters.discard([]) == 0, "nothing was to be discarded"
        assert self.all(letters) == [], "nothing is there"

    def test_letters_put_by_many_at_once_are_all_there_once(self) -> None:
        openings = [self.open() for _ in range(3)]
        put = [self.letter(number) for number in range(60)]

        def put_all(letters: DeadLetters, shift: int) -> None:
            for number in range(len(put)):
                letters.put([put[(number + shift) % len(put)]])

        futures = [self.in_background(put_all, openings[which % 3], which * 10) for which in range(6)]
        for future in futures:
            future.result(SETTLE_S)
        found = self.all(openings[0])
        assert sorted(letter.id for letter in found) == sorted(letter.id for letter in put), (
            f"60 letters were each put six times, side by side, and {len(found)} are there"
        )

    def test_of_failures_that_are_put_at_once_the_newest_is_kept(self) -> None:
        openings = [self.open() for _ in range(3)]
        first = [self.letter(number) for number in range(10)]
        together = threading.Barrier(6)

        def put_later(letters: DeadLetters, later_ms: int) -> None:
            together.wait(SETTLE_S)
            letters.put([replace(letter, last_ms=letter.last_ms + later_ms) for letter in first])

        for begun_ms in range(0, 48, 6):
            futures = [self.in_background(put_later, openings[which % 3], begun_ms + which) for which in range(6)]
            for future in futures:
                future.result(SETTLE_S)
            found = {letter.id: letter.last_ms for letter in self.all(openings[0])}
            newest = {letter.id: letter.last_ms + begun_ms + 5 for letter in first}
            assert found == newest, "an older failure, put at the same time, has taken the place of the newest"

    def test_letters_are_redriven_once_by_competing_takers(self) -> None:
        openings = [self.open() for _ in range(3)]
        put = [self.letter(number) for number in range(90)]
        openings[0].put(put)
        together = threading.Barrier(6)
        which = DeadLetterFilter(group=self.group, states=frozenset({WAITING}))

        def redrive_all(letters: DeadLetters, taker: str) -> None:
            ids = [letter.id for letter in put[:30]]
            letters.take(ids, taker)
            together.wait(SETTLE_S)  # each has been given them all, and the last one has them
            letters.settle(ids, taker, redriven=True)
            together.wait(SETTLE_S)
            while page := letters.browse(which, 10):  # ends: each round takes what the page had, or others have
                taken = letters.take([letter.id for letter in page], taker)
                letters.settle([letter.id for letter in taken], taker, redriven=True)

        futures = [self.in_background(redrive_all, openings[number % 3], f"taker-{number}") for number in range(6)]
        for future in futures:
            future.result(SETTLE_S)
        left = openings[0].browse(DeadLetterFilter(group=self.group, states=frozenset({TAKEN})), 1000)
        assert not left, f"{len(left)} letters are still taken, though each taker settled what it was given"
        redrives = {letter.redrives for letter in self.all(openings[0])}
        assert redrives == {1}, (
            f"each letter was to be settled by one taker, and the numbers of redrives are {redrives}"
        )


_MEGABYTE: Final = 1024 * 1024


class LetterSurvivalCases(LetterSuite):
    def test_records_are_kept_to_the_byte(self) -> None:
        letters = self.open()
        put = self.random_letters(200)
        letters.put(put)
        for expected, found in zip(put, self.all(letters), strict=True):
            assert found == expected, f"put was {expected}, found was {found}"
        taken = letters.take([letter.id for letter in put], "first")
        assert [letter.record for letter in taken] == [letter.record for letter in put], "also when they are taken"

    def test_records_of_any_size_are_kept_whole(self) -> None:
        letters = self.open()
        record = self.letter().record
        noise = self.rng.randbytes(_MEGABYTE)
        odd: list[dict[str, Any]] = [
            {"value": noise * 3},
            {"value": b"", "key": noise},
            {"value": None, "headers": tuple((f"h{index}", noise[:200_000]) for index in range(8))},
            {"value": noise[:990_000]},
            {"value": noise[:890_000], "key": noise[:50_000], "headers": (("h", None), ("h", b""))},
        ]
        put = [self.letter(number, record=replace(record, offset=number, **parts)) for number, parts in enumerate(odd)]
        letters.put([self.letter(100), *put, self.letter(101)])
        found = self.all(self.open())
        assert [letter.record for letter in found] == [
            letter.record for letter in (self.letter(100), *put, self.letter(101))
        ], "a record of several megabytes is not whole"

    def test_long_and_odd_texts_harm_nothing(self) -> None:
        letters = self.open()
        put = [
            self.letter(0, error="ValueError: " + "x" * 3 * _MEGABYTE),
            self.letter(1, traceback="Traceback\n" + "  a line\n" * 400_000 + "ValueError: the end\n"),
            self.letter(2, error="ValueError: a\x00b", traceback="a\x00b"),
            self.letter(3, error="ValueError: half \ud800 of a pair", handler="\udcff"),
        ]
        letters.put(put)
        found = self.all(letters)
        assert [letter.record for letter in found] == [letter.record for letter in put], "their records are whole"
        assert all(letter.error.startswith("ValueError: ") for letter in found), "and what was wrong can be seen"
        assert found[1].traceback.endswith("ValueError: the end\n"), "the end of a long traceback is kept"
        matching = letters.browse(DeadLetterFilter(group=self.group, error_contains="half "))
        assert [letter.id for letter in matching] == [put[3].id], "and can be asked for"

    def test_closing_twice_is_no_error(self) -> None:
        letters = self.with_one()
        letters.close()
        letters.close()
        assert self.one(self.open()) == self.letter(), "what was put before is there when they are opened again"

    @needs(Feature.DURABLE)
    def test_what_was_put_survives_a_kill(self) -> None:
        with self.child(put_one_by_one, self.group) as child:
            said = [child.receive() for _ in range(20)] + child.kill()
        found = self.all(self.open())
        assert len(found) >= len(said), f"put had returned for {len(said)} letters, and {len(found)} are there"
        expected = [plain_letter(self.group, number) for number in range(len(found))]
        assert found == expected, "letters that were put before the kill are not as they were put"

    @needs(Feature.DURABLE)
    def test_a_kill_in_the_middle_of_a_put_leaves_letters_whole_and_usable(self) -> None:
        for _ in range(3):
            with self.child(put_large_ones, self.group, self.rng.random()) as child:
                child.wait_until_killed()
        letters = self.open()
        for found in self.all(letters):
            expected = large_letter(self.group, found.record.offset)
            assert found == expected, f"letter {found.record.offset} is there, but not whole"
        letters.put([self.letter(10**6)])
        assert self.all(letters)[-1] == self.letter(10**6), "letters can be put after another process was killed"

    @needs(Feature.DURABLE)
    def test_what_was_settled_and_discarded_survives_a_kill(self) -> None:
        letters = self.open()
        letters.put([self.letter(number) for number in range(200)])
        with self.child(settle_one_by_one, self.group) as child:
            said = [child.receive() for _ in range(20)] + child.kill()
        for opening in (letters, self.open()):
            found = {letter.id: letter for letter in self.all(opening)}
            wrong = [number for number, state in said if found[self.letter(number).id].state.value != state]
            assert not wrong, f"what had been done to the letters {wrong} is not there after the kill"
        taken = letters.take(list(found), "next")
        finished = sum(letter.state in (LetterState.REDRIVEN, LetterState.DISCARDED) for letter in found.values())
        assert len(taken) == 200 - finished, "what the killed one had taken and not settled can be taken again"


def put_one_by_one(letters: DeadLetters, parent: Parent, group: str) -> None:
    for number in range(100_000):
        letters.put([plain_letter(group, number)])
        parent.send(number)


def put_large_ones(letters: DeadLetters, parent: Parent, group: str, moment: float) -> None:
    """Until this process kills itself, during the second or third put."""
    began_s = time.monotonic()
    for number in range(0, 100_000, 3):
        letters.put([large_letter(group, number + step) for step in range(3)])
        if not number:
            threading.Timer(moment * 2 * (time.monotonic() - began_s), die).start()


def large_letter(group: str, number: int) -> DeadLetter:
    letter = plain_letter(group, number)
    return replace(letter, record=replace(letter.record, value=number.to_bytes(4, "big") * 100_000))


def settle_one_by_one(letters: DeadLetters, parent: Parent, group: str) -> None:
    every = letters.browse(DeadLetterFilter(group=group, states=ANY_STATE), 1000)
    letters.take([letter.id for letter in every[::2]], "killed")
    for number, letter in enumerate(every):
        if number % 4 == 0:
            letters.settle([letter.id], "killed", redriven=True)
            parent.send((number, LetterState.REDRIVEN.value))
        elif number % 2:
            letters.discard([letter.id])
            parent.send((number, LetterState.DISCARDED.value))
    parent.receive()


class DeadLetterCases(BrowsingCases, StateCases, LetterSurvivalCases):
    """What `penstock.abc.DeadLetters` promises."""


def dead_letters(factory: Factory[DeadLetters], features: Features | None = None) -> type[DeadLetterCases]:
    return collect(DeadLetterCases, factory, features)
