"""Cases about finding letters: order, pages, filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.errors import ConfigError
from penstock.model import DeadLetter, LetterFilter, LetterState
from penstock.testing.conformance.letter_suite import ANY_STATE, LetterSuite, random_filter


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
        which = LetterFilter(group=self.group)
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
        which = LetterFilter(group=self.group)
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
        letters = self.open()
        letters.put([self.letter()])
        with self.expect(ConfigError, "who pages after a letter that is not there would miss some, or see some twice"):
            letters.browse(LetterFilter(group=self.group), 10, "unknown")

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
        # That upper and lower case are told apart must not be left to chance.
        swapped = [LetterFilter(group=self.group, error_contains=put[0].error.swapcase(), states=frozenset())]
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
        found = letters.browse(LetterFilter(ids=ids, group=self.group))
        assert [letter.id for letter in found] == [self.letter(1).id], "one of 40,001 ids is that of a letter"

    def test_many_letters_are_all_there(self) -> None:
        letters = self.open()
        put = [self.letter(number) for number in range(3_000)]
        for start in range(0, len(put), 500):
            letters.put(put[start : start + 500])
        assert letters.count(LetterFilter(group=self.group)) == len(put), "3,000 letters were put"
        last = letters.browse(LetterFilter(group=self.group), 10, put[-4].id)
        assert list(last) == put[-3:], "behind the fourth from the end come the last three"

    def test_another_opening_sees_everything_at_once(self) -> None:
        letters, other = self.open(), self.open()
        assert self.all(other) == [], "nothing was put yet"
        letters.put([self.letter(0), self.letter(1)])
        assert self.all(other) == [self.letter(0), self.letter(1)], "what was put is there for everybody"
        other.discard([self.letter(0).id])
        assert self.states(letters) == [LetterState.DISCARDED, LetterState.WAITING], "so is what happened to it"
        assert letters.count(LetterFilter(group=self.group, states=ANY_STATE)) == 2, "and it is counted"


def _numbers(ids: Sequence[str], put: Sequence[DeadLetter]) -> list[int]:
    """Which of the letters these are, counted as they were put; -1 for those that never were."""
    known = [letter.id for letter in put]
    return [known.index(id) if id in known else -1 for id in ids]
