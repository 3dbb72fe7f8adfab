"""The claims on the records of a shared partition: the rules, without a store and without a clock."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from penstock.consuming.loop.finished_runs import RunSet
from penstock.model import Checkpoint, Claim, Failing, Pointer, Runs

Run = tuple[Pointer, Pointer]


class ClaimTable:
    """A checkpoint that several members change in turn.

    Each record of the partition from `start` on is finished, or in exactly one claim, or at `next` or after it and
    never delivered. A claim may contain finished records, which no longer count. Each change is made as a whole, or
    refused with False or None and no effect.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._before = checkpoint
        self.start = checkpoint.start
        self.next = checkpoint.next
        self._finished = RunSet(checkpoint.finished)
        self._claims = list(checkpoint.claims)
        self._failing = {each.pointer: each for each in checkpoint.failing}
        self.processed = checkpoint.processed
        self.delivered = checkpoint.delivered
        self.changed = False

    def checkpoint(self, now_ms: int) -> Checkpoint:
        return replace(
            self._before,
            start=self.start,
            next=self.next,
            finished=self._finished.as_runs(),
            failing=tuple(sorted(self._failing.values(), key=lambda each: each.pointer)),
            restarts=0,
            processed=self.processed,
            delivered=self.delivered,
            saved_ms=now_ms,
            claims=tuple(self._claims),
        )

    def begin(self) -> ClaimTable:
        """Mark it as changed, so that it is saved."""
        self.changed = True
        return self

    @property
    def claims(self) -> Sequence[Claim]:
        return self._claims

    def take_new(self, start: Pointer, next: Pointer, owner: str, number: int, lasts_ms: int) -> Run | None:
        """Claim the part of `start` to `next` that was never claimed. Returns that part.

        None when others claimed all of it, or when it does not follow what was delivered before.
        """
        if start > self.next or next <= self.next:
            return None
        run = (self.next, next)
        self._claims.append(Claim(*run, owner, number, 1, lasts_ms))
        self.next = next
        self.changed = True
        return run

    def waiting(self, is_over: Callable[[Claim], bool]) -> Iterator[Claim]:
        """The parts of released or expired claims that may be delivered again, in order, without finished records.

        Consume it before making changes."""
        finished = self._finished.as_runs()
        for claim in self._claims:
            if is_over(claim):
                for first, end in missing(max(claim.first, self.start), claim.end, finished):
                    yield replace(claim, first=first, end=end)

    def take_again(self, part: Claim, owner: str, number: int, lasts_ms: int) -> int | None:
        """Claim a part that `waiting` returned, unless it has changed since. Returns the number of the attempt."""
        taken = Claim(part.first, part.end, owner, number, part.attempt + 1, lasts_ms)
        return taken.attempt if self._exchange(part.first, part.end, part.owner, part.number, taken) else None

    def finish(self, first: Pointer, end: Pointer, owner: str, number: int) -> bool:
        """Mark this part of a claim as finished. False when the claim is no longer valid."""
        index = self._find_claim(first, end, owner, number)
        if index is None:
            return False
        claim = self._claims[index]
        self._finish(first, end)
        if not self._is_open(claim):
            del self._claims[index]
        return True

    def release(
        self,
        first: Pointer,
        end: Pointer,
        owner: str,
        number: int,
        *,
        after_ms: int,
        as_number: int,
        uncounted: bool = False,
    ) -> bool:
        """Release this part of a claim, to be delivered again after a delay. `uncounted`: it does not count as an
        attempt."""
        index = self._find_claim(first, end, owner, number)
        if index is None:
            return False
        waiting = Claim(first, end, "", as_number, self._claims[index].attempt - uncounted, after_ms)
        return self._exchange(first, end, owner, number, waiting)

    def release_all(self, owner: str) -> None:
        """Release everything that this owner has claimed."""
        for index, claim in enumerate(self._claims):
            if claim.owner == owner:
                self._claims[index] = replace(claim, owner="", lasts_ms=0)
                self.changed = True

    def extend(self, first: Pointer, end: Pointer, owner: str, number: int, *, as_number: int, lasts_ms: int) -> bool:
        """Restart the time limit of this part of a claim, under another number."""
        index = self._find_claim(first, end, owner, number)
        if index is None:
            return False
        again = Claim(first, end, owner, as_number, self._claims[index].attempt, lasts_ms)
        return self._exchange(first, end, owner, number, again)

    def failed(self, pointer: Pointer, error: str, now_ms: int) -> None:
        """Count a failed attempt at a record that is not finished."""
        before = self._failing.get(pointer, Failing(pointer, 0, "", now_ms, now_ms))
        self._failing[pointer] = replace(before, attempts=before.attempts + 1, error=error, last_ms=now_ms)

    def skip_to(self, pointer: Pointer) -> bool:
        """Mark everything before this pointer as finished, whoever has claimed it."""
        if pointer <= self.start:
            return False
        self.next = max(self.next, pointer)
        self._finish(self.start, pointer)
        self._claims = [claim for claim in self._claims if claim.end > self.start]
        return True

    def is_finished(self, pointer: Pointer) -> bool:
        return pointer < self.start or pointer in self._finished

    def _find_claim(self, first: Pointer, end: Pointer, owner: str, number: int) -> int | None:
        """The index of this owner's claim that contains this part, if nothing of the part is finished."""
        index = bisect.bisect_right(self._claims, first, key=lambda claim: claim.first) - 1
        if index < 0 or first < self.start:
            return None
        claim = self._claims[index]
        if (claim.owner, claim.number) != (owner, number) or claim.end < end:
            return None
        return index if next(missing(first, end, self._finished.as_runs()), None) == (first, end) else None

    def _exchange(self, first: Pointer, end: Pointer, owner: str, number: int, by: Claim) -> bool:
        index = self._find_claim(first, end, owner, number)
        if index is None:
            return False
        claim = self._claims[index]
        pieces = [replace(claim, end=first), by, replace(claim, first=end)]
        self._claims[index : index + 1] = [piece for piece in pieces if self._is_open(piece)]
        self.changed = True
        return True

    def _is_open(self, claim: Claim) -> bool:
        """Whether any of its records is unfinished."""
        return any(missing(max(claim.first, self.start), claim.end, self._finished.as_runs()))

    def _finish(self, first: Pointer, end: Pointer) -> None:
        self._finished.add(first, end)
        self.start = self._finished.pop_from(self.start)
        for pointer in [each for each in self._failing if first <= each < end]:
            del self._failing[pointer]
        self.changed = True


