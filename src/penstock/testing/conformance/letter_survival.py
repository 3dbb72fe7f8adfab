"""Cases about what is kept: every byte of a record, records of any size, and everything when a process is killed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, Final

from penstock.abc import DeadLetters, Feature
from penstock.model import DeadLetter, LetterFilter, LetterState
from penstock.testing.conformance.child import Parent
from penstock.testing.conformance.letter_suite import ANY_STATE, LetterSuite, plain_letter
from penstock.testing.conformance.suite import needs
from penstock.testing.crashing import die

_MEGABYTE: Final = 1024 * 1024


class SurvivalCases(LetterSuite):
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
        assert found[1].traceback.endswith("ValueError: the end\n"), "the end of a traceback tells most"
        matching = letters.browse(LetterFilter(group=self.group, error_contains="half "))
        assert [letter.id for letter in matching] == [put[3].id], "and can be asked for"

    def test_closing_twice_is_no_error(self) -> None:
        letters = self.open()
        letters.put([self.letter()])
        letters.close()
        letters.close()
        assert self.one(self.open()) == self.letter(), "what was put before is there when they are opened again"

    @needs(Feature.DURABLE)
    def test_what_was_put_survives_a_kill(self) -> None:
        with self.child(put_one_by_one, self.group) as child:
            said = [child.hear() for _ in range(20)] + child.kill()
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
            said = [child.hear() for _ in range(20)] + child.kill()
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
        parent.say(number)


def put_large_ones(letters: DeadLetters, parent: Parent, group: str, moment: float) -> None:
    """Until this process dies of itself, at some moment of the second put or of the third."""
    began_s = time.monotonic()
    for number in range(0, 100_000, 3):
        letters.put([large_letter(group, number + step) for step in range(3)])
        if not number:
            threading.Timer(moment * 2 * (time.monotonic() - began_s), die).start()


def large_letter(group: str, number: int) -> DeadLetter:
    letter = plain_letter(group, number)
    return replace(letter, record=replace(letter.record, value=number.to_bytes(4, "big") * 100_000))


def settle_one_by_one(letters: DeadLetters, parent: Parent, group: str) -> None:
    every = letters.browse(LetterFilter(group=group, states=ANY_STATE), 1000)
    letters.take([letter.id for letter in every[::2]], "killed")
    for number, letter in enumerate(every):
        if number % 4 == 0:
            letters.settle([letter.id], "killed", redriven=True)
            parent.say((number, LetterState.REDRIVEN.value))
        elif number % 2:
            letters.discard([letter.id])
            parent.say((number, LetterState.DISCARDED.value))
    parent.hear()
