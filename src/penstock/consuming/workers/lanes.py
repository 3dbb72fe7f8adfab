"""Lanes: which records may be handled now, given the ordering.

A lane holds records that must be handled one after the other: those of a partition, those of a key, or a single one. At
most one worker is in a lane. A failed record blocks its lane, and no other, until it is retried.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from penstock.abc import Clock
from penstock.model import Batch, Ordering
from penstock.model.clock import wait_on
from penstock.model.observing import OBSERVED

if TYPE_CHECKING:
    from penstock.consuming.loop.assigned_partition import AssignedPartition

Span = tuple[Batch, int, int]
"""Records of a batch, from one index up to, not including, another."""

TASK_S: Final = 0.1
"""After this long in a lane, a worker reports what it has done and moves on to another lane."""
_MOST_IN_A_SLICE: Final = 32
_QUICK_S: Final = 0.01
_RESERVED: Final = 16
_PUT_AT_ONCE: Final = 200
_MOST_IDLE: Final = 5_000
"""How many empty lanes may be kept for the next record of their key before they are swept."""


class Lane:
    """Records that must be handled in order."""

    __slots__ = ("assigned", "busy", "is_ending", "key", "spans")

    def __init__(self, assigned: AssignedPartition, key: bytes | None) -> None:
        self.assigned = assigned
        self.key = key
        self.spans: collections.deque[Span] = collections.deque()
        self.busy = False
        """A worker is in it, it is held after a failure, or it is queued as ready."""
        self.is_ending = False
        """For a partition's own lane: no further record of the partition is started."""


class Task:
    """Records of a lane that a worker handles."""

    __slots__ = ("_clock", "abandoned", "assigned", "batch", "begun_ms", "begun_s", "high", "lane", "laps", "low")

    def __init__(self, lane: Lane, batch: Batch, low: int, high: int, clock: Clock) -> None:
        self.lane = lane
        self.assigned = lane.assigned
        self.batch = batch
        self.low = low
        self.high = high
        self._clock = clock
        self.begun_s = clock.monotonic_s()
        self.begun_ms = clock.wall_ms()
        self.abandoned = False
        """It took longer than `visibility_s` and was given to another worker."""
        self.laps: list[tuple[int, float]] | None = [] if OBSERVED.is_timed else None
        """How long its records took, as (records, seconds) pairs. None when timings are not observed."""

    def lap(self, handled: int) -> None:
        """Add the time of the records that no lap covers yet; `handled` in all, including one that failed."""
        if self.laps is None:
            return
        count, taken_s = handled, self._clock.monotonic_s() - self.begun_s
        for lap, lap_s in self.laps:
            count -= lap
            taken_s -= lap_s
        if count > 0:
            self.laps.append((count, taken_s))

    def slices(self) -> Iterator[range]:
        """Yield its records in small ranges until it has taken long enough.

        Handlers may be so fast that a clock read per record would cost, or so slow that finished records must be
        reported before the whole task is done.
        """
        low, step, taken_s = self.low, 1, 0.0
        while low < self.high:
            until = min(self.high, low + step)
            yield range(low, until)
            before_s, taken_s = taken_s, self._clock.monotonic_s() - self.begun_s
            if self.laps is not None:
                self.laps.append((until - low, taken_s - before_s))
            if taken_s >= TASK_S:
                return
            low = until
            step = min(2 * step, _MOST_IN_A_SLICE) if taken_s - before_s < _QUICK_S else 1


class UnorderedSpan:
    """Records without an order among each other. Each gets a lane when it is its turn."""

    __slots__ = ("assigned", "batch", "high", "low")

    def __init__(self, assigned: AssignedPartition, batch: Batch, low: int, high: int) -> None:
        self.assigned = assigned
        self.batch = batch
        self.low = low
        self.high = high


ReservedLanes = collections.deque[Lane]
"""Lanes reserved by one worker. Idle workers steal from the far end."""


