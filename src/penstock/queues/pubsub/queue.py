"""`abc.Queue` on a Pub/Sub subscription, and `pubsub:` URLs."""

from __future__ import annotations

import collections
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.abc import Delivery, Feature, Features, Outcome
from penstock.errors import ConfigError, PenstockError, UrlError
from penstock.model import NewRecord, Record
from penstock.queues.leases import Leases
from penstock.queues.pubsub.client import AGAIN, FIRST_BACKOFF_S, PubsubClient, RefusedError, told
from penstock.queues.pubsub.messages import batches, copied, decode, encode
from penstock.queues.pubsub.settings import LONGEST_DEADLINE_S, SHORTEST_DEADLINE_S, PubsubSettings
from penstock.queues.queue_base import QueueBase, check_limit
from penstock.streams.backend_url import parse_backend_url, settings_of

logger = logging.getLogger(__name__)

FEATURES: Final[Features] = frozenset(
    {Feature.KEYS, Feature.HEADERS, Feature.REDELIVERY, Feature.DELAYED_REDELIVERY, Feature.DURABLE}
)
"""DEAD_LETTERS where a topic for them is known. No DELIVERY_COUNT: Pub/Sub counts under a dead letter policy only, not
exactly, and counts released deliveries, too."""
MOST_AT_ONCE: Final = 1_000
"""Messages of a request to publish or pull, and ack ids of one to acknowledge: Pub/Sub's limits."""


def open_pubsub(url: str, options: Mapping[str, Any]) -> PubsubQueue:
    """`pubsub://PROJECT/SUBSCRIPTION` URLs; `pubsub://PROJECT?topic=TOPIC` can only send."""
    parts = parse_backend_url(url, 443)
    if parts.user is not None or parts.password is not None:
        raise UrlError(f"{parts.shown}: credentials do not belong into the URL: set credentials_file")
    if len(parts.hosts) != 1 or parts.host.port != 443 or "/" in parts.path:
        raise UrlError(f"{parts.shown} is not pubsub://PROJECT/SUBSCRIPTION; for an emulator add ?emulator=HOST:PORT")
    settings = settings_of(parts, PubsubSettings, options)
    if not parts.path and settings.topic is None:
        raise UrlError(f"{parts.shown} names neither a subscription nor a topic: pubsub://PROJECT/SUBSCRIPTION")
    return PubsubQueue(parts.host.name, parts.path, settings)


@dataclass(slots=True, eq=False)
class PubsubDelivery:
    """`abc.Delivery`."""

    record: Record
    attempt: int
    """Pub/Sub's approximate count, which it keeps under a dead letter policy; else 1."""
    ack_id: str = field(repr=False)
    message: Any = field(repr=False)
    until_s: float
    """When it is no longer ours, by this process' clock, if it is not extended."""
    is_settled: bool = False


