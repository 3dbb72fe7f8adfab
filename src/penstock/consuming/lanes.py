"""Lanes: what may be handled now, given the order that was asked for.

A lane holds records that must be handled one after the other: those of a partition, those of a key, or a single one.
At most one worker is in a lane. A record that failed holds its lane, and only that, until it is tried again.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.abc import Clock
from penstock.model import Batch, Order
from penstock.model.clock import wait_on
from penstock.model.observing import OBSERVED

if TYPE_CHECKING:
    from penstock.consuming.share import Share

Span = tuple[Batch, int, int]
"""Records of a batch, from one index up to, not including, another."""

LONG_ENOUGH_S: Final = 0.1
"""A worker that has been in a lane for so long reports what it has done, and leaves: others may be next."""
_MOST_IN_A_SLICE: Final = 32
_QUICK_S: Final = 0.01
_RESERVED: Final = 16
_PUT_AT_ONCE: Final = 200
_MOST_IDLE: Final = 5_000
"""So many lanes may stay behind empty, for the next record of their key, before they are looked through."""


class Lane:
    """Records that wait for each other."""

    __slots__ = ("busy", "is_ending", "key", "share", "spans")

    def __init__(self, share: Share, key: bytes | None) -> None:
        self.share = share
        self.key = key
        self.spans: collections.deque[Span] = collections.deque()
        self.busy = False
        """A worker is in it, or it is held, or it waits in the queue of those that are ready."""
        self.is_ending = False
        """Of a partition's own lane: nothing of the partition is begun any more."""


class Task:
    """Some records of a lane, in the hands of a worker."""

    __slots__ = ("_clock", "abandoned", "batch", "begun_ms", "begun_s", "high", "lane", "laps", "low", "share")

    def __init__(self, lane: Lane, batch: Batch, low: int, high: int, clock: Clock) -> None:
        self.lane = lane
        self.share = lane.share
        self.batch = batch
        self.low = low
        self.high = high
        self._clock = clock
        self.begun_s = clock.monotonic_s()
        self.begun_ms = clock.wall_ms()
        self.abandoned = False
        """It took longer than it may be invisible, and was given to somebody else."""
        self.laps: list[tuple[int, float]] | None = [] if OBSERVED.is_timed else None
        """How long its records took: so many of them, so many seconds together. None when nobody wants to know."""

    def lap(self, handled: int) -> None:
        """Of its records, `handled` have been, the last one perhaps in vain: take the time of those not taken yet."""
        if self.laps is None:
            return
        count, taken_s = handled, self._clock.monotonic_s() - self.begun_s
        for lap, lap_s in self.laps:
            count -= lap
            taken_s -= lap_s
        if count > 0:
            self.laps.append((count, taken_s))

    def slices(self) -> Iterator[range]:
        """Its records, few at a time, and no more of them once it has taken long enough.

        Handlers may be quick, so that to look at the clock for each record would cost, or slow, so that what is
        finished must be reported before all of it is.
        """
        low, step, taken_s = self.low, 1, 0.0
        while low < self.high:
            until = min(self.high, low + step)
            yield range(low, until)
            before_s, taken_s = taken_s, self._clock.monotonic_s() - self.begun_s
            if self.laps is not None:
                self.laps.append((until - low, taken_s - before_s))
            if taken_s >= LONG_ENOUGH_S:
                return
            low = until
            step = min(2 * step, _MOST_IN_A_SLICE) if taken_s - before_s < _QUICK_S else 1


class Apart:
    """Records that have no order among each other: each gets a lane when its turn comes."""

    __slots__ = ("batch", "high", "low", "share")

    def __init__(self, share: Share, batch: Batch, low: int, high: int) -> None:
        self.share = share
        self.batch = batch
        self.low = low
        self.high = high


Hand = collections.deque[Lane]
"""Lanes that a worker has reserved for itself. Others may take them from its far end when they have nothing to do."""


