"""`abc.Queue` on SQS, its settings, and `sqs:` URLs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.abc import Delivery, Feature, Features, Outcome
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConnectionClosedError,
    DeliveryError,
    StreamError,
    UnknownTopicError,
    UrlError,
)
from penstock.model import NewRecord, Record
from penstock.queues.leases import Leases
from penstock.queues.queue_base import QueueBase, check_limit
from penstock.queues.sqs.messages import copied, decode, encode
from penstock.streams.adapting.aws import FOR_NOW, AwsClient, RefusedError, pause_s
from penstock.streams.backend_url import check_not_negative, parse_backend_url, settings_of

FEATURES: Final[Features] = frozenset(
    {Feature.KEYS, Feature.HEADERS, Feature.REDELIVERY, Feature.DELAYED_REDELIVERY, Feature.DURABLE}
)
"""No DELIVERY_COUNT: SQS counts each delivery, released ones, too. DEAD_LETTERS if the queue has a redrive policy."""

HTTPS_PORT: Final = 443
BATCH: Final = 10
LONGEST_POLL_S: Final = 20
SHORT_POLL_S: Final = 0.2
"""The pause between requests where less than half a second is left to wait."""
LONGEST_INVISIBLE_S: Final = 12 * 3600
FIFO: Final = ".fifo"
MISSING: Final = frozenset({"NonExistentQueue", "QueueDoesNotExist"})
LATE: Final = frozenset({"InvalidParameterValue", "MessageNotInflight", "ReceiptHandleIsInvalid"})
"""What SQS says of the receipt handle of a message that is settled, or was delivered again."""


@dataclass(frozen=True, slots=True)
class SqsSettings:
    """Settings of an `sqs:` URL."""

    endpoint_url: str | None = None
    """Where SQS is, if not at AWS: `http://127.0.0.1:9324`, or an interface endpoint of a VPC. `AWS_ENDPOINT_URL` does
    the same."""

    create: bool = False
    """Create the queue if it is missing, with SQS' defaults. Without it, a missing queue is an UnknownTopicError."""

    visibility_timeout_s: int | None = None
    """How long a delivery belongs to its receiver; omit it for the queue's own. Consumers extend it while they work,
    so it is how late a record comes again whose consumer died. 1 to 43200."""

    request_timeout_s: float = 30.0
    """How long a connection, or the answer to a request, may take. A long poll waits for half of it, at most 20 s."""

    retry_s: float = 15.0
    """How long sending and settling are repeated while SQS is busy or cannot be reached."""

    def __post_init__(self) -> None:
        if self.request_timeout_s < 2:
            raise ConfigError(f"request_timeout_s={self.request_timeout_s} must be at least 2: SQS waits whole seconds")
        check_not_negative(self, "retry_s")
        if self.visibility_timeout_s is not None and not 1 <= self.visibility_timeout_s <= LONGEST_INVISIBLE_S:
            raise ConfigError(f"visibility_timeout_s={self.visibility_timeout_s} must be 1 to {LONGEST_INVISIBLE_S}")


def open_sqs(url: str, options: Mapping[str, Any]) -> SqsQueue:
    """`sqs://REGION/QUEUE` URLs; `sqs:QUEUE` takes the region of the environment or profile."""
    parts = parse_backend_url(url, HTTPS_PORT)
    if parts.user is not None or parts.password is not None:
        raise UrlError(f"{parts.shown}: credentials do not belong into the URL: set AWS_PROFILE or AWS_ACCESS_KEY_ID")
    if not parts.path or "/" in parts.path or len(parts.hosts) > 1 or (parts.hosts and parts.host.port != HTTPS_PORT):
        raise UrlError(
            f"{parts.shown} is not sqs://REGION/QUEUE; for another server add ?endpoint_url=http://HOST:PORT"
        )
    settings = settings_of(parts, SqsSettings, options)
    return SqsQueue(parts.path, parts.host.name if parts.hosts else None, settings)


@dataclass(slots=True, eq=False)
class SqsDelivery:
    """`abc.Delivery`."""

    record: Record
    attempt: int
    """SQS' approximate count of receives, released ones included."""
    message: Mapping[str, Any] = field(repr=False)
    until_s: float
    """When it is no longer ours, by this process' clock, if it is not extended."""
    is_settled: bool = False

    @property
    def handle(self) -> str:
        return str(self.message["ReceiptHandle"])


