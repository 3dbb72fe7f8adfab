"""The rules of sharing a partition, against a model that knows the state of every single pointer."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

from penstock.checkpoints.format import decode_checkpoint, encode_checkpoint
from penstock.consuming.queue.claims import ClaimTable, ClaimWatch, missing
from penstock.model import Checkpoint, CheckpointKey, Claim
from tests.seeds import seed_of

KEY = CheckpointKey("g", "t", 0)

Held = tuple[str, int, int]
"""Owner, number, attempt."""


class Model:
    """Every pointer by itself: who has it and for the how-manyth time; None when it is finished."""

    def __init__(self) -> None:
        self.by_pointer: dict[int, Held | None] = {}

    def check(self, table: ClaimTable) -> None:
        checkpoint = table.checkpoint(0)
        assert decode_checkpoint(encode_checkpoint(checkpoint), KEY) == checkpoint
        assert table.next == len(self.by_pointer)
        assert all(self.by_pointer[pointer] is None for pointer in range(table.start))
        if table.start < table.next:
            assert self.by_pointer[table.start] is not None, "the start moves over all that is finished"
        for pointer, held in self.by_pointer.items():
            assert table.is_finished(pointer) == (held is None)
            claims = [claim for claim in checkpoint.claims if claim.first <= pointer < claim.end]
            assert len(claims) <= 1
            if held is not None:
                assert [(claim.owner, claim.number, claim.attempt) for claim in claims] == [held]
        for claim in checkpoint.claims:
            assert any(self.by_pointer[pointer] for pointer in range(claim.first, claim.end)), "none is empty"


def is_one_of(numbers: set[int]) -> Callable[[Claim], bool]:
    return lambda claim: claim.number in numbers


def test_random_histories_agree_with_the_model() -> None:
    chance = random.Random(seed_of())
    for _ in range(60):
        table, model, numbers = ClaimTable(Checkpoint(0, 0)), Model(), itertools.count(1)
        over: set[int] = set()
        for _ in range(120):
            number = next(numbers)
            owner = chance.choice("ab")
            pointers = sorted(model.by_pointer)
            action = chance.choice(("new", "again", "finish", "finish", "finish", "back", "extend", "expire", "reload"))
            first = chance.choice(pointers) if pointers else 0
            end = min(len(pointers), first + chance.randrange(1, 4))
            held = model.by_pointer.get(first)
            if action == "new":
                start = max(0, table.next - chance.randrange(3))
                next_ = start + chance.randrange(1, 8)
                run = table.take_new(start, next_, owner, number, 1000)
                assert (run is None) == (next_ <= len(pointers))
                for pointer in range(*(run or (0, 0))):
                    model.by_pointer[pointer] = (owner, number, 1)
            elif action == "again":
                for part in list(table.waiting(is_one_of(over))):
                    number = next(numbers)
                    attempt = table.take_again(part, owner, number, 1000)
                    assert attempt == part.attempt + 1
                    for pointer in range(part.first, part.end):
                        assert model.by_pointer[pointer] == (part.owner, part.number, part.attempt)
                        model.by_pointer[pointer] = (owner, number, attempt)
            elif action == "expire" and held:
                over.add(held[1])
            elif action == "reload":
                table = ClaimTable(table.checkpoint(0))
            elif held and first < end:
                before = table.checkpoint(0)
                whole = all(model.by_pointer[pointer] == held for pointer in range(first, end))
                end = end if whole else first + 1
                if action == "finish":
                    assert table.finish(first, end, held[0], held[1])
                    becomes: Held | None = None
                elif action == "back":
                    assert table.release(first, end, held[0], held[1], after_ms=0, as_number=number)
                    becomes = ("", number, held[2])
                    over.add(number)
                else:
                    assert table.extend(first, end, held[0], held[1], as_number=number, lasts_ms=1)
                    becomes = (held[0], number, held[2])
                for pointer in range(first, end):
                    model.by_pointer[pointer] = becomes
                assert not ClaimTable(before).finish(first, end, held[0], -1), "a claim that never was"
                assert not table.finish(first, end, held[0], held[1]), "it is settled once"
            model.check(table)


def test_the_gaps_of_runs() -> None:
    chance = random.Random(seed_of())
    for _ in range(500):
        inside = {pointer for pointer in range(30) if chance.random() < 0.5}
        runs, pointer = [], 0
        while pointer < 30:
            if pointer in inside:
                end = next(end for end in range(pointer, 31) if end not in inside)
                runs.append((pointer, end))
                pointer = end
            pointer += 1
        first, end = sorted((chance.randrange(31), chance.randrange(31)))
        gaps = [each for gap in missing(first, end, tuple(runs)) for each in range(*gap)]
        assert gaps == [each for each in range(first, end) if each not in inside]


def test_giving_up_what_has_expired_takes_it_out_of_every_hand() -> None:
    table = ClaimTable(Checkpoint(0, 0))
    assert table.take_new(0, 10, "a", 1, 1000) == (0, 10)
    assert table.finish(7, 8, "a", 1)
    assert table.skip_to(5)
    assert not table.finish(4, 5, "a", 1)
    assert table.finish(5, 7, "a", 1)
    assert table.start == 8
    assert table.skip_to(20)
    assert (table.start, table.next, list(table.claims)) == (20, 20, [])
    assert not table.skip_to(3)


def test_a_claim_is_over_when_it_was_seen_to_stand_still_for_as_long_as_it_lasts() -> None:
    watch = ClaimWatch()
    claim, other = Claim(0, 5, "a", 1, 1, 2000), Claim(5, 9, "b", 1, 1, 2000)
    watch.saw([claim], began_s=10.0, ended_s=11.0)
    assert watch.next_end_s([claim]) == 13.0
    watch.saw([claim, other], began_s=12.9, ended_s=13.5)
    assert not watch.is_over(claim), "what was seen may have been so at 12.9 already, and no longer at 13.5"
    watch.saw([claim, other], began_s=13.1, ended_s=13.6)
    assert watch.is_over(claim)
    assert not watch.is_over(other)
    assert watch.is_over(Claim(0, 1, "", 7, 1, 0)), "nobody has it in hand"
