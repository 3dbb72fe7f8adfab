"""The connection of a queue to RabbitMQ: pika's, in one thread, with a channel for sending and one for receiving."""

from __future__ import annotations

import functools
import itertools
import logging
import ssl
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.abc import Outcome
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    PenstockError,
    RecordTooLargeError,
    StaleDeliveryError,
    StreamError,
)
from penstock.model import Record
from penstock.queues.amqp.declaring import Declaring
from penstock.queues.amqp.messages import decoded
from penstock.queues.amqp.settings import AmqpSettings
from penstock.queues.pending import Pending, finish_lost, says_too_large, too_large
from penstock.queues.reconnecting import ReconnectingLink
from penstock.streams.adapting.servers import import_extra, tls_context, tls_failure
from penstock.streams.backend_url import BackendUrl

_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 406
_COUNT_S: Final = 5.0
"""How long counting the messages of the queue may take."""

_SURELY_FITS_BYTES: Final = 2_000
"""Of headers. RabbitMQ takes frames of 4,096 bytes or more."""
_FRAME_BYTES: Final = 300
"""What a frame of properties has besides the headers: the message id, the sizes and the ends."""

Message = tuple[bytes, dict[str, Any] | None]
"""Body and headers."""


@dataclass(frozen=True, slots=True, eq=False)
class AmqpDelivery:
    """`abc.Delivery`. Deliveries of a lost channel, an earlier `generation`, cannot be settled."""

    record: Record
    attempt: int
    tag: int
    generation: int