def missing(first: Pointer, end: Pointer, finished: Runs) -> Iterator[Run]:
    """The parts of an interval that are in none of the runs."""
    index = bisect.bisect_right(finished, first, key=lambda run: run[1])
    while first < end:
        if index == len(finished) or finished[index][0] >= end:
            yield first, end
            return
        if finished[index][0] > first:
            yield first, finished[index][0]
        first = finished[index][1]
        index += 1


class ClaimWatch:
    """How long claims have been unchanged, by the observer's clock; see `membership.Watch` for the times."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], float] = {}
        self._began_s = float("-inf")

    def saw(self, claims: Sequence[Claim], began_s: float, ended_s: float) -> None:
        names = {(claim.owner, claim.number) for claim in claims}
        self._seen = {name: self._seen.get(name, ended_s) for name in names}
        self._began_s = began_s

    def is_over(self, claim: Claim) -> bool:
        """Whether its unfinished records may be claimed."""
        if not claim.owner and not claim.lasts_ms:
            return True
        since_s = self._seen.get((claim.owner, claim.number))
        return since_s is not None and self._began_s - since_s >= claim.lasts_ms / 1000

    def next_end_s(self, claims: Sequence[Claim]) -> float | None:
        """When the next claim expires."""
        ends = (self._seen.get((c.owner, c.number), self._began_s) + c.lasts_ms / 1000 for c in claims)
        return min((end_s for end_s in ends if end_s > self._began_s), default=None)
