"""The feed of a lease group: members divide the partitions of any stream through a checkpoint store."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.abc import CheckpointStore, Clock, Feature, Feed, GroupListener, Resharding, TopicStream
from penstock.consuming.lease_groups.held_partitions import HeldPartitions
from penstock.consuming.lease_groups.membership import Membership
from penstock.consuming.loop.polling_feed import BACKOFF, RETRIABLE, feed_of
from penstock.errors import ConfigError, ConnectionClosedError, GroupError, StoreUnavailableError, UnknownTopicError
from penstock.model import Batch, Pointer, Position
from penstock.model.clock import wait_on

logger = logging.getLogger(__name__)

_PARTITIONS_SOON_S: Final = 0.5
"""How soon to check again for a topic that does not exist yet."""
_CLOSING_S: Final = 5.0
"""How long `close` waits for a thread inside a call to the store or the stream, which ends with that call."""


class LeaseGroupFeed:
    """`abc.GroupFeed` for any stream, by leases in a checkpoint store with `Feature.LEASES`.

    Members find each other and their partitions through the leases: `membership` says who is alive, `held_partitions`
    who gets what. A separate thread sends heartbeats, so a slow handler loses nothing. Assignments change only inside
    `poll` and `close`, in the calling thread: the listener's `revoked` is called before a lease is released, `assigned`
    after it was claimed, and `lost` when another member has the lease or this member could not renew for 0.8 of `ttl_s`
    (by its own clock, read before and after each wait, so that a suspended process notices when it resumes).

    A member that restarts under its name takes its partitions back at once. Of two members with the same name the newer
    one stays: `poll` of the older one raises GroupError. Other members take over after `ttl_s` without a heartbeat,
    measured from when they saw the last one, so up to a third later.
    """

    def __init__(
        self,
        stream: TopicStream,
        store: CheckpointStore,
        group: str,
        listener: GroupListener,
        *,
        member: str,
        ttl_s: float = 10.0,
        clock: Clock,
        feed: Feed | None = None,
        start: Position = Position.EARLIEST,
    ) -> None:
        """`start` is where the group begins partitions without a checkpoint."""
        if Feature.LEASES not in store.features:
            raise ConfigError(
                f"a lease group needs a store that several processes can share: {type(store).__name__} has no "
                f"{Feature.LEASES}"
            )
        if not group or not member:
            raise ConfigError("a group and its members need non-empty names")
        if not ttl_s > 0:
            raise ConfigError(f"ttl_s={ttl_s!r} must be a positive number of seconds, such as 10")
        self._stream = stream
        self._start = start
        self._clock = clock
        self._feed = feed or feed_of(stream, clock)
        self._membership = Membership(store, group, stream.topic, member, ttl_s, clock)
        self._holder = HeldPartitions(self._membership, listener, self._feed)
        self._partitions: tuple[int, ...] = ()
        self._woken = False
        self._closed = False
        self._failure: Exception | None = None
        self._beat_failures = 0
        self._survey_failures = 0
        self._heartbeat = _RepeatingThread(f"penstock-heartbeat-{group}-{stream.topic}", clock, self._beat)
        self._survey = _RepeatingThread(f"penstock-partitions-{group}-{stream.topic}", clock, self._look_for_partitions)

    @property
    def owner(self) -> str:
        """This member's name in leases, with a suffix that distinguishes it from earlier and later runs."""
        return self._membership.owner

    @property
    def held(self) -> Sequence[int]:
        """The held partitions, in order. Only for the polling thread."""
        return self._holder.held

    def holds(self, partition: int) -> bool:
        """Whether a partition is still held, by the clock. Cheap and thread-safe: ask right before handling."""
        return self._holder.holds(partition)

    def poll(self, limit: int, wait_s: float) -> Sequence[Batch]:
        deadline_s = self._clock.monotonic_s() + wait_s
        while True:
            self._settle()
            left_s = deadline_s - self._clock.monotonic_s()
            batches = self._feed.poll(limit, max(0.0, min(left_s, self._patience_s())))
            if batches and not self._holder.check():
                continue  # the process was suspended while it waited: these records belong to others now
            woken, self._woken = self._woken, False
            if batches or woken or self._clock.monotonic_s() >= deadline_s:
                return batches

    def wake(self) -> None:
        self._woken = True
        self._feed.wake()

    def seek(self, partition: int, start: Pointer) -> None:
        if not self._holder.holds(partition):
            raise GroupError(f"{self._stream.topic}-{partition} is not assigned: {self.owner} holds {self.held}")
        self._feed.add(partition, start)

    def pause(self, partition: int) -> None:
        self._feed.pause(partition)

    def resume(self, partition: int) -> None:
        self._feed.resume(partition)

    def add(self, partition: int, start: Pointer) -> None:
        raise GroupError(f"{self._stream.topic}-{partition} cannot be added at {start}: the group assigns partitions")

    def remove(self, partition: int) -> None:
        raise GroupError(f"{self._stream.topic}-{partition} cannot be removed: the group assigns partitions")

    def commit(self, pointers: Mapping[int, Pointer], wait: bool) -> None:
        """Do nothing: progress is only in the checkpoint store."""

    def close(self) -> None:
        """Release everything, after `revoked`, and leave the group. Others may claim at once."""
        if self._closed:
            return
        self._closed = True
        self._survey.stop()
        try:
            self._holder.leave()
        finally:
            self._heartbeat.stop()
            try:
                if self._heartbeat.join(_CLOSING_S):
                    self._membership.leave()
            except StoreUnavailableError as error:
                logger.warning("%s could not leave its group: %s. Its lease will expire", self.owner, error)
            finally:
                self._feed.close()
                self._survey.join(_CLOSING_S)

    def _settle(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"this member of group {self._membership.group!r} has left")
        if self._failure is not None:
            self._holder.check()
            raise self._failure
        self._membership.unsettled = not self._holder.rebalance(self._partitions)
        if self._membership.state.superseded:
            raise GroupError(
                f"{self.owner} was replaced: another process joined group {self._membership.group!r} as "
                f"{self._membership.member!r}. Give every member a unique name"
            )
        if self._membership.changes != self._membership.state.changes:
            self._heartbeat.hurry()

    def _patience_s(self) -> float:
        """How long to wait in the feed. Changes in the group wake it."""
        return self._membership.fresh_for_s() if self._holder.held else self._membership.ttl_s

    def _beat(self) -> float | None:
        """One step of the heartbeat thread."""
        before = self._membership.state
        try:
            pause_s = self._membership.step()
        except StoreUnavailableError as error:
            self._beat_failures += 1
            pause_s = self._membership.retry_s()
            level = logging.WARNING if self._beat_failures == 1 else logging.DEBUG
            logger.log(level, "%s cannot reach its group: %s. Retrying in %.1f s", self.owner, error, pause_s)
        except Exception as error:
            self._fail(error)
            return None
        else:
            self._beat_failures = 0
        now = self._membership.state
        if now.view != before.view or now.generation != before.generation or self._membership.unsettled:
            self._feed.wake()
        return pause_s

    def _fail(self, error: Exception) -> None:
        """End a thread with an error that a retry cannot fix; `poll` raises it."""
        self._failure = error
        self._feed.wake()

    def _look_for_partitions(self) -> float | None:
        """One step of the thread that looks up partitions, as the stream may take long to answer."""
        try:
            partitions = tuple(self._stream.partitions())
            if isinstance(self._stream, Resharding):
                known = set(self._partitions)
                partitions = tuple(each for each in partitions if each in known or self._may_begin(self._stream, each))
        except UnknownTopicError:
            partitions = ()
        except (*RETRIABLE, StoreUnavailableError) as error:
            self._survey_failures += 1
            pause_s = BACKOFF.backoff_s(self._survey_failures, random.Random())
            level = logging.WARNING if self._survey_failures == 1 else logging.DEBUG
            logger.log(
                level, "cannot list the partitions of %s: %s. Retrying until it succeeds", self._stream.topic, error
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

    def _may_begin(self, stream: Resharding, partition: int) -> bool:
        """Whether the group has finished every partition that this one has replaced."""
        for parent in stream.parents(partition):
            checkpoint = self._membership.store.load(self._membership.key(parent))
            start = self._stream.locate(parent, self._start) if checkpoint is None else checkpoint.start
            if start < self._stream.span(parent)[1]:
                return False
        return True


class _RepeatingThread:
    """A thread that repeats a step, waiting between steps as long as the step says, or until woken or stopped.

    A step that returns None ends it.
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