class PubsubQueue(QueueBase[PubsubDelivery]):
    """A subscription of Pub/Sub, and the topic to send to. Any thread may use it; a forked process opens its own.

    Pub/Sub accepts late settlements without a word, except for subscriptions with exactly-once delivery. So the time is
    kept here: a delivery is stale once its ack deadline is over, counted from when it came. One pull at a time is under
    way, and outlasts a `receive` that gives up: a pull that is cancelled may have leased messages already.
    """

    def __init__(self, project: str, subscription: str, settings: PubsubSettings) -> None:
        super().__init__(subscription or str(settings.topic), PubsubDelivery)
        self._settings = settings
        self._project = project
        self._topic = self._path("topics", settings.topic) if settings.topic else ""
        self._subscription = self._path("subscriptions", subscription) if subscription else ""
        self._letters = self._path("topics", settings.dead_letters) if settings.dead_letters else ""
        self._deadline_s = SHORTEST_DEADLINE_S
        self._client = PubsubClient(settings)
        try:
            told(self._look_up)
        except BaseException:
            self._client.close()
            raise
        self.features = FEATURES | {Feature.DEAD_LETTERS} if self._letters else FEATURES
        self._changed = threading.Condition()
        self._arrived: collections.deque[PubsubDelivery] = collections.deque()
        self._leases: Leases[PubsubDelivery] = Leases()
        self._pull: Any = None
        self._problem: PenstockError | None = None
        """Why the last pull failed."""
        self._delays_s = AGAIN.delays_s()
        self._pull_again_s = 0.0

    @property
    def visibility_timeout_s(self) -> float:
        return self._deadline_s

    def receive(self, limit: int, wait_s: float) -> Sequence[PubsubDelivery]:
        check_limit(limit)
        if not self._subscription:
            raise ConfigError(f"{self.name} is a topic, from which nothing can be received: name a subscription")
        until_s = time.monotonic() + wait_s
        with self._changed:
            while True:  # ends: when something has come, or when the time is over
                self._client.check_open()
                if deliveries := self._take(limit):
                    return deliveries
                now_s = time.monotonic()
                if self._problem is not None and (now_s >= until_s or not _may_pass(self._problem)):
                    problem, self._problem = self._problem, None
                    raise problem
                if self._pull is None and now_s >= self._pull_again_s:
                    self._begin_pull(limit)
                if now_s >= until_s:
                    return []
                pause_s = until_s - now_s
                if self._pull is None:
                    pause_s = min(pause_s, max(0.0, self._pull_again_s - now_s))
                self._changed.wait(pause_s)

    def _stale(self, delivery: PubsubDelivery) -> str:
        return (
            f"message {delivery.message.message_id} of {self.name} was settled too late or twice: it was delivered "
            f"again, or will be; settle within {self._deadline_s} s, or extend it"
        )

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]:
        self._client.check_open()
        is_again = outcome in (Outcome.RETRY, Outcome.RELEASE)
        if not 0 <= delay_s <= LONGEST_DEADLINE_S or (delay_s and not is_again):
            raise ConfigError(
                f"delay_s={delay_s} with {outcome}: a delay is for RETRY or RELEASE, and at most {LONGEST_DEADLINE_S} s"
            )
        with self._leases.claim(self._ours(deliveries)) as (claimed, late):
            if is_again:
                return late + self._change_deadline(claimed, math.ceil(delay_s))
            if outcome is Outcome.REJECT and self._letters:
                self._publish(self._letters, [self._letter(each, reason) for each in claimed])
            return late + self._acknowledge(claimed)

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        self._client.check_open()
        return self._leases.extend(
            self._ours(deliveries),
            self._deadline_s,
            lambda asked: self._change_deadline(asked, self._deadline_s),
        )

    def send(self, records: Sequence[NewRecord]) -> None:
        """Publish records. All are checked before anything is sent. With `ordering`, records of one key keep their
        order."""
        self._client.check_open()
        if not self._topic:
            raise ConfigError(f"{self.name} does not say where to send: add ?topic=TOPIC to the URL")
        new_message = self._client.types.PubsubMessage.pb()
        messages = [encode(record, new_message(), self._topic, self._settings.ordering) for record in records]
        self._publish(self._topic, messages)

    def close(self) -> None:
        """Make what was received and not settled available to others at once, if Pub/Sub can be reached."""
        with self._changed:
            if self._client.is_closed:
                return
            pull, self._pull = self._pull, None
            self._leases.add(self._arrived)
            self._arrived.clear()
            held = self._leases.clear()
            self._changed.notify_all()
        try:
            if pull is not None:
                pull.cancel()
            for each in held:
                each.is_settled = True
            self._change_deadline(held, 0, patience_s=0.0)
        except PenstockError as error:
            logger.debug("%s: %d deliveries come again when their time is over: %s", self.name, len(held), error)
        finally:
            self._client.close()

    def _path(self, kind: str, name: str) -> str:
        return name if name.startswith("projects/") else f"projects/{self._project}/{kind}/{name}"

    # Opening.

    def _look_up(self) -> None:
        """Look the subscription up, and create what is missing if the settings say so."""
        settings, types = self._settings, self._client.types
        if settings.create and self._topic:
            request = types.Topic.pb()(name=self._topic)
            self._create("create_topic", request, self._topic)
        if not self._subscription:
            return
        if settings.create and self._topic:
            policy = {"dead_letter_policy": {"dead_letter_topic": self._letters}} if self._letters else {}
            if self._letters:
                self._create("create_topic", types.Topic.pb()(name=self._letters), self._letters)
            request = types.Subscription.pb()(
                name=self._subscription,
                topic=self._topic,
                ack_deadline_seconds=settings.ack_deadline_s,
                enable_message_ordering=settings.ordering,
                enable_exactly_once_delivery=settings.exactly_once,
                **policy,
            )
            self._create("create_subscription", request, self._subscription)
        request = types.GetSubscriptionRequest.pb()(subscription=self._subscription)
        try:
            answer = self._client.call(
                "get_subscription",
                request,
                self._subscription,
                patience_s=settings.connect_timeout_s,
                timeout_s=settings.connect_timeout_s,
            )
        except RefusedError as refused:
            if refused.code != "PERMISSION_DENIED":
                raise
            logger.warning(
                "%s: without the permission pubsub.subscriptions.get, an ack deadline of %d s is assumed, and the "
                "dead letter policy is not known",
                self._subscription,
                self._deadline_s,
            )
            return
        found = types.Subscription.pb(answer)
        self._deadline_s = found.ack_deadline_seconds or SHORTEST_DEADLINE_S
        self._topic = self._topic or (found.topic if found.topic.startswith("projects/") else "")
        self._letters = self._letters or found.dead_letter_policy.dead_letter_topic

    def _create(self, name: str, request: Any, what: str) -> None:
        patience_s = self._settings.connect_timeout_s
        try:
            self._client.call(name, request, what, patience_s=patience_s, timeout_s=patience_s)
        except RefusedError as refused:
            if refused.code != "ALREADY_EXISTS":
                raise

    # Receiving. The caller holds `_changed`, except of `_pulled`.

    def _take(self, limit: int) -> list[PubsubDelivery]:
        """The deliveries that have arrived and whose lease holds for a while."""
        taken: list[PubsubDelivery] = []
        enough_s = time.monotonic() + self._deadline_s / 2
        while self._arrived and len(taken) < limit:
            delivery = self._arrived.popleft()
            if delivery.until_s > enough_s:
                taken.append(delivery)
        self._leases.add(taken)
        return taken

    def _begin_pull(self, limit: int) -> None:
        request = self._client.types.PullRequest.pb()(
            subscription=self._subscription, max_messages=min(limit, MOST_AT_ONCE)
        )
        self._pull = self._client.begin("pull", request, self._settings.request_timeout_s)
        self._pull.add_done_callback(self._pulled)

    def _pulled(self, pull: Any) -> None:
        """Take the result of a pull. Called by a thread of gRPC."""
        until_s = time.monotonic() + self._deadline_s
        error = None if pull.cancelled() else pull.exception()
        answer = None if pull.cancelled() or error is not None else pull.result()
        received = [] if answer is None else self._client.types.PullResponse.pb(answer).received_messages
        deliveries = [
            PubsubDelivery(
                decode(self.name, each.message), max(1, each.delivery_attempt), each.ack_id, each.message, until_s
            )
            for each in received
        ]
        with self._changed:
            if self._pull is pull:
                self._pull = None
            self._arrived += deliveries
            # A pull that ends with its time has found nothing.
            if error is None or error.code().name == "DEADLINE_EXCEEDED":
                self._problem, self._delays_s = None, AGAIN.delays_s()
            else:
                self._problem = self._client.explained(error, self._subscription)
                self._pull_again_s = time.monotonic() + next(self._delays_s)
            self._changed.notify_all()

    # Settling and sending.

    def _acknowledge(self, deliveries: Sequence[PubsubDelivery]) -> list[PubsubDelivery]:
        new_request = self._client.types.AcknowledgeRequest.pb()
        return self._refused(
            "acknowledge", deliveries, lambda ids: new_request(subscription=self._subscription, ack_ids=ids)
        )

    def _change_deadline(
        self, deliveries: Sequence[PubsubDelivery], deadline_s: int, patience_s: float | None = None
    ) -> list[PubsubDelivery]:
        new_request = self._client.types.ModifyAckDeadlineRequest.pb()
        return self._refused(
            "modify_ack_deadline",
            deliveries,
            lambda ids: new_request(subscription=self._subscription, ack_ids=ids, ack_deadline_seconds=deadline_s),
            patience_s,
        )

    def _refused(
        self,
        operation: str,
        deliveries: Sequence[PubsubDelivery],
        request_of: Callable[[list[str]], Any],
        patience_s: float | None = None,
    ) -> list[PubsubDelivery]:
        """Send a request for these deliveries. Returns those that Pub/Sub calls too late, which only exactly-once
        subscriptions do."""
        patience_s = self._settings.retry_s if patience_s is None else patience_s
        until_s = time.monotonic() + patience_s
        late: list[PubsubDelivery] = []
        for start in range(0, len(deliveries), MOST_AT_ONCE):
            waiting = {each.ack_id: each for each in deliveries[start : start + MOST_AT_ONCE]}
            while waiting:  # ends: when all are answered, or when the patience is over
                left_s = max(0.0, until_s - time.monotonic())
                try:
                    self._client.call(operation, request_of(list(waiting)), self._subscription, patience_s=left_s)
                    break
                except RefusedError as refused:
                    failed = refused.failed_ids()
                    if failed is None:
                        raise refused.told from refused.error
                    late += [waiting[name] for name, is_final in failed.items() if is_final and name in waiting]
                    waiting = {name: waiting[name] for name in waiting if failed.get(name) is False}
                    if waiting and left_s <= 0:
                        raise refused.told from refused.error
                    self._client.sleep(min(FIRST_BACKOFF_S, left_s))
        return late

    def _publish(self, topic: str, messages: list[Any]) -> None:
        new_request = self._client.types.PublishRequest.pb()
        for batch in batches(messages, MOST_AT_ONCE):
            request = new_request(topic=topic, messages=batch)
            told(functools.partial(self._client.call, "publish", request, topic, patience_s=self._settings.retry_s))

    def _letter(self, delivery: PubsubDelivery, reason: str) -> Any:
        new_message = self._client.types.PubsubMessage.pb()
        return copied(delivery.message, new_message(), self._subscription, reason)

    def __repr__(self) -> str:
        return f"<PubsubQueue {self.name!r}>"


def _may_pass(problem: PenstockError) -> bool:
    return bool(getattr(problem, "retriable", False))