class SqsQueue(QueueBase[SqsDelivery]):
    """A queue of SQS. Any thread may use it; a forked process opens its own.

    SQS accepts settlements that are too late without a word, so the time is kept here: a delivery is stale once its
    visibility timeout is over, counted from when it came.
    """

    def __init__(self, name: str, region: str | None, settings: SqsSettings) -> None:
        super().__init__(name, SqsDelivery)
        self._settings = settings
        self._is_fifo = name.endswith(FIFO)
        self._client = AwsClient("sqs", "Amazon SQS", region, settings.endpoint_url, settings.request_timeout_s)
        try:
            self._url = self._find()
            attributes = self._attributes(self._url)
        except BaseException:
            self._client.close()
            raise
        own_s = int(attributes.get("VisibilityTimeout", 30))
        self._visibility_s = settings.visibility_timeout_s or own_s
        if not self._visibility_s:
            self._client.close()
            raise ConfigError(f"queue {name!r} has a visibility timeout of 0: set visibility_timeout_s")
        self._most_bytes = int(attributes.get("MaximumMessageSize", 262_144))
        policy = attributes.get("RedrivePolicy")
        self._dead_letters = json.loads(policy).get("deadLetterTargetArn") if policy else None
        self.features = FEATURES | {Feature.DEAD_LETTERS} if self._dead_letters else FEATURES
        self._dead_letter_url: str | None = None
        self._leases: Leases[SqsDelivery] = Leases()

    @property
    def visibility_timeout_s(self) -> float:
        return self._visibility_s

    def receive(self, limit: int, wait_s: float) -> Sequence[SqsDelivery]:
        """Receive deliveries. SQS waits for whole seconds: half a second or more counts as one; less is waited for
        by asking again."""
        check_limit(limit)
        until_s = time.monotonic() + wait_s
        while True:  # ends: when something has come, or when the time is over
            left_s = until_s - time.monotonic()
            deliveries = self._receive(limit, left_s)
            left_s = until_s - time.monotonic()
            if deliveries or left_s <= 0:
                return deliveries
            if left_s < 0.5:
                self._client.sleep(min(SHORT_POLL_S, left_s))

    def _stale(self, delivery: SqsDelivery) -> str:
        return (
            f"message {delivery.message['MessageId']} of queue {self.name!r} was settled too late or twice: it was "
            f"delivered again, or will be; settle within {self._visibility_s} s, or extend it"
        )

    def settle_all(
        self, deliveries: Sequence[Delivery], outcome: Outcome, delay_s: float = 0.0, reason: str = ""
    ) -> Sequence[Delivery]:
        self._check_open()
        is_again = outcome in (Outcome.RETRY, Outcome.RELEASE)
        if not 0 <= delay_s <= LONGEST_INVISIBLE_S or (delay_s and not is_again):
            raise ConfigError(
                f"delay_s={delay_s} with {outcome}: a delay is for RETRY or RELEASE, and at most 12 hours"
            )
        with self._leases.claim(self._ours(deliveries)) as (claimed, late):
            if is_again:
                return late + self._change_visibility(claimed, math.ceil(delay_s))
            if outcome is Outcome.REJECT and self._dead_letters:
                self._send_all(self._dead_letter_queue(), [self._dead_letter(each, reason) for each in claimed])
            return late + self._refused("delete_message_batch", claimed, lambda each: {})

    def extend(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        self._check_open()
        return self._leases.extend(
            self._ours(deliveries),
            self._visibility_s,
            lambda asked: self._change_visibility(asked, self._visibility_s),
        )

    def send(self, records: Sequence[NewRecord]) -> None:
        """Send records. All sizes are checked before anything is sent. In a FIFO queue, records of one key keep
        their order."""
        self._check_open()
        entries = [encode(record, self._is_fifo) for record in records]
        for number, (_, size_bytes) in enumerate(entries):
            if size_bytes > self._most_bytes:
                raise DeliveryError(
                    f"record {number} of {len(entries)} is too large for queue {self.name!r}: {size_bytes} bytes with "
                    f"its attributes, and the queue takes {self._most_bytes}. Split it, or store it elsewhere and send "
                    "where it is"
                )
        self._send_all(self._url, entries)

    def waiting(self) -> int:
        """About how many messages nobody has: SQS asks a part of its servers."""
        self._check_open()
        name = "ApproximateNumberOfMessages"
        answer = self._client.call("get_queue_attributes", QueueUrl=self._url, AttributeNames=[name])
        return int(answer.get("Attributes", {}).get(name, 0))

    def close(self) -> None:
        """Make what was received and not settled available to others at once, if SQS can be reached."""
        if self._client.is_closed:
            return
        held = self._leases.clear()
        try:
            self._change_visibility(held, 0, patience_s=0.0)
        except (BrokerUnavailableError, StreamError):
            pass  # they come again when their time is over
        finally:
            self._client.close()

    def _receive(self, limit: int, wait_s: float) -> list[SqsDelivery]:
        """Deliveries of one long poll, and of more requests without waiting for as long as each returns the most it
        may."""
        deliveries: list[SqsDelivery] = []
        longest_s = min(LONGEST_POLL_S, self._settings.request_timeout_s / 2)
        while len(deliveries) < limit:  # ends: a request that is not answered in full is the last one
            self._check_open()
            asked = min(BATCH, limit - len(deliveries))
            try:
                answer = self._client.call(
                    "receive_message",
                    QueueUrl=self._url,
                    MaxNumberOfMessages=asked,
                    WaitTimeSeconds=0 if deliveries else max(0, int(min(wait_s + 0.5, longest_s))),
                    VisibilityTimeout=self._visibility_s,
                    MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp", "MessageGroupId"],
                    MessageAttributeNames=["All"],
                )
            except (BrokerUnavailableError, StreamError):
                if deliveries:
                    break
                raise
            messages = answer.get("Messages") or ()
            until_s = time.monotonic() + self._visibility_s
            deliveries += [self._delivery(message, until_s) for message in messages]
            if len(messages) < asked:
                break
        self._leases.add(deliveries)
        return deliveries

    def _delivery(self, message: Mapping[str, Any], until_s: float) -> SqsDelivery:
        count = int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1))
        return SqsDelivery(decode(self.name, message), max(1, count), message, until_s)

    def _change_visibility(
        self, deliveries: Sequence[SqsDelivery], timeout_s: int, patience_s: float | None = None
    ) -> list[SqsDelivery]:
        return self._refused(
            "change_message_visibility_batch", deliveries, lambda _: {"VisibilityTimeout": timeout_s}, patience_s
        )

    def _refused(
        self,
        operation: str,
        deliveries: Sequence[SqsDelivery],
        arguments: Callable[[SqsDelivery], dict[str, Any]],
        patience_s: float | None = None,
    ) -> list[SqsDelivery]:
        """Send a request for every ten deliveries. Returns those that SQS calls too late."""
        late: list[SqsDelivery] = []
        for start in range(0, len(deliveries), BATCH):
            part = dict(enumerate(deliveries[start : start + BATCH]))
            until_s = time.monotonic() + (self._settings.retry_s if patience_s is None else patience_s)
            failures = 0
            while part:  # ends: when the time is over
                entries = [
                    {"Id": str(number), "ReceiptHandle": each.handle, **arguments(each)}
                    for number, each in part.items()
                ]
                left_s = max(0.0, until_s - time.monotonic())
                answer = self._client.call(operation, left_s, QueueUrl=self._url, Entries=entries)
                failed = {int(each["Id"]): each for each in answer.get("Failed") or ()}
                late += [part[number] for number, each in failed.items() if _code(each) in LATE]
                part = {number: part[number] for number, each in failed.items() if _code(each) not in LATE}
                if part:
                    self._pause_or_raise(operation, next(iter(failed.values())), failures, until_s)
                    failures += 1
        return late

    def _send_all(self, url: str, entries: Sequence[tuple[dict[str, Any], int]]) -> None:
        """Send in batches. A batch holds one message of each group: SQS may refuse a message and store a later one."""
        until_s = time.monotonic() + self._settings.retry_s
        for batch in batches(entries, self._most_bytes):
            waiting, failures = dict(enumerate(batch)), 0
            while waiting:  # ends: when the time is over
                numbered = [{"Id": str(number), **entry} for number, entry in waiting.items()]
                left_s = max(0.0, until_s - time.monotonic())
                answer = self._client.call("send_message_batch", left_s, QueueUrl=url, Entries=numbered)
                failed = {int(each["Id"]): each for each in answer.get("Failed") or ()}
                waiting = {number: waiting[number] for number in failed}
                if failed:
                    self._pause_or_raise("send_message_batch", next(iter(failed.values())), failures, until_s)
                    failures += 1
            until_s = max(until_s, time.monotonic() + self._settings.retry_s)

    def _pause_or_raise(self, operation: str, failed: Mapping[str, Any], failures: int, until_s: float) -> None:
        wait_s = pause_s(failures)
        is_for_now = not failed.get("SenderFault") or _code(failed) in FOR_NOW
        if not is_for_now or time.monotonic() + wait_s > until_s or self._client.is_closed:
            raise DeliveryError(
                f"{self._client.where} refused {operation} for queue {self.name!r}: {failed.get('Message')} "
                f"({failed.get('Code')})",
                retriable=is_for_now,
            )
        self._client.sleep(wait_s)

    def _dead_letter(self, delivery: SqsDelivery, reason: str) -> tuple[dict[str, Any], int]:
        entry = copied(delivery.message, reason)
        if self._is_fifo:
            # The id of the delivery, so that a second attempt is no second letter.
            entry["MessageDeduplicationId"] = str(delivery.message["MessageId"])
            entry["MessageGroupId"] = delivery.message.get("Attributes", {}).get("MessageGroupId", "dead-letters")
        return entry, 0

    def _dead_letter_queue(self) -> str:
        if self._dead_letter_url is None:
            name = str(self._dead_letters).rpartition(":")[2]
            try:
                answer = self._client.call("get_queue_url", self._settings.retry_s, QueueName=name)
            except RefusedError as error:
                raise StreamError(
                    f"the dead-letter queue {name!r} of queue {self.name!r} cannot be found: {error}"
                ) from error
            self._dead_letter_url = str(answer["QueueUrl"])
        return self._dead_letter_url

    def _find(self) -> str:
        patience_s = self._settings.retry_s
        try:
            return str(self._client.call("get_queue_url", patience_s, QueueName=self.name)["QueueUrl"])
        except RefusedError as error:
            if error.code not in MISSING:
                raise
            if not self._settings.create:
                raise UnknownTopicError(
                    f"{self._client.where} has no queue {self.name!r}: create it, add create=true to the URL, or "
                    "check the name, the region and the account"
                ) from error
        attributes = {"FifoQueue": "true"} if self._is_fifo else {}
        answer = self._client.call("create_queue", patience_s, QueueName=self.name, Attributes=attributes)
        return str(answer["QueueUrl"])

    def _attributes(self, url: str) -> dict[str, str]:
        wanted = ["VisibilityTimeout", "MaximumMessageSize", "RedrivePolicy"]
        answer = self._client.call("get_queue_attributes", self._settings.retry_s, QueueUrl=url, AttributeNames=wanted)
        found: dict[str, str] = answer.get("Attributes") or {}
        return found

    def _check_open(self) -> None:
        if self._client.is_closed:
            raise ConnectionClosedError(f"queue {self.name!r} is closed: open it again")

    def __repr__(self) -> str:
        return f"<SqsQueue {self.name!r}>"


def batches(entries: Iterable[tuple[dict[str, Any], int]], most_bytes: int) -> Iterator[list[dict[str, Any]]]:
    """The entries in their order, divided into batches of at most ten, and at most one entry of each message group."""
    batch: list[dict[str, Any]] = []
    groups: set[Hashable] = set()
    size = 0
    for entry, size_bytes in entries:
        group = entry.get("MessageGroupId", object())
        if batch and (len(batch) == BATCH or size + size_bytes > most_bytes or group in groups):
            yield batch
            batch, groups, size = [], set(), 0
        batch.append(entry)
        groups.add(group)
        size += size_bytes
    if batch:
        yield batch


def _code(failed: Mapping[str, Any]) -> str:
    return str(failed.get("Code", "")).rpartition(".")[2]
