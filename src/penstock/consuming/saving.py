"""Saving: the tracker's changes into the checkpoint store, in the way that the guarantee needs."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from penstock.abc import CheckpointStore, Clock, TransactionalStore
from penstock.consuming.counts import Counts
from penstock.consuming.retry import Retry
from penstock.consuming.share import Share
from penstock.consuming.transactions import save_in_transaction
from penstock.errors import FencedError, OutcomeUnknownError, PenstockError, StoreUnavailableError
from penstock.model import CheckpointKey, Lease, NewRecord

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

_AGAIN: Final = Retry(first_delay_s=0.05, max_delay_s=2.0)
CLAIMS: Final = 20
"""How often a claim is tried against others who claim at the same moment."""


class OutputTransaction(Protocol):
    """A transaction of a stream that holds outputs, the checkpoint, and the group's progress."""

    def append(self, records: Iterable[NewRecord]) -> None: ...

    def save(self, lease: Lease, key: CheckpointKey, change: Any) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...


class Saving:
    """Saves shares. A store that is away is waited for, with backoff, for as long as `go_on` says."""

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
        self._chance = random.Random()
        self.problem = ""
        """Why nothing can be saved, while that is so."""

    def claim(self, key: CheckpointKey, owner: str) -> Lease:
        """Become the one who may save for a partition."""

        def claim() -> Lease:
            for _ in range(CLAIMS):
                seen = next((each for each in self._store.leases(key.group) if each.name == key.lease_name), None)
                lease = self._store.claim(key.group, key.lease_name, owner, seen)
                if lease is not None:
                    return lease
            raise FencedError(f"{key}: {CLAIMS} claims in a row were overtaken by others; another member has it")

        return self._tried(claim, f"{key} cannot be claimed")

    def save(self, share: Share, *, last: bool = False) -> None:
        """Save what the tracker knows. FencedError: the partition has another owner."""
        began_s = self._clock.monotonic_s()
        if self._with_outputs:
            self._tried(lambda: self._commit_outputs(share, last), f"{share.key} cannot be committed")
        elif self._with_effects:
            assert isinstance(self._store, TransactionalStore)
            store = self._store
            self._tried(lambda: save_in_transaction(store, share, last=last), f"{share.key} cannot be saved")
        else:
            change = share.tracker.change(last=last)
            self._tried(lambda: self._store.save(share.lease, share.key, change), f"{share.key} cannot be saved")
            share.tracker.saved()
        share.saved_s = self._clock.monotonic_s()
        self._counts.saving.add(share.saved_s - began_s)

    def release(self, lease: Lease) -> None:
        """Give a claim back. A store that is away keeps it, and the next owner claims over it."""
        try:
            self._store.release(lease)
        except StoreUnavailableError as error:
            logger.warning("lease %s of group %r was not released: %s", lease.name, lease.group, error)

    def _commit_outputs(self, share: Share, last: bool) -> None:
        """Outputs, checkpoint and the group's progress in one transaction of the stream."""
        tracker = share.tracker
        transaction: OutputTransaction = self._store.begin(share.lease)  # type: ignore[attr-defined]
        try:
            with tracker.undone_on_error():
                for each in share.uncommitted:
                    if each.outputs:
                        transaction.append(each.outputs)
                    share.finish(each.batch, each.low, each.high, each.begun_ms)
                    tracker.keep(each.state)
                transaction.save(share.lease, share.key, tracker.change(last=last))
                transaction.commit()
        except BaseException:
            try:
                transaction.abort()
            except PenstockError as error:  # then the next claim ends it
                logger.info("a transaction of %s was not aborted: %s", share.key, error)
            raise
        tracker.saved()
        share.in_flight -= share.uncommitted_count
        share.uncommitted.clear()
        share.uncommitted_count = 0

    def _tried(self, action: Callable[[], Found], what: str) -> Found:
        attempts = 0
        while True:
            try:
                found = action()
            except StoreUnavailableError as error:
                if self._with_outputs and isinstance(error, OutcomeUnknownError):
                    raise  # to commit outputs once more could store them twice; any other change may be saved again
                attempts += 1
                if attempts == 1:
                    logger.warning("%s, and is tried again: %s", what, error)
                self.problem = f"{what}: {error}"
                if not self._go_on():
                    raise
                self._clock.sleep(_AGAIN.backoff_s(attempts, self._chance))
            else:
                self.problem = ""
                return found
