"""Queue semantics on a log: the members of a group share the partitions of a stream record by record."""

from __future__ import annotations

import functools
import itertools
import logging
import random
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from penstock.abc import CheckpointStore, Clock, Delivery, Feature, Features, Outcome, Stream
from penstock.consuming.claims import ClaimBook, Run
from penstock.consuming.ledger import Ledger, OwnedError
from penstock.consuming.pulling import feed_of
from penstock.consuming.shared import Shared, neighbours, ours, shared_of, too_late
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    OffsetOutOfRangeError,
    StoreUnavailableError,
    UnknownTopicError,
)
from penstock.model import Batch, CheckpointKey, Claim, NewRecord, Pointer, Position, Status

logger = logging.getLogger(__name__)

_REREAD_S: Final = 5.0
"""How long to wait for a record that is known to be there."""
_PARTITIONS_EVERY_S: Final = 5.0
_TOPIC_SOON_S: Final = 0.5
_LOOK_S: Final = 1.0
"""How often at least to look what others have handed back, or have died with, while records wait to be received."""

Answer = TypeVar("Answer")


class StreamQueue:
    """`abc.Queue` on a stream: records are handed out one by one, to whichever member of the group asks first.

    So more members than partitions can work, and a slow record holds up nothing but itself; the price is order. Groups
    each get every record; the members of one group divide them. A record that was received must be settled within
    `visibility_s`, or extended: else whoever has watched its claim stand still for that long, by its own clock, takes
    it, as its next attempt. Settling it then is a StaleDeliveryError. Wall clocks are not compared, so a member that
    has just come waits for the whole of `visibility_s` once, before it takes what the dead have left.

    All members keep one checkpoint for each partition in the store, with `Feature.LEASES`, and change it by
    compare-and-set. `receive` costs one change for each partition that gives records, and `settle` one; threads that
    settle at once share one, and `settle_all` is one for all. It is at-least-once: kill -9 of any member loses nothing.

    `start` is where a group begins that has no checkpoint. `batch` is the most that one `receive` gives. The stream and
    the store stay open when it is closed: they belong to whoever opened them.
    """

    def __init__(
        self,
        stream: Stream,
        store: CheckpointStore,
        group: str,
        *,
        member: str,
        visibility_s: float = 30.0,
        batch: int = 100,
        clock: Clock,
        start: Position = Position.EARLIEST,
    ) -> None:
        if Feature.LEASES not in store.features:
            raise ConfigError(
                f"sharing partitions needs a store that several processes can write: {type(store).__name__} has no "
                f"{Feature.LEASES}"
            )
        if not group or not member:
            raise ConfigError("a group and its members need names that are not empty")
        if not visibility_s > 0 or batch < 1:
            raise ConfigError(f"visibility_s={visibility_s!r}, batch={batch!r}: both must be above 0")
        self._stream = stream
        self._store = store
        self._group = group
        self._owner = f"{member}/{secrets.token_hex(4)}"
        self._visibility_ms = max(1, round(visibility_s * 1000))
        self._batch = batch
        self._clock = clock
        self._start = start
        self._chance = random.Random()
        self._feed = feed_of(stream, clock)
        self._receiving = threading.Lock()
        self._ledgers: dict[int, Ledger] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._live: dict[int, int] = {}
        """Numbers of our claims, with how many records of each are not settled. Others under our name are leftovers of
        changes of which we did not hear that they were made."""
        self._partitions_due_s = self._look_due_s = float("-inf")
        self._resting: set[int] = set()
        """Partitions that somebody owns as a whole, until the next look for partitions."""
        self._closed = False

    @property
    def features(self) -> Features:
        kept = self._stream.features & {Feature.KEYS, Feature.HEADERS, Feature.PARTITIONS, Feature.CHOSEN_PARTITION}
        if Feature.DURABLE in self._stream.features & self._store.features:
            kept |= {Feature.DURABLE}
        return kept | {Feature.REDELIVERY, Feature.DELAYED_REDELIVERY}

    def receive(self, limit: int, wait_s: float) -> Sequence[Shared]:
        """See `abc.Queue`. What others failed to settle comes first.

        OffsetOutOfRangeError when records have expired that were never settled: see `skip_to`.
        """
        if limit < 1:
            raise ConfigError(f"limit={limit!r}: nothing could be received")
        limit = min(limit, self._batch)
        until_s = self._clock.monotonic_s() + wait_s
        if not self._receiving.acquire(timeout=max(0.0, wait_s)):
            return []
        try:
            while True:
                self._check_open()
                self._find_partitions()
                shared = self._receive_again(limit) or self._receive_new(limit, until_s)
                if shared or (shared is None and self._clock.monotonic_s() >= until_s):
                    return shared or []
        finally:
            self._receiving.release()

    def settle(self, delivery: Delivery, outcome: Outcome, delay_s: float = 0.0, error: str = "") -> None:
        """See `abc.Queue`. `error` says, for the history, why a record is to be tried again or never."""
        if late := self.settle_all([delivery], outcome, delay_s, error):
            raise too_late(late[0], self._group)

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome = Outcome.DONE, delay_s: float = 0.0, error: str = ""
    ) -> Sequence[Shared]:
        """Settle many, with one change for each partition. Gives those for which it was too late."""
        self._check_open()
        if delay_s < 0 or (delay_s and outcome is not Outcome.RETRY):
            raise ConfigError(f"delay_s={delay_s!r} with {outcome}: only what is tried again can be delayed")
        late: list[Shared] = []
        by_partition: dict[int, list[Shared]] = {}
        for shared in map(ours, deliveries):
            by_partition.setdefault(shared.record.partition, []).append(shared)
        for partition, settled in by_partition.items():
            late += self._settle(self._ledgers[partition], settled, outcome, round(delay_s * 1000), error)
        if outcome is Outcome.RETRY:
            self._look_due_s = float("-inf")
            self._feed.wake()
        return late

    def extend(self, delivery: Delivery) -> None:
        """Its `visibility_s` begins anew. StaleDeliveryError when somebody else has it."""
        self._check_open()
        shared = ours(delivery)
        ledger = self._ledgers[shared.record.partition]
        number = self._new_number(1)
        lasts_ms = self._visibility_ms
        if not ledger.change(lambda book: book.extend(*_place(ledger, shared), as_number=number, lasts_ms=lasts_ms)):
            self._forget(number, 1)
            raise too_late(shared, self._group)
        self._forget(shared.number, 1)
        shared.number = number

    def send(self, records: Sequence[NewRecord]) -> None:
        self._check_open()
        for receipt in list(self._stream.append(records)):
            receipt.result()

    def skip_to(self, partition: int, pointer: Pointer) -> None:
        """Give up all records of a partition before this pointer, whoever has them: say, because they have expired."""
        self._check_open()
        with self._receiving:
            ledger = self._ledger(partition)
            ledger.change(lambda book: book.skip_to(pointer))
            self._feed.add(partition, ledger.seen().next)

    def wake(self) -> None:
        """Look again, now, in a `receive` that waits. May be called from any thread."""
        self._feed.wake()

    def close(self) -> None:
        """Hand back what was received and not settled, for others to take at once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._feed.wake()
        with self._receiving:
            self._feed.close()
            for ledger in self._ledgers.values():
                self._hand_back_all(ledger)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the queue on {self._stream.topic!r} of group {self._group!r} is closed")

    def _find_partitions(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._partitions_due_s:
            return
        self._partitions_due_s = now_s + _TOPIC_SOON_S
        try:
            partitions = self._stream.partitions()
        except UnknownTopicError:
            return
        resting, self._resting = self._resting, set()
        for partition in partitions:
            if partition not in self._ledgers or partition in resting:
                ledger = self._ledger(partition)
                try:
                    self._feed.add(partition, ledger.begin().next)
                    self._ledgers[partition] = ledger
                except OwnedError as error:
                    self._rest(partition, error)
        if partitions and not self._resting:
            self._partitions_due_s = now_s + _PARTITIONS_EVERY_S

    def _rest(self, partition: int, error: OwnedError) -> None:
        logger.warning("%s waits: %s", self._owner, error)
        self._resting.add(partition)
        self._feed.remove(partition)

    def _ledger(self, partition: int) -> Ledger:
        if partition in self._ledgers:
            return self._ledgers[partition]
        key = CheckpointKey(self._group, self._stream.topic, partition)
        stream, start = self._stream, self._start
        first = functools.partial(stream.locate, partition, start)
        return Ledger(self._store, key, self._owner, self._clock, self._chance, first)

    def _new_number(self, records: int) -> int:
        """A number for a claim on so many records. It is known before the claim is made, and forgotten if it is not."""
        with self._lock:
            number = next(self._numbers)
            self._live[number] = records
        return number

    def _forget(self, number: int, records: int) -> None:
        """So many records of a claim are not in our hands any more."""
        with self._lock:
            self._live[number] = self._live.get(number, 0) - records
            if self._live[number] <= 0:
                del self._live[number]

    def _receive_again(self, limit: int) -> list[Shared]:
        """What waits to be handed out again."""
        now_s = self._clock.monotonic_s()
        is_due = now_s >= self._look_due_s
        if is_due:
            self._look_due_s = now_s + min(_LOOK_S, self._visibility_ms / 4000)
        shared: list[Shared] = []
        for partition, ledger in sorted(self._ledgers.items(), key=lambda _: self._chance.random()):
            book = ledger.look() if is_due else ledger.seen()
            parts = list(book.waiting(functools.partial(self._is_over, ledger)))
            for part in parts:
                if len(shared) == limit:
                    return shared
                try:
                    shared += self._take_again(ledger, partition, part, limit - len(shared))
                except (StoreUnavailableError, OffsetOutOfRangeError, OwnedError) as error:
                    if not shared and not isinstance(error, OwnedError):
                        raise
                    logger.warning("%s could not take what waits in %s: %s", self._owner, ledger.key, error)
                    break
            if (end_s := ledger.watch.next_end_s(book.claims)) is not None:
                self._look_due_s = min(self._look_due_s, end_s)
        return shared

    def _is_over(self, ledger: Ledger, claim: Claim) -> bool:
        return ledger.watch.is_over(claim) or (claim.owner == ledger.owner and claim.number not in self._live)

    def _take_again(self, ledger: Ledger, partition: int, part: Claim, limit: int) -> list[Shared]:
        batch = self._stream.read(partition, part.first, limit, _REREAD_S)
        if batch.next == batch.start:
            logger.warning("%s at %d did not come within %g s; tried again", ledger.key, part.first, _REREAD_S)
            return []
        records = [record for record in batch if record.offset < part.end]
        part = replace(part, end=min(part.end, batch.next))
        number = self._new_number(len(records))

        def edit(book: ClaimBook) -> int | None:
            attempt = book.take_again(part, ledger.owner, number, self._visibility_ms)
            if attempt is not None:
                self._handed_out(ledger, book, len(records), (part.first, part.end), number)
            return attempt

        attempt = self._claiming(ledger, edit, number)
        if attempt is None or not records:
            self._live.pop(number, None)
            return []
        return shared_of(records, part.first, part.end, attempt, number, self._clock.wall_ms())

    def _receive_new(self, limit: int, until_s: float) -> list[Shared] | None:
        """What was never handed out, as soon as there is something; None when it is time to look elsewhere.

        Empty when others were quicker: there may be more behind what they took.
        """
        now_s = self._clock.monotonic_s()
        wait_s = max(0.0, min(until_s, self._look_due_s, self._partitions_due_s) - now_s)
        try:
            batches = self._feed.poll(limit, wait_s)
        except OffsetOutOfRangeError as error:
            next_ = self._ledgers[error.partition].look().next
            self._feed.add(error.partition, next_)
            if next_ == error.offset:
                raise
            return []
        if not batches:
            return None
        shared: list[Shared] = []
        failure: StoreUnavailableError | None = None
        for batch in batches:
            try:
                shared += self._take_new(batch)
            except StoreUnavailableError as error:
                self._feed.add(batch.partition, batch.start)
                failure = error
            except OwnedError as error:
                self._rest(batch.partition, error)
        if failure is not None and not shared:
            raise failure
        return shared

    def _take_new(self, batch: Batch) -> list[Shared]:
        ledger = self._ledgers[batch.partition]
        number = self._new_number(len(batch))

        def edit(book: ClaimBook) -> tuple[Run | None, Pointer]:
            run = book.take_new(batch.start, batch.next, ledger.owner, number, self._visibility_ms)
            if run is not None:
                count = sum(record.offset >= run[0] for record in batch)
                self._handed_out(ledger, book, count, run, number)
            return run, book.next

        run, next_ = self._claiming(ledger, edit, number)
        if run is None:
            self._live.pop(number, None)
            if next_ != batch.next:
                self._feed.add(batch.partition, next_)
            return []
        records = [record for record in batch if record.offset >= run[0]]
        self._live[number] = len(records)
        return shared_of(records, *run, 1, number, self._clock.wall_ms())

    def _claiming(self, ledger: Ledger, edit: Callable[[ClaimBook], Answer], number: int) -> Answer:
        """A change that makes a claim. If nobody knows whether it was made, the claim is not ours."""
        try:
            return ledger.change(edit)
        except BaseException:
            self._live.pop(number, None)
            raise

    def _handed_out(self, ledger: Ledger, book: ClaimBook, count: int, run: Run, number: int) -> None:
        book.processed += count
        if not count:  # nothing lies there, say because it was compacted away
            book.finish(*run, ledger.owner, number)

    def _settle(
        self, ledger: Ledger, shared: Sequence[Shared], outcome: Outcome, delay_ms: int, error: str
    ) -> Sequence[Shared]:
        status = _STATUS[outcome]
        settled = sorted(shared, key=lambda each: each.first)

        def edit(book: ClaimBook) -> list[Shared]:
            late: list[Shared] = []
            runs = list(neighbours(settled)) if outcome is Outcome.DONE else [[each] for each in settled]
            while runs:
                run = runs.pop()
                if self._settle_run(book, ledger, run, outcome, delay_ms, error):
                    ledger.tell(run[0].first, run[-1].end, status, run[0].attempt, error, run[0].begun_ms)
                elif len(run) > 1:
                    runs += [[each] for each in run]
                else:
                    late += run
            return late

        try:
            late = ledger.change(edit)
        except OwnedError:
            late = list(shared)
        except StoreUnavailableError:
            for each in shared:
                each.unsure = True
            raise
        for each in shared:
            self._forget(each.number, 1)
        return late

    def _settle_run(
        self, book: ClaimBook, ledger: Ledger, run: Sequence[Shared], outcome: Outcome, delay_ms: int, error: str
    ) -> bool:
        """Settle neighbours of one claim. False, and nothing is changed, when the claim does not stand any more."""
        place = (run[0].first, run[-1].end, ledger.owner, run[0].number)
        if outcome is Outcome.RETRY:
            number = self._chance.getrandbits(48)
            if not book.hand_back(*place, after_ms=delay_ms, as_number=number):
                return False
            book.failed(run[0].record.offset, error, self._clock.wall_ms())
            return True
        if not book.finish(*place):
            return all(each.unsure and book.is_finished(each.first) for each in run)
        book.delivered += len(run) if outcome is Outcome.DONE else 0
        return True

    def _hand_back_all(self, ledger: Ledger) -> None:
        try:
            ledger.change(lambda book: book.hand_back_all(ledger.owner))
            ledger.close()
        except (StoreUnavailableError, OwnedError) as error:
            logger.warning("%s could not hand back its records: %s. Others get them later", self._owner, error)


def _place(ledger: Ledger, shared: Shared) -> tuple[Pointer, Pointer, str, int]:
    return shared.first, shared.end, ledger.owner, shared.number


_STATUS: Final = {
    Outcome.DONE: Status.SUCCEEDED,
    Outcome.RETRY: Status.FAILED,
    Outcome.REJECT: Status.EXHAUSTED,
}
