"""Sending messages to registered receivers, each at its own pace.

A receiver gets its messages in batches: those with the same key in order, others side by side. A request that fails is
tried again with backoff until it succeeds, until the receiver refuses it for good, or until the receiver is disabled.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from penstock.abc import Clock
from penstock.channels.http import messages
from penstock.channels.http.sender import HttpEndpoint, Message
from penstock.channels.webhooks.registry import RegisteredReceiver, Registry, StoredMessage
from penstock.channels.webhooks.settings import WebhooksSettings
from penstock.errors import DeliveryError, PenstockError, RecordTooLargeError
from penstock.model.retry import Retry
from penstock.model.text import duration_text

logger = logging.getLogger(__name__)

R = TypeVar("R")

_BATCH: Final = 100
_LOOK_EVERY_S: Final = 1.0
_TRIM_EVERY_S: Final = 2.0
_GONE: Final = 410


class ReceiverDisabled(Exception):
    """Ends the delivery to one receiver."""


class DeliveryLoop:
    """One task for each active receiver. Only one process at a time sends the messages of a file."""

    def __init__(self, registry: Registry, settings: WebhooksSettings, clock: Clock) -> None:
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._tasks: dict[str, tuple[RegisteredReceiver, asyncio.Task[None]]] = {}
        self.arrived = asyncio.Event()
        """Set by the channel when it has stored messages."""

    async def run(self) -> None:
        """Send until cancelled."""
        lock = await self._take_lock()
        trim_at_s = 0.0
        try:
            while True:  # ends when cancelled
                try:
                    await self._look()
                    if self._clock.monotonic_s() >= trim_at_s:
                        await _in_thread(self._registry.trim, self._settings.keep_s, self._settings.max_waiting)
                        trim_at_s = self._clock.monotonic_s() + _TRIM_EVERY_S
                except PenstockError as error:
                    logger.warning("webhooks of %s: %s; trying again", self._registry.path, error)
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            tasks = [task for _, task in self._tasks.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            os.close(lock)

    async def _take_lock(self) -> int:
        lock = os.open(f"{self._registry.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:  # ends when the other process does, or when cancelled
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                try:
                    await asyncio.sleep(_LOOK_EVERY_S)
                except asyncio.CancelledError:
                    os.close(lock)
                    raise

    async def _look(self) -> None:
        """Start and stop tasks for receivers that were registered, changed or disabled."""
        found = {each.id: each for each in await _in_thread(self._registry.receivers) if each.state == "active"}
        for receiver_id, (known, task) in list(self._tasks.items()):
            now = found.get(receiver_id)
            if task.done() or now is None or (now.secrets, now.events) != (known.secrets, known.events):
                task.cancel()
                [ended] = await asyncio.gather(task, return_exceptions=True)
                if isinstance(ended, Exception):
                    logger.error("webhooks for %s failed, and are started again", known.url, exc_info=ended)
                del self._tasks[receiver_id]
        for receiver_id, receiver in found.items():
            if receiver_id not in self._tasks:
                delivery = ReceiverDelivery(receiver, self._registry, self._settings, self._clock)
                self._tasks[receiver_id] = (receiver, asyncio.create_task(delivery.run(self.arrived)))


class ReceiverDelivery:
    """Delivers the messages of one receiver."""

    def __init__(
        self, receiver: RegisteredReceiver, registry: Registry, settings: WebhooksSettings, clock: Clock
    ) -> None:
        self._receiver = receiver
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._endpoint = HttpEndpoint(receiver.url, receiver.url, settings.http(), receiver.secrets, clock)
        self._retry = Retry(None, settings.first_delay_s, max_delay_s=settings.max_delay_s)
        self._chance = random.Random()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._is_failing = receiver.failing_since_ms is not None

    async def run(self, arrived: asyncio.Event) -> None:
        """Deliver until cancelled, or until the receiver is disabled."""
        try:
            start = self._receiver.next
            while True:  # ends when cancelled
                start = await self._deliver_batch(start, arrived)
        except ReceiverDisabled as reason:
            logger.warning("the webhook receiver %s is disabled: %s", self._receiver.url, reason)
            await _in_thread(self._registry.disable, self._receiver.id, str(reason))
        except PenstockError as error:
            logger.warning("webhooks for %s: %s; trying again", self._receiver.url, error)
        finally:
            await self._endpoint.close()

    async def _deliver_batch(self, start: int, arrived: asyncio.Event) -> int:
        arrived.clear()
        found = await _in_thread(self._registry.waiting, start, _BATCH)
        if not found:
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await arrived.wait()
            except TimeoutError:
                pass  # other processes store messages, too: look
            return start
        behind = await _in_thread(self._registry.end) - found[0].number
        if behind > self._settings.max_waiting:
            raise ReceiverDisabled(
                f"{behind:,} messages wait for it, more than max_waiting={self._settings.max_waiting}"
            )
        lanes: dict[object, list[StoredMessage]] = {}
        unfinished = dict.fromkeys(message.number for message in found if self._receiver.wants(message.event))
        for message in found:
            if message.number in unfinished:
                key = message.record.key
                lanes.setdefault(message.number if key is None else key, []).append(message)
        delivered = 0
        next_number = found[-1].number + 1

        async def deliver_lane(lane: Sequence[StoredMessage]) -> None:
            nonlocal delivered
            for message in lane:
                was_delivered = await self._deliver(message)  # other lanes change `delivered` in the meantime
                delivered += was_delivered
                del unfinished[message.number]

        try:
            await _all(deliver_lane(lane) for lane in lanes.values())
        finally:  # also when this is cancelled, so that what was delivered is not sent again
            self._registry.advance(self._receiver.id, min(unfinished, default=next_number), delivered)
        return next_number

    async def _deliver(self, message: StoredMessage) -> bool:
        """Deliver a message. False if the receiver refused it for good."""
        try:
            headers = messages.request_headers(message.record, message.id, self._settings.content_type)
        except RecordTooLargeError as error:
            await _in_thread(self._registry.refused, self._receiver.id, message, str(error))
            return False
        request = Message(message.id, message.record.value or b"", headers)
        attempt = 0
        while True:  # ends: when it is delivered or refused, or when the receiver is disabled
            attempt += 1
            async with self._slots:
                failure = await self._endpoint.post(request)
            if failure is None:
                await self._succeeded()
                return True
            if failure.status == _GONE:
                raise ReceiverDisabled("it answered 410: it is gone")
            if isinstance(failure.error, DeliveryError) and not failure.error.retriable:
                await self._succeeded()
                await _in_thread(self._registry.refused, self._receiver.id, message, str(failure.error))
                return False
            await self._failed(str(failure.error))
            pause_s = self._retry.backoff_s(attempt, self._chance)
            await asyncio.sleep(max(pause_s, min(failure.wait_s or 0.0, self._settings.max_delay_s)))

    async def _succeeded(self) -> None:
        if self._is_failing:
            self._is_failing = False
            await _in_thread(self._registry.succeeded, self._receiver.id)

    async def _failed(self, problem: str) -> None:
        self._is_failing = True
        await _in_thread(self._registry.failing, self._receiver.id, problem)
        since_ms = (await _in_thread(self._registry.receiver, self._receiver.id)).failing_since_ms
        failing_s = 0.0 if since_ms is None else (self._clock.wall_ms() - since_ms) / 1000
        if failing_s >= self._settings.disable_after_s:
            raise ReceiverDisabled(f"nothing could be delivered for {duration_text(failing_s)}; last: {problem}")


async def verify(url: str, secrets: Sequence[str], settings: WebhooksSettings, clock: Clock) -> str:
    """Send a challenge, which the receiver must return in a 2xx answer. "" if it did, else the problem."""
    challenge = messages.new_id()
    body = msgspec.json.encode({"type": "webhook.verification", "challenge": challenge})
    headers = [("content-type", "application/json"), ("webhook-id", challenge), ("idempotency-key", challenge)]
    endpoint = HttpEndpoint(url, url, settings.http(), secrets, clock)
    try:
        failure = await endpoint.post(Message(challenge, body, headers, expected=challenge.encode()))
    finally:
        await endpoint.close()
    return "" if failure is None else str(failure.error)


async def _all(work: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """The results of all tasks. If one raises, the others are cancelled."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _in_thread(call: Callable[..., R], *arguments: Any) -> R:
    return await asyncio.to_thread(call, *arguments)
