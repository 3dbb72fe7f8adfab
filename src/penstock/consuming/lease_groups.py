"""Groups by lease: the members of a group share the partitions of any stream, through a checkpoint store."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.abc import CheckpointStore, Clock, Feature, Feed, GroupListener, Stream
from penstock.consuming.membership import Membership
from penstock.consuming.pulling import BACKOFF, RETRIABLE, feed_of
from penstock.consuming.tenancy import Tenancy
from penstock.errors import ConfigError, ConnectionClosedError, GroupError, StoreUnavailableError, UnknownTopicError
from penstock.model import Batch, Pointer
from penstock.model.clock import wait_on

logger = logging.getLogger(__name__)

_PARTITIONS_SOON_S: Final = 0.5
"""How soon to look again for a topic that is not there yet."""
_CLOSING_S: Final = 5.0
"""How long `close` waits for a thread that is inside a call to the store or the stream. It ends with that call."""


class LeaseGroupFeed:
    """`abc.GroupFeed` for any stream, kept by leases in a checkpoint store with `Feature.LEASES`.

    Members find each other and their shares by looking at the leases; see `penstock.consuming.membership` for who is
    alive and `penstock.consuming.assignment` for who gets what. The sign of life is given by a thread of its own, so a
    slow handler loses nothing. All that changes hands does so inside `poll` and `close`, in the thread that calls them:
    the listener hears `revoked` before a lease is released, `assigned` after it was claimed, and `lost` when the member
    could not renew for 0.8 of `ttl_s` (by its own clock, which is looked at before and after each wait, so that a
    process that was stopped notices when it wakes up) or when somebody else has the lease.

    A member that is started again under its name takes its partitions back at once. Of two that run under one name the
    newer one stays: the older one's `poll` raises GroupError. When others must take over, they do after `ttl_s` of
    silence, measured from when they noticed the last sign of life, so up to a third later than that.
    """

    def __init__(
        self,
        stream: Stream,
        store: CheckpointStore,
        group: str,
        listener: GroupListener,
        *,
        member: str,
        ttl_s: float = 10.0,
        clock: Clock,
        feed: Feed | None = None,
    ) -> None:
        if Feature.LEASES not in store.features:
            raise ConfigError(
                f"a group by lease needs a store that several processes can share: {type(store).__name__} has no "
                f"{Feature.LEASES}"
            )
        if not group or not member:
            raise ConfigError("a group and its members need names that are not empty")
        if not ttl_s > 0:
            raise ConfigError(f"ttl_s={ttl_s!r}: a time above 0 is needed, such as 10")
        self._stream = stream
        self._clock = clock
        self._feed = feed or feed_of(stream, clock)
        self._membership = Membership(store, group, stream.topic, member, ttl_s, clock)
        self._tenancy = Tenancy(self._membership, listener, self._feed)
        self._partitions: tuple[int, ...] = ()
        self._woken = False
        self._closed = False
        self._failure: Exception | None = None
        self._beat_failures = 0
        self._survey_failures = 0
        self._heartbeat = _Repeating(f"penstock-heartbeat-{group}-{stream.topic}", clock, self._beat)
        self._survey = _Repeating(f"penstock-partitions-{group}-{stream.topic}", clock, self._look_for_partitions)

    @property
    def owner(self) -> str:
        """Who this member is in leases: its name, and what tells it from others that had or will have the name."""
        return self._membership.owner

    @property
    def held(self) -> Sequence[int]:
        """The partitions that are ours, in order. For the thread that polls."""
        return self._tenancy.held

    def holds(self, partition: int) -> bool:
        """Whether a partition is ours still, by the clock. Cheap: ask right before handling a record, in any thread."""
        return self._tenancy.holds(partition)

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            self._settle()
            left_s = deadline_s - self._clock.monotonic_s()
            batches = self._feed.poll(limit, max(0.0, min(left_s, self._patience_s())))
            if batches and not self._tenancy.check():
                continue  # it was stopped while it waited: what has come is for others now
            woken, self._woken = self._woken, False
            if batches or woken or self._clock.monotonic_s() >= deadline_s:
                return batches

    def wake(self) -> None:
        self._woken = True
        self._feed.wake()

    def seek(self, partition: int, start: Pointer) -> None:
        if not self._tenancy.holds(partition):
            raise GroupError(f"{self._stream.topic}-{partition} is not ours to seek in: {self.owner} holds {self.held}")
        self._feed.add(partition, start)

    def pause(self, partition: int) -> None:
        self._feed.pause(partition)

    def resume(self, partition: int) -> None:
        self._feed.resume(partition)

    def add(self, partition: int, start: Pointer) -> None:
        raise GroupError(f"{self._stream.topic}-{partition} cannot be added at {start}: the group gives out partitions")

    def remove(self, partition: int) -> None:
        raise GroupError(f"{self._stream.topic}-{partition} cannot be removed: the group gives out partitions")

    def commit(self, pointers: Mapping[int, Pointer], wait: bool) -> None:
        """Nothing to do: the checkpoint store is all there is."""

    def close(self) -> None:
        """Hand everything back (`revoked`, then released), and leave the group. Others may claim at once."""
        if self._closed:
            return
        self._closed = True
        self._survey.stop()
        try:
            self._tenancy.leave()
        finally:
            self._heartbeat.stop()
            try:
                if self._heartbeat.join(_CLOSING_S):
                    self._membership.leave()
            except StoreUnavailableError as error:
                logger.warning("%s could not leave its group: %s. It will be forgotten", self.owner, error)
            finally:
                self._feed.close()
                self._survey.join(_CLOSING_S)

    def _settle(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"this member of group {self._membership.group!r} has left")
        if self._failure is not None:
            self._tenancy.check()
            raise self._failure
        self._membership.unsettled = not self._tenancy.settle(self._partitions)
        if self._membership.standing.superseded:
            raise GroupError(
                f"{self.owner} has been replaced: another process joined group {self._membership.group!r} as "
                f"{self._membership.member!r}. Give every member a name of its own"
            )
        if self._membership.changes != self._membership.standing.changes:
            self._heartbeat.hurry()

    def _patience_s(self) -> float:
        """How long nothing needs to be looked at but the feed. News from the group wakes it."""
        return self._membership.fresh_for_s() if self._tenancy.held else self._membership.ttl_s

    def _beat(self) -> float | None:
        """A step of the heartbeat: called again and again, in its own thread."""
        before = self._membership.standing
        try:
            pause_s = self._membership.step()
        except StoreUnavailableError as error:
            self._beat_failures += 1
            pause_s = self._membership.retry_s()
            level = logging.WARNING if self._beat_failures == 1 else logging.DEBUG
            logger.log(level, "%s cannot reach its group: %s. Tried again in %.1f s", self.owner, error, pause_s)
        except Exception as error:
            self._fail(error)
            return None
        else:
            self._beat_failures = 0
        now = self._membership.standing
        if now.view != before.view or now.tenure != before.tenure or self._membership.unsettled:
            self._feed.wake()
        return pause_s

    def _fail(self, error: Exception) -> None:
        """End a thread with an error that `poll` raises: nothing that it does again would mend it."""
        self._failure = error
        self._feed.wake()

    def _look_for_partitions(self) -> float | None:
        """A step of the survey: called again and again, in its own thread, as the stream may take long to answer."""
        try:
            partitions = tuple(self._stream.partitions())
        except UnknownTopicError:
            partitions = ()
        except RETRIABLE as error:
            self._survey_failures += 1
            pause_s = BACKOFF.backoff_s(self._survey_failures, random.Random())
            level = logging.WARNING if self._survey_failures == 1 else logging.DEBUG
            logger.log(
                level, "%s does not tell its partitions: %s. Asked again until it does", self._stream.topic, error
            )
            return pause_s
        except Exception as error:
            self._fail(error)
            return None
        self._survey_failures = 0
        if partitions and partitions != self._partitions:
            self._partitions = partitions
            self._feed.wake()
        return self._membership.ttl_s if partitions else _PARTITIONS_SOON_S


class _Repeating:
    """A thread that does a step, waits as long as the step says or until it is hurried, and so on until it is stopped.

    A step that says None ends it.
    """

    def __init__(self, name: str, clock: Clock, step: Callable[[], float | None]) -> None:
        self._clock = clock
        self._step = step
        self._changed = threading.Condition()
        self._hurried = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Whether it has ended within this time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            pause_s = self._step()
            if pause_s is None:
                return
            until_s = self._clock.monotonic_s() + pause_s
            with self._changed:
                while not (self._hurried or self._stopped):
                    left_s = until_s - self._clock.monotonic_s()
                    if left_s <= 0:
                        break
                    wait_on(self._clock, self._changed, left_s)
                self._hurried = False
                if self._stopped:
                    return