class AmqpLink(ReconnectingLink[AmqpDelivery]):
    """The connection to RabbitMQ. Methods with a leading "on" or "do" run in its thread."""

    def __init__(self, url: BackendUrl, vhost: str, queue: str, settings: AmqpSettings) -> None:
        super().__init__(
            url.shown,
            f"penstock-amqp-{queue}",
            connect_timeout_s=settings.connect_timeout_s,
            answer_timeout_s=settings.send_timeout_s,
        )
        self._pika = _import_pika()
        self._url = url
        self._queue = queue
        self._settings = settings
        self._parameters = self._connection_parameters(url, vhost)
        self._inbox: list[AmqpDelivery] = []
        """Deliveries of which receivers have not heard yet."""
        self._refusal: PenstockError | None = None
        """Why the broker closed a channel of this connection."""
        self._blocked = ""
        """Why the broker takes no messages at the moment."""
        self._has_opened = False
        """Whether the broker has accepted the present connection."""
        self._connection: Any = None
        self._channel: Any = None
        self._publisher: Any = None
        self._unconfirmed: dict[int, Pending] = {}
        self._tags = itertools.count(1)
        self._sender = ""
        """Makes message ids unique, together with the tag of the confirm."""
        self._declaring = Declaring(self._shown, vhost, queue, settings)
        self._syncing: list[Pending] = []
        """Settlements that the request under way will confirm."""
        self._to_sync: list[Pending] = []
        """Settlements that came after it."""

    # Called by any thread.

    def settle(self, deliveries: Sequence[AmqpDelivery], outcome: Outcome) -> list[AmqpDelivery]:
        """Returns those that are late."""
        pending = Pending()
        with self._changed:
            self._check_open()
            ours, late = self._split(deliveries)
            if ours:
                tags = [delivery.tag for delivery in ours]
                last = max(tags)
                if outcome is Outcome.DONE and next(iter(self._held), last + 1) > last:
                    tags, is_multiple = [last], True  # nothing before it is held: one frame acknowledges all
                else:
                    is_multiple = False
                self._submit(functools.partial(self._do_settle, self._generation, tags, is_multiple, outcome, pending))
        if ours:
            pending.wait(self._settings.send_timeout_s, f"settling deliveries of {self._queue}")
        return late

    def send(self, messages: Sequence[Message]) -> None:
        pending = Pending(len(messages), max(len(body) for body, _ in messages))
        with self._changed:
            self._check_open()
            if self._problem is not None:
                raise self._problem
            if self._blocked:
                raise self._full()
            self._submit(functools.partial(self._do_send, messages, pending))
        try:
            pending.wait(self._settings.send_timeout_s, f"sending to {self._queue}")
        except BrokerUnavailableError as error:
            raise self._full() if self._blocked else error from None

    def waiting(self) -> int:
        counted = Pending()
        counts: list[int] = []
        with self._changed:
            self._check_open()
            if self._problem is not None:
                raise self._problem
            ahead = len(self._arrived)
            self._submit(functools.partial(self._do_count, counts, counted))
        counted.wait(_COUNT_S, f"counting the messages of {self._queue}")
        return ahead + counts[0]

    def _consume(self) -> None:
        self._submit(self._do_consume)

    def _end(self) -> None:
        self._submit(self._do_close)

    def _submit(self, work: Callable[[], None]) -> None:
        """Have the connection's thread do it. While there is no connection, it is not done, and callers are told."""
        connection = self._connection
        if connection is not None:
            connection.ioloop.add_callback_threadsafe(work)

    # Called by the connection's thread.

    def _serve(self) -> None:
        self._refusal = None
        self._has_opened = False
        try:
            self._parameters.credentials = self._credentials()
            self._connection = self._pika.SelectConnection(
                self._parameters,
                on_open_callback=self._on_open,
                on_open_error_callback=self._on_open_error,
                on_close_callback=self._on_close,
            )
            self._connection.ioloop.start()
        except ConfigError as error:  # the password cannot be read at the moment
            self._lost(BrokerUnavailableError(str(error)))
        except Exception as error:  # pika raises what it likes; the caller must hear of it, and the thread go on
            self._lost(self._unavailable(error))
        finally:
            if self._connection is not None:
                self._connection.ioloop.close()
                self._connection = None

    def _on_open(self, connection: Any) -> None:
        self._has_opened = True
        self._blocked = ""
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        connection.channel(on_open_callback=self._on_publisher)

    def _on_blocked(self, connection: Any, frame: Any) -> None:
        self._blocked = str(frame.method.reason)

    def _on_unblocked(self, connection: Any, frame: Any) -> None:
        self._blocked = ""

    def _on_open_error(self, connection: Any, error: BaseException) -> None:
        self._lost(self._unavailable(error))
        connection.ioloop.stop()

    def _on_close(self, connection: Any, reason: BaseException) -> None:
        self._lost(self._refusal or self._unavailable(reason))
        connection.ioloop.stop()

    def _on_publisher(self, channel: Any) -> None:
        """The channel for sending is open: declare the queue there, then ask for confirms."""
        channel.add_on_close_callback(self._on_publisher_closed)
        channel.queue_declare(self._queue, passive=True, callback=lambda _: self._on_found(channel))

    def _on_found(self, channel: Any) -> None:
        self._declaring.check(channel.connection, lambda: self._confirm(channel))

    def _on_publisher_closed(self, channel: Any, reason: Any) -> None:
        """A channel ends with its connection, or by a request that the broker refused."""
        connection = channel.connection
        if not connection.is_open:
            return
        code, text = getattr(reason, "reply_code", 0), getattr(reason, "reply_text", str(reason))
        if code == _NOT_FOUND and self._publisher is None and self._settings.declare:
            self._refusal = self._declaring.declare(connection, self._on_publisher_closed, self._confirm)
            if self._refusal is not None:
                connection.close()
            return
        if code == _NOT_FOUND:
            self._refusal = BrokerUnavailableError(
                f"there is no queue {self._queue!r} at {self._shown}: create it, or omit declare=false", retriable=False
            )
        elif says_too_large(text):
            self._refusal = too_large(self._queue, self._shown, text, "raise max_message_size of RabbitMQ")
        else:
            is_final = code == _PRECONDITION_FAILED
            self._refusal = BrokerUnavailableError(f"{self._shown} refused: {text}", retriable=not is_final)
        connection.close()

    def _confirm(self, channel: Any) -> None:
        self._tags = itertools.count(1)
        self._sender = uuid.uuid4().hex
        channel.add_on_return_callback(self._on_returned)
        channel.confirm_delivery(
            self._on_confirm, callback=lambda _: channel.connection.channel(on_open_callback=self._on_channel)
        )
        self._publisher = channel

    def _on_channel(self, channel: Any) -> None:
        """The channel for receiving is open: the queue can be used."""
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(lambda _: channel.close(_NOT_FOUND, "the queue was deleted"))
        channel.basic_qos(prefetch_count=self._settings.prefetch)
        self._channel = channel
        self._ready()
        if self._is_consuming:
            self._do_consume()

    def _on_channel_closed(self, channel: Any, reason: Any) -> None:
        if channel.connection.is_open:
            self._refusal = BrokerUnavailableError(f"{self._shown} closed the channel of {self._queue}: {reason}")
            channel.connection.close()

    def _do_consume(self) -> None:
        if self._channel is not None and not self._channel.consumer_tags:
            self._channel.basic_consume(self._queue, self._on_message)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """Messages of one read of the socket are delivered together."""
        record, attempt = decoded(self._queue, method, properties, body)
        if not self._inbox:
            self._submit(self._do_deliver)
        self._inbox.append(AmqpDelivery(record, attempt, method.delivery_tag, self._generation))

    def _do_deliver(self) -> None:
        arrived, self._inbox = self._inbox, []
        self._deliver(arrived)

    def _do_settle(
        self, generation: int, tags: Sequence[int], is_multiple: bool, outcome: Outcome, pending: Pending
    ) -> None:
        channel = self._channel
        if channel is None or generation != self._generation:
            pending.finish(StaleDeliveryError(f"the connection of deliveries of {self._queue} was lost"))
            return
        for tag in tags:
            if outcome is Outcome.DONE:
                channel.basic_ack(tag, is_multiple)
            else:
                channel.basic_reject(tag, requeue=outcome is not Outcome.REJECT)
        self._to_sync.append(pending)
        if not self._syncing:
            self._sync()

    def _sync(self) -> None:
        """The broker works through a channel in order: its answer says that what was settled before has arrived."""
        self._syncing, self._to_sync = self._to_sync, []
        self._channel.basic_qos(prefetch_count=self._settings.prefetch, callback=self._on_synced)

    def _on_synced(self, _: Any) -> None:
        done, self._syncing = self._syncing, []
        for pending in done:
            pending.finish()
        if self._to_sync:
            self._sync()

    def _do_send(self, messages: Sequence[Message], pending: Pending) -> None:
        publisher = self._publisher
        if publisher is None or not publisher.is_open:
            pending.finish(self._problem or self._unavailable("the connection was lost"))
            return
        try:
            every = [(body, self._properties(headers)) for body, headers in messages]
        except RecordTooLargeError as error:  # before any is sent
            pending.finish(error)
            return
        for body, properties in every:
            tag = next(self._tags)
            self._unconfirmed[tag] = pending
            properties.message_id = f"{self._sender}-{tag}"
            publisher.basic_publish("", self._queue, body, properties, mandatory=True)

    def _properties(self, headers: dict[str, Any] | None) -> Any:
        """Those of a message, without its id. They go into one frame, and RabbitMQ ends a connection over a frame that
        is larger than was agreed."""
        properties = self._pika.BasicProperties(headers=headers, delivery_mode=2)
        if headers and len(headers) + sum(map(_rough_bytes, headers.values())) > _SURELY_FITS_BYTES:
            size_bytes = sum(map(len, properties.encode())) + _FRAME_BYTES
            most_bytes = self._connection.params.frame_max
            if size_bytes > most_bytes:
                text = f"its headers and key need a frame of {size_bytes} bytes, and {most_bytes} are allowed"
                raise too_large(self._queue, self._shown, text, "raise frame_max of RabbitMQ, up to 131072")
        return properties

    def _do_count(self, counts: list[int], counted: Pending) -> None:
        """Declaring a queue that exists changes nothing, and the answer has the number of its messages."""
        publisher = self._publisher
        if publisher is None or not publisher.is_open:
            counted.finish(self._problem or self._unavailable("the connection was lost"))
            return

        def take(frame: Any) -> None:
            counts.append(frame.method.message_count)
            counted.finish()

        publisher.queue_declare(self._queue, passive=True, callback=take)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        is_stored = isinstance(method, self._pika.spec.Basic.Ack)
        error = (
            None if is_stored else StreamError(f"{self._shown} could not store a message in {self._queue}: send again")
        )
        last = method.delivery_tag
        tags = [tag for tag in self._unconfirmed if tag <= last] if method.multiple else [last]
        for tag in tags:
            if pending := self._unconfirmed.pop(tag, None):
                pending.finish(error)

    def _on_returned(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """The queue is gone. The broker confirms the message after this."""
        if self._unconfirmed:
            pending = next(iter(self._unconfirmed.values()))
            pending.finish(
                StreamError(f"the queue {self._queue!r} at {self._shown} was deleted: a message was returned")
            )

    def _do_close(self) -> None:
        if self._connection is None:
            return
        if self._connection.is_open:
            self._connection.close()
        elif not self._connection.is_closing:
            self._connection.ioloop.stop()

    def _lost(self, problem: PenstockError) -> None:
        """The connection cannot be used any more: tell everybody who waits."""
        with self._changed:
            waiting = {*self._unconfirmed.values(), *self._syncing, *self._to_sync}
            self._unconfirmed, self._syncing, self._to_sync = {}, [], []
            self._channel = self._publisher = None
            self._inbox.clear()
            replaced = self._unavailable("the connection is being replaced")
            self._forget(problem if isinstance(problem, BrokerUnavailableError) else replaced)
        finish_lost(waiting, problem, replaced)

    def _unavailable(self, reason: object) -> BrokerUnavailableError:
        exceptions = self._pika.exceptions
        if isinstance(reason, exceptions.ProbableAuthenticationError):
            return self._login_refused("", self._settings)
        if isinstance(reason, exceptions.ProbableAccessDeniedError):
            return BrokerUnavailableError(
                f"{self._shown} refused access to the virtual host: check its name and the user's permissions",
                retriable=False,
            )
        if isinstance(reason, exceptions.ConnectionBlockedTimeout):
            return self._full()
        cause = _cause(reason)
        text = str(cause) or type(cause).__name__
        is_tls = self._parameters.ssl_options is not None
        if isinstance(cause, ssl.SSLError) or (is_tls and "SSLError" in text):
            return tls_failure(self._shown, cause, "amqp")
        advice = "Is it running?"
        was_closed = isinstance(cause, exceptions.StreamLostError | exceptions.IncompatibleProtocolError)
        if was_closed and not self._has_opened:
            advice = "Is it running, and is the port right?" + ("" if is_tls else " If it is one for TLS, use amqps://")
        return BrokerUnavailableError(f"RabbitMQ at {self._shown} cannot be reached: {text}. {advice}")

    def _full(self) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"RabbitMQ at {self._shown} takes no messages now: {self._blocked or 'low on resources'}. Free disk "
            "space or memory there, or change disk_free_limit or vm_memory_high_watermark"
        )

    def _credentials(self) -> Any:
        password = self._settings.password_of(self._url)
        return self._pika.PlainCredentials(self._url.user or "guest", password or "guest")

    def _connection_parameters(self, url: BackendUrl, vhost: str) -> Any:
        settings = self._settings
        settings.check_tls(url, "amqps")
        tls = None
        if url.scheme == "amqps":
            context = tls_context(url.shown, settings.ca_file, settings.cert_file, settings.key_file)
            tls = self._pika.SSLOptions(context, url.host.name)
        return self._pika.ConnectionParameters(
            host=url.host.name,
            port=url.host.port,
            virtual_host=vhost,
            credentials=self._credentials(),
            heartbeat=settings.heartbeat_s,
            connection_attempts=1,
            socket_timeout=settings.connect_timeout_s,
            stack_timeout=settings.connect_timeout_s,
            blocked_connection_timeout=settings.send_timeout_s,
            ssl_options=tls,
            client_properties={"connection_name": settings.client_id},
        )


def _rough_bytes(value: Any) -> int:
    values = value if isinstance(value, list) else [value]
    return sum(len(each) if isinstance(each, bytes) else 8 for each in values)


def _cause(reason: object) -> object:
    """The first error of those that pika has wrapped into each other."""
    while isinstance(reason, Exception):
        inner = [*getattr(reason, "exceptions", ()), getattr(reason, "exception", None), *reason.args]
        found = next((each for each in inner if isinstance(each, Exception)), None)
        if found is None:
            break
        reason = found
    return reason


def _import_pika() -> Any:
    pika = import_extra("pika", "RabbitMQ", "amqp")
    logging.getLogger("pika").setLevel(logging.CRITICAL)  # it logs tracebacks of what is raised to our callers
    return pika
