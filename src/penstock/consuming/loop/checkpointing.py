"""Save the tracker's changes in the checkpoint store, in the way that the guarantee needs."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from penstock.abc import CheckpointStore, Clock, GroupFeed, TransactionalStore
from penstock.consuming.counts import Counts
from penstock.consuming.loop.assigned_partition import AssignedPartition
from penstock.errors import (
    BrokerUnavailableError,
    FencedError,
    OutcomeUnknownError,
    PenstockError,
    StoreUnavailableError,
    StreamError,
)
from penstock.model import CheckpointKey, Lease, NewRecord, Pointer
from penstock.model.retry import Retry

logger = logging.getLogger(__name__)

_EVERY_S: Final = 1.0


class GroupProgress:
    """Commits progress to the stream's group, for partitions that moved since the last time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._committed: dict[int, Pointer] = {}
        self._due_s = 0.0

    def commit(self, feed: GroupFeed | None, partitions: Iterable[AssignedPartition], *, wait: bool) -> None:
        """Commit progress if it is due, or at once if the caller will `wait` for it."""
        now_s = self._clock.monotonic_s()
        if feed is None or (now_s < self._due_s and not wait):
            return
        self._due_s = now_s + _EVERY_S
        starts = {assigned.partition: assigned.tracker.start for assigned in partitions}
        moved = {partition: start for partition, start in starts.items() if self._committed.get(partition) != start}
        if not moved:
            return
        self._committed.update(moved)
        try:
            feed.commit(moved, wait)
        except (StreamError, BrokerUnavailableError, FencedError) as error:
            logger.info("progress was not committed to the stream: %s", error)

    def forget(self, partition: int) -> None:
        self._committed.pop(partition, None)


class ProgressSaver(Protocol):
    """Saves what is finished, in the way of a stream or of a queue."""

    problem: str
    """Why nothing can be saved at the moment."""

    def save(self, assigned: AssignedPartition, *, last: bool = False) -> None:
        """Save the tracker's changes; `last` when this owner ends in order."""


Found = TypeVar("Found")

_AGAIN: Final = Retry(first_delay_s=0.05, max_delay_s=2.0)
CLAIMS: Final = 20
"""How many claims are tried while other members claim at the same time."""


class OutputTransaction(Protocol):
    """A transaction of a stream: outputs, checkpoint and the group's progress."""

    def append(self, records: Iterable[NewRecord]) -> None: ...

    def save(self, lease: Lease, key: CheckpointKey, change: Any) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class CheckpointSaver:
    """Saves partitions. Waits for an unavailable store, with backoff, for as long as `go_on` returns True."""

    def __init__(
        self,
        store: CheckpointStore,
        clock: Clock,
        go_on: Callable[[], bool],
        counts: Counts,
        *,
        with_effects: bool,
        with_outputs: bool,
    ) -> None:
        self._store = store
        self._clock = clock
        self._go_on = go_on
        self._counts = counts
        self._with_effects = with_effects
        self._with_outputs = with_outputs
        self._random = random.Random()
        self.problem = ""
        """Why nothing can be saved at the moment."""

    def claim(self, key: CheckpointKey, owner: str) -> Lease:
        """Become the only owner that may save this partition."""

        def claim() -> Lease:
            for _ in range(CLAIMS):
                alike = self._store.leases(key.group, prefix=key.lease_name)
                seen = next((each for each in alike if each.name == key.lease_name), None)
                lease = self._store.claim(key.group, key.lease_name, owner, seen)
                if lease is not None:
                    return lease
            raise FencedError(f"{key}: {CLAIMS} claims in a row lost to other members; another member owns it")

        return self._tried(claim, f"{key} cannot be claimed")

    def save(self, assigned: AssignedPartition, *, last: bool = False) -> None:
        """Save the tracker's changes. FencedError when the partition has another owner."""
        began_s = self._clock.monotonic_s()
        if self._with_outputs:
            self._tried(lambda: self._commit_outputs(assigned, last), f"{assigned.key} cannot be committed")
        elif self._with_effects:
            assert isinstance(self._store, TransactionalStore)
            store = self._store
            self._tried(lambda: save_in_transaction(store, assigned, last=last), f"{assigned.key} cannot be saved")
        else:
            change = assigned.tracker.change(last=last)
            self._tried(
                lambda: self._store.save(assigned.lease, assigned.key, change), f"{assigned.key} cannot be saved"
            )
            assigned.tracker.saved()
        assigned.saved_s = self._clock.monotonic_s()
        self._counts.saving.add(assigned.saved_s - began_s)

    def release(self, lease: Lease) -> None:
        """Release a claim. If the store is unavailable, the claim stays, and the next owner overrides it."""
        try:
            self._store.release(lease)
        except StoreUnavailableError as error:
            logger.warning("lease %s of group %r was not released: %s", lease.name, lease.group, error)

    def _commit_outputs(self, assigned: AssignedPartition, last: bool) -> None:
        """Commit outputs, checkpoint and the group's progress in one transaction of the stream."""
        tracker = assigned.tracker
        transaction: OutputTransaction = self._store.begin(assigned.lease)  # type: ignore[attr-defined]
        try:
            with tracker.undone_on_error():
                for each in assigned.uncommitted:
                    if each.outputs:
                        transaction.append(each.outputs)
                    assigned.finish(each.batch, each.low, each.high, each.begun_ms)
                    tracker.keep(each.state)
                transaction.save(assigned.lease, assigned.key, tracker.change(last=last))
                transaction.commit()
        except BaseException:
            try:
                transaction.abort()
            except PenstockError as error:  # the next claim ends it
                logger.info("a transaction of %s was not aborted: %s", assigned.key, error)
            raise
        tracker.saved()
        assigned.in_flight -= assigned.uncommitted_count
        assigned.uncommitted.clear()
        assigned.uncommitted_count = 0

    def _tried(self, action: Callable[[], Found], what: str) -> Found:
        attempts = 0
        while True:
            try:
                found = action()
            except StoreUnavailableError as error:
                if self._with_outputs and isinstance(error, OutcomeUnknownError):
                    raise  # committing outputs again could store them twice; any other change may be saved again
                attempts += 1
                if attempts == 1:
                    logger.warning("%s; retrying: %s", what, error)
                self.problem = f"{what}: {error}"
                if not self._go_on():
                    raise
                self._clock.sleep(_AGAIN.backoff_s(attempts, self._random))
            else:
                self.problem = ""
                return found


def save_in_transaction(store: TransactionalStore, assigned: AssignedPartition, *, last: bool) -> None:
    """Save the tracker's changes, taking the locks in the same order as `TransactionRunner`."""
    tracker = assigned.tracker
    with contextlib.ExitStack() as stack:
        transaction = stack.enter_context(store.transaction())
        with tracker.lock:
            transaction.save(assigned.lease, assigned.key, tracker.change(last=last))
            stack.close()
            tracker.saved()