class Lanes:
    """All lanes of a consumer. The loop puts records in, workers take them out; any thread may call anything.

    Workers that are quick would spend their time waiting for each other's turn at one lock. So a worker reserves some
    lanes at a time, and works through them without it; one that is stuck is relieved of them by the others.
    """

    def __init__(self, order: Order, chunk: int, clock: Clock) -> None:
        self._order = order
        self._chunk = chunk
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self._hands: list[Hand] = []
        self._ready: collections.deque[Lane] = collections.deque()
        self._apart: collections.deque[Apart] = collections.deque()
        """Ready, too, behind those."""
        self._apart_count = 0
        self._held: list[tuple[float, int, Lane]] = []
        self._number = itertools.count()
        self._by_key: dict[tuple[int, bytes], Lane] = {}
        self._idle: collections.deque[Lane] = collections.deque()
        """Lanes in `_by_key` that were empty when a worker left them."""
        self._running: set[Task] = set()
        self._closed = False
        self._allowed: int | None = None
        self.on_ready: Callable[[], None] | None = None
        """Called when something is ready, for workers that do not wait in `take`."""

    def hand(self) -> Hand:
        """For a new worker, to give to `take`."""
        hand: Hand = collections.deque()
        with self._changed:
            self._hands.append(hand)
        return hand

    def put(self, share: Share, batch: Batch, spans: Sequence[tuple[int, int]], keys: Sequence[bytes | None]) -> None:
        """Records have come. `keys` are those of the whole batch, and needed only for the order of keys."""
        if self._order is Order.PARTITION:
            with self._changed:
                share.lane.spans.extend((batch, low, high) for low, high in spans)
                self._make_ready(share.lane)
                self._changed.notify()
        elif self._order is Order.NONE:
            with self._changed:
                for low, high in spans:
                    self._apart.append(Apart(share, batch, low, high))
                    self._apart_count += high - low
                self._changed.notify(min(self._apart_count, self._waiting))
        else:
            for low, high in spans:
                for begin in range(low, high, _PUT_AT_ONCE):
                    self._put_by_key(share, batch, range(begin, min(high, begin + _PUT_AT_ONCE)), keys)
        self._tell()

    def _put_by_key(self, share: Share, batch: Batch, indexes: range, keys: Sequence[bytes | None]) -> None:
        with self._changed:
            if len(self._idle) > _MOST_IDLE:
                self._sweep()
            for index in indexes:
                key = keys[index]
                if key is None:  # no order among records without a key
                    lane = Lane(share, None)
                else:
                    place = (id(share), key)
                    found = self._by_key.get(place)
                    lane = found if found is not None else self._by_key.setdefault(place, Lane(share, key))
                lane.spans.append((batch, index, index + 1))
                self._make_ready(lane)
            self._changed.notify(min(len(indexes), self._waiting))

    def take(self, timeout_s: float, hand: Hand) -> Task | None:
        """The next records to handle; None when there are none in time, or never will be."""
        while hand and self._allowed is None and not self._closed:
            try:
                return self._task(hand.popleft())
            except IndexError:  # somebody else took it, or it was cleared
                continue
        deadline_s = self._clock.monotonic_s() + timeout_s
        with self._changed:
            while True:
                task = self._next(hand)
                if task is not None or self._closed:
                    return task
                left_s = deadline_s - self._clock.monotonic_s()
                if self._held:
                    left_s = min(left_s, self._held[0][0] - self._clock.monotonic_s())
                elif left_s <= 0:
                    return None
                if left_s > 0:
                    self._waiting += 1
                    try:
                        wait_on(self._clock, self._changed, left_s)
                    finally:
                        self._waiting -= 1
                if self._clock.monotonic_s() >= deadline_s:
                    return self._next(hand)

    def done(self, task: Task) -> None:
        """All records of the task are finished: the lane goes on."""
        lane = task.lane
        if task not in self._running:
            return
        self._running.discard(task)
        if self._order is Order.NONE:
            return  # nothing else was in it, and nothing comes
        # Without the lock, for which quick workers would wait: who puts a record in looks at `busy` after that, and we
        # look for records after this, so at least one of us sees the other; and only one makes it ready.
        lane.busy = False
        if lane.spans:
            with self._changed:
                self._make_ready(lane)
                self._changed.notify()
            self._tell()
        elif lane.key is not None:
            self._idle.append(lane)

    def leave(self, task: Task, high: int) -> None:
        """The worker leaves before all is done: the records of the task up to `high` come first in its lane."""
        lane = task.lane
        with self._changed:
            self._running.discard(task)
            lane.spans.appendleft((task.batch, task.high, high))
            lane.busy = False
            if not lane.share.lane.is_ending:  # else it is dropped with what is cleared next
                self._make_ready(lane)
                self._changed.notify()
        self._tell()

    def hold(self, task: Task) -> None:
        """A record of the task failed. The worker leaves, but nobody else may enter the lane until `release`."""
        self._running.discard(task)

    def release(self, lane: Lane, spans: Sequence[Span] = (), delay_s: float = 0.0) -> None:
        """The lane goes on after a delay, with these records before all others in it."""
        with self._changed:
            lane.spans.extendleft(reversed(spans))
            lane.busy = False
            if not lane.spans:
                self._forget(lane)
                return
            if delay_s <= 0:
                self._make_ready(lane)
            else:
                lane.busy = True
                heapq.heappush(self._held, (self._clock.monotonic_s() + delay_s, next(self._number), lane))
            self._changed.notify_all()
        self._tell()

    def abandon_overdue(self, visibility_s: float) -> list[Task]:
        """Tasks that have taken longer than this. Their lanes stay closed until they are released."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            overdue = [task for task in list(self._running) if now_s - task.begun_s >= visibility_s]
            for task in overdue:
                task.abandoned = True
                self._running.discard(task)
            return overdue

    def clear(self, share: Share) -> int:
        """Drop what no worker has begun, and begin nothing of it from now on. Gives how many records that were."""
        dropped = 0
        with self._changed:
            lanes = {lane for lane in self._ready if lane.share is share}
            lanes.update(lane for hand in self._hands for lane in list(hand) if lane.share is share)
            lanes.update(lane for _, _, lane in self._held if lane.share is share)
            lanes.update(lane for lane in self._by_key.values() if lane.share is share)
            lanes.add(share.lane)
            share.lane.is_ending = True
            for lane in lanes:
                dropped += sum(high - low for _, low, high in lane.spans)
                lane.spans.clear()
            apart = sum(each.high - each.low for each in self._apart if each.share is share)
            self._apart = collections.deque(each for each in self._apart if each.share is not share)
            self._apart_count -= apart
            self._ready = collections.deque(lane for lane in self._ready if lane.share is not share)
            self._held = [entry for entry in self._held if entry[2].share is not share]
            heapq.heapify(self._held)
            entered = {task.lane for task in list(self._running)}
            for place in [place for place, lane in self._by_key.items() if lane.share is share]:
                if self._by_key[place] not in entered:
                    del self._by_key[place]
            return dropped + apart

    def allow(self, tasks: int | None) -> None:
        """Let so many tasks begin from now on; None: any number. For a circuit breaker."""
        with self._changed:
            if self._allowed == tasks:
                return
            self._allowed = tasks
            self._changed.notify_all()
        self._tell()

    def running(self, share: Share | None = None) -> int:
        """How many tasks workers have in hand."""
        return sum(1 for task in list(self._running) if share is None or task.share is share)

    def longest_running_s(self) -> float:
        """For how long the oldest task has been in hand."""
        begun_s = min((task.begun_s for task in list(self._running)), default=None)
        return 0.0 if begun_s is None else self._clock.monotonic_s() - begun_s

    def next_due_s(self) -> float | None:
        """When the next lane that is held may go on."""
        with self._changed:
            return self._held[0][0] if self._held else None

    def now_s(self) -> float:
        return self._clock.monotonic_s()

    def close(self) -> None:
        """Workers that wait get nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._tell()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _next(self, hand: Hand) -> Task | None:
        if self._held:
            now_s = self._clock.monotonic_s()
            while self._held and self._held[0][0] <= now_s:
                lane = heapq.heappop(self._held)[2]
                lane.busy = False
                self._make_ready(lane)
        if self._closed or self._allowed == 0:
            return None
        while True:
            picked = self._pick()
            if picked is None:
                return None
            try:
                task = self._task(picked)
                break
            except IndexError:  # it was cleared
                continue
        if self._allowed is not None:
            self._allowed -= 1
        else:
            left = len(self._ready) + self._apart_count
            for _ in range(min(_RESERVED, left // (2 * len(self._hands)))):
                hand.append(self._ready.popleft() if self._ready else self._carved())
        return task

    def _pick(self) -> Lane | None:
        """The lane whose turn it is; if there is none, one that somebody has reserved who has more to do."""
        if self._ready:
            return self._ready.popleft()
        if self._apart:
            return self._carved()
        while hand := max(self._hands, key=len):
            try:
                return hand.pop()
            except IndexError:  # its owner has just taken the last one
                continue
        return None

    def _carved(self) -> Lane:
        """The next of the records that have no order, in a lane of its own."""
        apart = self._apart[0]
        lane = Lane(apart.share, None)
        lane.spans.append((apart.batch, apart.low, apart.low + 1))
        lane.busy = True
        apart.low += 1
        self._apart_count -= 1
        if apart.low == apart.high:
            self._apart.popleft()
        return lane

    def _task(self, lane: Lane) -> Task:
        """Enter a lane. IndexError when there is nothing in it any more."""
        batch, low, high = lane.spans.popleft()
        chunk = 1 if self._allowed is not None else self._chunk
        if high - low > chunk:
            lane.spans.appendleft((batch, low + chunk, high))
            high = low + chunk
        task = Task(lane, batch, low, high, self._clock)
        self._running.add(task)
        return task

    def _make_ready(self, lane: Lane) -> None:
        if not lane.busy and lane.spans:
            lane.busy = True
            self._ready.append(lane)

    def _forget(self, lane: Lane) -> None:
        if lane.key is not None:
            self._by_key.pop((id(lane.share), lane.key), None)

    def _sweep(self) -> None:
        """Forget lanes that are empty still."""
        while self._idle:
            lane = self._idle.popleft()
            if not lane.busy and not lane.spans and lane.key is not None:
                place = (id(lane.share), lane.key)
                if self._by_key.get(place) is lane:
                    del self._by_key[place]

    def _tell(self) -> None:
        if self.on_ready is not None:
            self.on_ready()
