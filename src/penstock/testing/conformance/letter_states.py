"""Cases about what happens to letters: put again, taken, settled, discarded, by one or by several at once."""

from __future__ import annotations

import threading
from dataclasses import replace

from penstock.abc import DeadLetters
from penstock.model import LetterFilter, LetterState
from penstock.testing.conformance.letter_suite import SETTLE_S, LetterSuite

WAITING, TAKEN, REDRIVEN, DISCARDED = (
    LetterState.WAITING,
    LetterState.TAKEN,
    LetterState.REDRIVEN,
    LetterState.DISCARDED,
)


class StateCases(LetterSuite):
    def test_a_letter_put_twice_is_kept_once(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
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
        assert self.one(letters).state is WAITING, "who puts a letter has given its record up"

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
        letters = self.open()
        letters.put([self.letter()])
        letters.take([self.letter().id], "first")
        assert len(letters.take([self.letter().id], "first")) == 1, "a redrive that was killed goes on under its name"

    def test_a_redriven_letter_counts_its_redrives(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
        for redrives in (1, 2):
            letters.take([self.letter().id], "first")
            letters.settle([self.letter().id], "first", redriven=True)
            assert (self.one(letters).state, self.one(letters).redrives) == (REDRIVEN, redrives), "it was sent again"
            letters.settle([self.letter().id], "first", redriven=True)
            assert self.one(letters).redrives == redrives, "who settles twice has still sent it once"
            assert not letters.take([self.letter().id], "second"), "a letter that was redriven is not taken"
            letters.put([self.letter(last_ms=self.letter().last_ms + redrives)])

    def test_a_letter_that_was_not_sent_is_waiting_again(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
        letters.take([self.letter().id], "first")
        letters.settle([self.letter().id], "first", redriven=False)
        assert self.one(letters) == self.letter(), "nothing has happened to it"

    def test_a_redriven_letter_that_fails_again_is_waiting_with_the_newer_error(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
        letters.take([self.letter().id], "first")
        letters.settle([self.letter().id], "first", redriven=True)
        again = self.letter(error="KeyError: 1", error_kind="KeyError", last_ms=self.letter().last_ms + 10)
        letters.put([again])
        assert self.one(letters) == replace(again, redrives=1), "it failed again after one redrive"

    def test_a_letter_that_comes_back_while_it_is_redriven_is_not_taken_for_redriven(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
        letters.take([self.letter().id], "first")
        again = self.letter(
            redrives=1, last_ms=self.letter().last_ms + 10
        )  # sent, read and failed before it is settled
        letters.put([again])
        letters.settle([self.letter().id], "first", redriven=True)
        assert self.one(letters) == again, "the newer failure is waiting, after one redrive, whatever its taker says"

    def test_only_the_last_taker_settles(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
        letters.take([self.letter().id], "first")
        taken = letters.take([self.letter().id], "second")
        assert [letter.id for letter in taken] == [self.letter().id], "one whose taker may be dead is taken again"
        letters.settle([self.letter().id], "first", redriven=True)
        assert (self.one(letters).state, self.one(letters).redrives) == (TAKEN, 0), "it is the second one's by now"
        letters.settle([self.letter().id], "second", redriven=True)
        assert (self.one(letters).state, self.one(letters).redrives) == (REDRIVEN, 1), "who has settled it"

    def test_settling_what_nobody_took_changes_nothing(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
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
        assert not letters.take([letter.id for letter in put], "second"), "nobody gets them"
        letters.settle([put[1].id], "first", redriven=True)
        assert self.states(letters) == [DISCARDED] * 3, "who had taken one has it no more"

    def test_a_discarded_letter_is_waiting_only_when_its_record_fails_again(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
        letters.discard([self.letter().id])
        letters.put([self.letter()])
        assert self.one(letters).state is DISCARDED, "it is the failure that was discarded, put once more"
        letters.put([self.letter(last_ms=self.letter().last_ms + 1)])
        assert self.one(letters).state is WAITING, "this failure nobody has discarded"

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

    def test_letters_are_redriven_once_by_competing_takers(self) -> None:
        openings = [self.open() for _ in range(3)]
        put = [self.letter(number) for number in range(90)]
        openings[0].put(put)
        together = threading.Barrier(6)
        which = LetterFilter(group=self.group, states=frozenset({WAITING}))

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
        left = openings[0].browse(LetterFilter(group=self.group, states=frozenset({TAKEN})), 1000)
        assert not left, f"{len(left)} letters are still taken, though each taker settled what it was given"
        redrives = {letter.redrives for letter in self.all(openings[0])}
        assert redrives == {1}, (
            f"each letter was to be settled by one taker, and the numbers of redrives are {redrives}"
        )