class Lanes:
    """All lanes of a consumer. The loop puts records in, workers take them out. Thread-safe.

    Fast workers would contend for one lock, so a worker reserves several lanes at a time and works through them without
    it. The others take over the reserved lanes of a worker that is stuck.
    """

    def __init__(self, order: Ordering, chunk: int, clock: Clock, unsaved: int | None = None) -> None:
        """`unsaved` limits the tasks that are started and not saved, and makes each lane wait for its last task to be
        saved. None: finished records may be saved later."""
        self._order = order
        self._chunk = chunk
        self._clock = clock
        self._most_unsaved = unsaved
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self._reservations: list[ReservedLanes] = []
        self._ready: collections.deque[Lane] = collections.deque()
        self._unordered: collections.deque[UnorderedSpan] = collections.deque()
        """Ready as well, after those."""
        self._unordered_count = 0
        self._held: list[tuple[float, int, Lane]] = []
        self._number = itertools.count()
        self._by_key: dict[tuple[int, bytes], Lane] = {}
        self._idle: collections.deque[Lane] = collections.deque()
        """Lanes in `_by_key` that were empty when a worker left them."""
        self._running: set[Task] = set()
        self._unsaved: set[Task] = set()
        """Finished tasks whose lanes wait until they are saved."""
        self._closed = False
        self._allowed: int | None = None
        self.on_ready: Callable[[], None] | None = None
        """Called when a lane becomes ready, for workers that do not wait in `take`."""

    def add_worker(self) -> ReservedLanes:
        """Register a worker. Returns its reserved lanes, to pass to `take`."""
        reserved: ReservedLanes = collections.deque()
        with self._changed:
            self._reservations.append(reserved)
        return reserved

    def put(
        self, assigned: AssignedPartition, batch: Batch, spans: Sequence[tuple[int, int]], keys: Sequence[bytes | None]
    ) -> None:
        """Add records. `keys` are those of the whole batch, needed only for Ordering.KEY."""
        if self._order is Ordering.PARTITION:
            with self._changed:
                assigned.lane.spans.extend((batch, low, high) for low, high in spans)
                self._make_ready(assigned.lane)
                self._changed.notify()
        elif self._order is Ordering.NONE:
            with self._changed:
                for low, high in spans:
                    self._unordered.append(UnorderedSpan(assigned, batch, low, high))
                    self._unordered_count += high - low
                self._changed.notify(min(self._unordered_count, self._waiting))
        else:
            for low, high in spans:
                for begin in range(low, high, _PUT_AT_ONCE):
                    self._put_by_key(assigned, batch, range(begin, min(high, begin + _PUT_AT_ONCE)), keys)
        self._notify_ready()

    def _put_by_key(
        self, assigned: AssignedPartition, batch: Batch, indexes: range, keys: Sequence[bytes | None]
    ) -> None:
        with self._changed:
            if len(self._idle) > _MOST_IDLE:
                self._sweep()
            for index in indexes:
                key = keys[index]
                if key is None:  # records without a key have no order
                    lane = Lane(assigned, None)
                else:
                    place = (id(assigned), key)
                    found = self._by_key.get(place)
                    lane = found if found is not None else self._by_key.setdefault(place, Lane(assigned, key))
                lane.spans.append((batch, index, index + 1))
                self._make_ready(lane)
            self._changed.notify(min(len(indexes), self._waiting))

    def take(self, timeout_s: float, reserved: ReservedLanes) -> Task | None:
        """The next task; None when there is none within the timeout, or the lanes are closed."""
        while reserved and self._allowed is None and not self._closed:
            try:
                return self._task(reserved.popleft())
            except IndexError:  # another worker took it, or it was cleared
                continue
        deadline_s = self._clock.monotonic_s() + timeout_s
        with self._changed:
            while True:
                task = self._next(reserved)
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
                    return self._next(reserved)

    def done(self, task: Task) -> None:
        """Release the lane of a task whose records are all finished."""
        lane = task.lane
        if task not in self._running:
            return
        self._running.discard(task)
        if self._order is Ordering.NONE:
            return  # the lane held only this task
        # No lock here, because fast workers would contend for it. `put` appends before it checks `busy`, and this
        # clears `busy` before it checks for records, so at least one of them sees the other; `_make_ready` runs under
        # the lock.
        lane.busy = False
        if lane.spans:
            with self._changed:
                self._make_ready(lane)
                self._changed.notify()
            self._notify_ready()
        elif lane.key is not None:
            self._idle.append(lane)

    def leave(self, task: Task, high: int) -> None:
        """Leave a task before its end: its records up to `high` come first in the lane."""
        lane = task.lane
        with self._changed:
            self._running.discard(task)
            lane.spans.appendleft((task.batch, task.high, high))
            lane.busy = False
            if not lane.assigned.lane.is_ending:  # otherwise the next `clear` drops it
                self._make_ready(lane)
                self._changed.notify()
        self._notify_ready()

    @property
    def saves_each_task(self) -> bool:
        """Whether a lane waits after each task until it is saved."""
        return self._most_unsaved is not None

    def await_save(self, task: Task) -> None:
        """Block the lane of a finished task until `saved`."""
        with self._changed:
            if task in self._running:
                self._running.discard(task)
                self._unsaved.add(task)

    def saved(self, task: Task, rest: Sequence[Span] = ()) -> None:
        """Release the lane of a saved or dropped task, with `rest` first."""
        with self._changed:
            if task not in self._unsaved:
                return
            self._unsaved.discard(task)
        self.release(task.lane, rest)

    def hold(self, task: Task) -> None:
        """Block the lane of a failed task until `release`."""
        self._running.discard(task)

    def release(self, lane: Lane, spans: Sequence[Span] = (), delay_s: float = 0.0) -> None:
        """Release a lane after a delay, with these records before all others in it."""
        with self._changed:
            lane.spans.extendleft(reversed(spans))
            lane.busy = False
            if not lane.spans:
                self._forget(lane)
            elif delay_s <= 0:
                self._make_ready(lane)
            else:
                lane.busy = True
                heapq.heappush(self._held, (self._clock.monotonic_s() + delay_s, next(self._number), lane))
            self._changed.notify_all()
        self._notify_ready()

    def abandon_overdue(self, visibility_s: float) -> list[Task]:
        """Tasks that run longer than this. Their lanes stay blocked until released."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            overdue = [task for task in list(self._running) if now_s - task.begun_s >= visibility_s]
            for task in overdue:
                task.abandoned = True
                self._running.discard(task)
            return overdue

    def clear(self, assigned: AssignedPartition) -> int:
        """Drop the unstarted records of a partition and start no more of it. Returns how many were dropped."""
        dropped = 0
        with self._changed:
            lanes = {lane for lane in self._ready if lane.assigned is assigned}
            lanes.update(
                lane for reserved in self._reservations for lane in list(reserved) if lane.assigned is assigned
            )
            lanes.update(lane for _, _, lane in self._held if lane.assigned is assigned)
            lanes.update(lane for lane in self._by_key.values() if lane.assigned is assigned)
            lanes.add(assigned.lane)
            assigned.lane.is_ending = True
            for lane in lanes:
                dropped += sum(high - low for _, low, high in lane.spans)
                lane.spans.clear()
            unordered = sum(each.high - each.low for each in self._unordered if each.assigned is assigned)
            self._unordered = collections.deque(each for each in self._unordered if each.assigned is not assigned)
            self._unordered_count -= unordered
            self._ready = collections.deque(lane for lane in self._ready if lane.assigned is not assigned)
            self._held = [entry for entry in self._held if entry[2].assigned is not assigned]
            heapq.heapify(self._held)
            entered = {task.lane for task in list(self._running)}
            for place in [place for place, lane in self._by_key.items() if lane.assigned is assigned]:
                if self._by_key[place] not in entered:
                    del self._by_key[place]
            return dropped + unordered

    def allow(self, tasks: int | None) -> None:
        """Limit how many tasks may start; None: no limit. For the circuit breaker."""
        with self._changed:
            if self._allowed == tasks:
                return
            self._allowed = tasks
            self._changed.notify_all()
        self._notify_ready()

    def running(self, assigned: AssignedPartition | None = None) -> int:
        """How many tasks are running or wait to be saved."""
        open_tasks = [*list(self._running), *list(self._unsaved)]
        return sum(1 for task in open_tasks if assigned is None or task.assigned is assigned)

    def next_due_s(self) -> float | None:
        """When the next held lane is released."""
        with self._changed:
            return self._held[0][0] if self._held else None

    def now_s(self) -> float:
        return self._clock.monotonic_s()

    def close(self) -> None:
        """Make `take` return None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._notify_ready()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _next(self, reserved: ReservedLanes) -> Task | None:
        if self._held:
            now_s = self._clock.monotonic_s()
            while self._held and self._held[0][0] <= now_s:
                lane = heapq.heappop(self._held)[2]
                lane.busy = False
                self._make_ready(lane)
        if self._closed or self._allowed == 0:
            return None
        if self._most_unsaved is not None and len(self._running) + len(self._unsaved) >= self._most_unsaved:
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
        elif self._most_unsaved is None:
            left = len(self._ready) + self._unordered_count
            for _ in range(min(_RESERVED, left // (2 * len(self._reservations)))):
                reserved.append(self._ready.popleft() if self._ready else self._next_unordered())
        return task

    def _pick(self) -> Lane | None:
        """The next ready lane, or one that the busiest worker has reserved."""
        if self._ready:
            return self._ready.popleft()
        if self._unordered:
            return self._next_unordered()
        while reserved := max(self._reservations, key=len):
            try:
                return reserved.pop()
            except IndexError:  # its worker has just taken the last one
                continue
        return None

    def _next_unordered(self) -> Lane:
        """The next record without an order, in a lane of its own."""
        unordered = self._unordered[0]
        lane = Lane(unordered.assigned, None)
        lane.spans.append((unordered.batch, unordered.low, unordered.low + 1))
        lane.busy = True
        unordered.low += 1
        self._unordered_count -= 1
        if unordered.low == unordered.high:
            self._unordered.popleft()
        return lane

    def _task(self, lane: Lane) -> Task:
        """Enter a lane. IndexError when it is empty."""
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
            self._by_key.pop((id(lane.assigned), lane.key), None)

    def _sweep(self) -> None:
        """Remove lanes that are still empty."""
        while self._idle:
            lane = self._idle.popleft()
            if not lane.busy and not lane.spans and lane.key is not None:
                place = (id(lane.assigned), lane.key)
                if self._by_key.get(place) is lane:
                    del self._by_key[place]

    def _notify_ready(self) -> None:
        if self.on_ready is not None:
            self.on_ready()
