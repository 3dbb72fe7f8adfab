"""Writes to the coordinator's topic, and applies each write once it is durable, in the order of the log.

Memory must be what reading the topic again would give. So a change is passed as records and as the function that
applies it to memory, and memory changes exactly as the log does: in the same order, and not before the records are
safe. Two commits that wait for the disk together can wake in either order; they are still applied in the order in which
they were written.

A write belongs to the journal, not to its request: if a client disconnects halfway, its records are in the log or not,
and memory must agree.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from penstock.broker.contracts import InternalTopic, internal_partition
from penstock.broker.errors import code_of
from penstock.broker.groups.records import StoredRecord

logger = logging.getLogger(__name__)

_ANSWERS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
    ErrorCode.invalid_fetch_size: ErrorCode.unknown_server_error,
}


def answer_for(error: BaseException) -> ErrorCode:
    """The code for a client whose change could not be stored: one that makes it find its coordinator again and retry,
    if that can help. A client must never get an error about a topic that it has not named."""
    code = code_of(error)
    return _ANSWERS.get(code, code)


@dataclass(slots=True, eq=False)
class _Write:
    apply: Callable[[], None]
    fail: Callable[[BaseException], None]
    settled: asyncio.Future[None]
    done: bool = False
    error: BaseException | None = None


def _nothing(_error: BaseException) -> None:
    """Most writes change nothing in memory before they are durable, so there is nothing to undo."""


@dataclass(slots=True, eq=False)
class Journal:
    topic: InternalTopic
    _queues: dict[int, deque[_Write]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def write(
        self,
        partition: int,
        records: Sequence[StoredRecord],
        *,
        apply: Callable[[], None],
        fail: Callable[[BaseException], None] = _nothing,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> asyncio.Future[None]:
        """Append the records as one batch; then call `apply`, or `fail` if they could not be written.

        Either is called before the returned future is done, and after those of all earlier writes to the partition.
        Await the future through `asyncio.shield`, or not at all.
        """
        write = _Write(apply, fail, asyncio.get_running_loop().create_future())
        self._queues.setdefault(partition, deque()).append(write)
        task = asyncio.get_running_loop().create_task(
            self._append(write, partition, records, producer_id, producer_epoch)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return write.settled

    def partition_of(self, group_id: str) -> int:
        """The partition of the topic that stores the group."""
        return internal_partition(group_id, self.topic.partition_count)

    def busy_partitions(self) -> list[int]:
        return list(self._queues)

    def after_writes(self, partition: int, action: Callable[[], None]) -> None:
        """Call `action` once everything written so far is settled; at once if no write is running."""
        queue = self._queues.get(partition)
        if queue is None:
            action()
            return
        queue.append(_Write(action, _nothing, asyncio.get_running_loop().create_future(), done=True))

    async def settled(self, partition: int) -> None:
        """Return once everything written so far has been applied or has failed."""
        queue = self._queues.get(partition)
        if queue is not None:
            await asyncio.wait([queue[-1].settled])

    async def close(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _append(
        self,
        write: _Write,
        partition: int,
        records: Sequence[StoredRecord],
        producer_id: int,
        producer_epoch: int,
    ) -> None:
        try:
            await self.topic.append(partition, records, producer_id=producer_id, producer_epoch=producer_epoch)
        except BaseException as error:
            write.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            write.done = True
            self._settle(partition)

    def _settle(self, partition: int) -> None:
        queue = self._queues[partition]
        while queue and queue[0].done:
            write = queue.popleft()
            if not queue:
                del self._queues[partition]
            self._finish(partition, write)

    def _finish(self, partition: int, write: _Write) -> None:
        error = write.error
        try:
            if error is None:
                write.apply()
            else:
                if isinstance(error, Exception):
                    logger.warning("Could not write to partition %d of the group topic: %s", partition, error)
                write.fail(error)
        except Exception as defect:
            logger.exception("A change to partition %d of the group topic could not be applied", partition)
            error = defect
        if write.settled.done():
            return
        if error is None:
            write.settled.set_result(None)
        elif isinstance(error, Exception):
            write.settled.set_exception(error)
            write.settled.exception()
        else:
            write.settled.cancel()
