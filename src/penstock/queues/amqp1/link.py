"""The connection of a queue: one thread with a link for sending and, once somebody receives, one for receiving."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
import ssl
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from penstock.abc import Outcome
from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    PenstockError,
    RecordTooLargeError,
    StaleDeliveryError,
    StreamError,
)
from penstock.queues.amqp1.limit_check import LimitCheck
from penstock.queues.amqp1.login import Login
from penstock.queues.amqp1.products import Product, product_of
from penstock.queues.amqp1.settings import Amqp1Settings
from penstock.queues.amqp1.wire import Wire, import_proton
from penstock.queues.pending import STORE_FULL, Pending, finish_lost, says_too_large, too_large
from penstock.queues.reconnecting import N, Numbered, ReconnectingLink
from penstock.streams.adapting.servers import Waker, tls_failure
from penstock.streams.url import Host

logger = logging.getLogger(__name__)

DELAYED_DELIVERY: Final = "DELAYED_DELIVERY"
"""The capability of a broker that delivers messages at a time of their own."""
_LONGEST_WAIT_S: Final = 1.0
_CLOSE_S: Final = 2.0
"""How long to wait for a broker's farewell."""
_LONGEST_REASON: Final = 1000
_TOO_LARGE: Final = "amqp:link:message-size-exceeded"
_UNREADABLE: Final = "amqp:decode-error"
_UNAUTHORIZED: Final = "amqp:unauthorized-access"
_NOT_FOUND: Final = "amqp:not-found"
_FAILED: Final = "amqp:internal-error"
"""The condition of a REJECT. Qpid cannot read one that is not AMQP's own."""
_FRAMING: Final = "amqp:connection:framing-error"
_FINAL: Final = (_UNAUTHORIZED, _NOT_FOUND, "amqp:not-allowed", "amqp:not-implemented", "amqp:invalid-field")
"""What a second attempt does not change."""


class Arrival(NamedTuple):
    """A delivery whose message is not decoded."""

    tag: int
    generation: int
    data: bytes


class _Ended(Exception):
    """The connection cannot be used any more. It is not raised to callers, who get `problem`."""

    def __init__(self, problem: PenstockError) -> None:
        super().__init__(str(problem))
        self.problem = problem


class Amqp1Link(ReconnectingLink[Arrival]):
    """The connection to a broker. Methods with a leading "on" or "do" run in its thread, as all of proton does."""

    def __init__(self, shown: str, hosts: Sequence[Host], queue: str, login: Login, settings: Amqp1Settings) -> None:
        super().__init__(
            shown,
            f"penstock-amqp1-{queue}",
            connect_timeout_s=settings.connect_timeout_s,
            answer_timeout_s=settings.send_timeout_s,
        )
        self.product = Product()
        self.offers_delays = False
        self._proton = import_proton()
        self._hosts = itertools.cycle(hosts)
        self._queue = queue
        self._login = login
        self._settings = settings
        self._waker = Waker()
        self._work: collections.deque[Callable[[], None]] = collections.deque()
        self._waiting: set[Pending] = set()
        """What callers wait for."""
        self._largest_bytes = 0
        """The broker's limit for messages; 0: none."""
        self._to_grant = 0
        """Deliveries that were taken, and may be replaced by others."""
        self._session: Any = None
        self._sender: Any = None
        self._receiver: Any = None
        self._no_sending: PenstockError | None = None
        """Why this user may not send."""
        self._awaited = 0
        """Links that the broker has not attached yet."""
        self._is_ready = False
        self._limit_check: LimitCheck | None = None
        """Of this connection; the first one asks."""
        self._is_confirming = False
        """The broker confirms settlements."""
        self._outbox: collections.deque[tuple[bytes, Pending]] = collections.deque()
        """Messages for which the broker has given no credit yet."""
        self._inbox: list[Arrival] = []
        self._unsettled: dict[int, Any] = {}
        """proton's deliveries, by their tags."""
        self._tags = itertools.count(1)
        self._sent_tags = itertools.count(1)
        self._written: list[Pending] = []
        """Settlements that are done once they are on the network."""
        events = self._proton.Event
        self._handlers: dict[Any, Callable[[Any], None]] = {
            events.CONNECTION_REMOTE_OPEN: self._on_open,
            events.CONNECTION_REMOTE_CLOSE: self._on_closed,
            events.SESSION_REMOTE_CLOSE: self._on_session_closed,
            events.LINK_REMOTE_OPEN: self._on_attached,
            events.LINK_REMOTE_CLOSE: self._on_detached,
            events.LINK_REMOTE_DETACH: self._on_detached,
            events.LINK_FLOW: self._on_flow,
            events.DELIVERY: self._on_delivery,
            events.TRANSPORT_ERROR: self._on_transport_error,
            events.TRANSPORT_TAIL_CLOSED: self._on_end_of_stream,
        }

    # Called by any thread.

    def settle(self, deliveries: Sequence[N], outcome: Outcome, keeps_rejected: bool, reason: str) -> list[N]:
        """Returns those that are late."""
        pending = Pending()
        with self._changed:
            self._check_open()
            ours, late = self._split(deliveries)
            if ours:
                tags = [delivery.tag for delivery in ours]
                state = self.product.state_for(outcome, keeps_rejected)
                self._submit(functools.partial(self._do_settle, tags, state, reason, pending), pending)
        if ours:
            pending.wait(self._settings.send_timeout_s, f"settling deliveries of {self._queue}")
        return late

    def held(self, deliveries: Sequence[Numbered]) -> set[int]:
        """The tags of those that can be settled."""
        with self._changed:
            generation = self._generation
            return {each.tag for each in deliveries if each.generation == generation and each.tag in self._held}

    def takes(self, message: bytes) -> bool:
        """Whether it is not too large for the broker."""
        return not self._largest_bytes or len(message) <= self._largest_bytes

    def send(self, messages: Sequence[bytes]) -> None:
        largest = max(messages, key=len)
        pending = Pending(len(messages), len(largest))
        with self._changed:
            self._check_open()
            if (problem := self._problem or self._no_sending) is not None:
                raise problem
            if not self.takes(largest):
                raise self._too_large(f"it has {len(largest)} bytes, and the broker takes {self._largest_bytes}")
            self._submit(functools.partial(self._do_send, messages, pending), pending)
        pending.wait(self._settings.send_timeout_s, f"sending to {self._queue}", STORE_FULL)

    def _consume(self) -> None:
        self._submit(self._do_consume)

    def _taken(self, count: int) -> None:
        self._to_grant += count
        if self._to_grant * 2 >= self._settings.prefetch or not self._arrived:
            self._submit(self._do_grant)

    def _end(self) -> None:
        self._waker.wake()

    def _submit(self, work: Callable[[], None], pending: Pending | None = None) -> None:
        """Have the thread do it. When the connection is lost, it is not done, and `pending` is told."""
        if pending is not None:
            self._waiting.add(pending)
        self._work.append(work)
        self._waker.wake()

    # Called by the connection's thread.

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._waker.close()

    def _serve(self) -> None:
        host = next(self._hosts)
        try:
            wire = Wire(host.name, host.port, self._login, self._waker, self._settings.connect_timeout_s)
        except ConfigError as error:  # the password cannot be read at the moment
            self._lost(BrokerUnavailableError(str(error)))
            return
        except (OSError, self._proton.ProtonException) as error:
            self._lost(self._unreachable(error))
            return
        problem: PenstockError = self._unreachable("the connection was closed")
        try:
            self._converse(wire)
        except _Ended as ended:
            problem = ended.problem
        except (OSError, self._proton.ProtonException) as error:
            problem = self._unreachable(error)
        except Exception as error:  # the caller must hear of it, and the thread go on
            logger.exception("the connection to %s is replaced after an error of ours", self._shown)
            problem = self._unreachable(error)
        finally:
            wire.close()
            self._lost(problem)

    def _converse(self, wire: Wire) -> None:
        """Serve the connection until it is closed. Its loss is an error."""
        ready_by_s = time.monotonic() + self._settings.connect_timeout_s
        closed_by_s = 0.0
        while True:
            for event in wire.events():
                if self._limit_check is not None and self._limit_check.takes(event.context):
                    continue
                if handler := self._handlers.get(event.type):
                    handler(event.context)
            if self._inbox:
                arrived, self._inbox = self._inbox, []
                self._deliver(arrived)
            while self._work:
                self._work.popleft()()
            now_s = time.monotonic()
            if self._is_closing and not closed_by_s:
                closed_by_s = now_s + _CLOSE_S
                self._do_close(wire)
            is_all_written = wire.write()
            if is_all_written and self._written:
                self._finish_written()
            if closed_by_s and now_s > closed_by_s:
                return
            if not self._is_ready and now_s > ready_by_s:
                raise _Ended(self._no_answer())
            wire.wait(not is_all_written, _LONGEST_WAIT_S)

    def _on_open(self, connection: Any) -> None:
        self.product = product_of(connection.remote_properties)
        if self.product.problem:
            raise _Ended(
                BrokerUnavailableError(f"{self._shown} cannot be used: {self.product.problem}", retriable=False)
            )
        self.offers_delays = DELAYED_DELIVERY in (connection.remote_offered_capabilities or ())
        self._session = connection.session()
        self._session.open()
        self._no_sending = None
        sender = self._sender = self._session.sender(f"penstock-{uuid.uuid4().hex}")
        self._prepare(sender.target)
        sender.snd_settle_mode = sender.SND_UNSETTLED
        sender.open()
        self._awaited += 1
        if self._is_consuming:
            self._do_consume()

    def _do_consume(self) -> None:
        if self._session is None or self._receiver is not None:
            return
        receiver = self._receiver = self._session.receiver(f"penstock-{uuid.uuid4().hex}")
        self._prepare(receiver.source)
        if self.product.confirms_settlements:
            receiver.rcv_settle_mode = receiver.RCV_SECOND
        receiver.open()
        self._awaited += 1

    def _prepare(self, terminus: Any) -> None:
        """Ask for the queue. A broker that creates it knows by the capability that it is not a topic."""
        terminus.address = self.product.address_of(self._queue)
        if self.product.declares_as_asked:
            terminus.durability = terminus.CONFIGURATION
        terminus.capabilities.put_object(self._proton.symbol("queue"))

    def _on_attached(self, link: Any) -> None:
        terminus = link.remote_target if link.is_sender else link.remote_source
        if terminus.type == terminus.UNSPECIFIED:
            return  # it was refused: the reason follows
        if link.is_sender:
            self._largest_bytes = link.remote_max_message_size
            self.offers_delays = self.offers_delays or DELAYED_DELIVERY in _symbols(terminus.capabilities)
        else:
            self._is_confirming = link.remote_rcv_settle_mode == link.RCV_SECOND
            with self._changed:
                self._to_grant = self._settings.prefetch
        self._attached()

    def _attached(self) -> None:
        """Deliveries come only when the queue is ready: they belong to its new generation."""
        self._awaited -= 1
        if self._awaited:
            return
        if not self._is_ready:
            self._is_ready = True
            if not self._generation and self.product.may_limit_deliveries and not self._queue.startswith("/"):
                connection = self._session.connection
                self._limit_check = LimitCheck(
                    connection, self._shown, self._queue, self._settings, self.product.version
                )
            self._ready()
        self._do_grant()

    def _on_detached(self, link: Any) -> None:
        condition = link.remote_condition
        if link.is_sender and not self._is_ready and _is_permission(condition):
            self._no_sending = self._refused(condition, is_link=True)
            self._sender = None
            self._attached()
            return
        raise _Ended(self._refused(condition, is_link=True))

    def _on_closed(self, connection: Any) -> None:
        raise _Ended(self._refused(connection.remote_condition))

    def _on_session_closed(self, session: Any) -> None:
        """RabbitMQ ends the session where others end a link."""
        raise _Ended(self._refused(session.remote_condition, is_link=True))

    def _on_transport_error(self, transport: Any) -> None:
        condition = transport.condition
        if condition is not None and condition.name == _UNAUTHORIZED:
            said = f" ({self._login.mechanism}): {condition.description}"
            raise _Ended(self._login_refused(said, self._settings))
        if condition is not None and condition.name == _FRAMING:
            problem = f"{self._shown} does not answer as an AMQP 1.0 broker does: {condition.description}"
            raise _Ended(BrokerUnavailableError(problem, retriable=self._generation > 0))
        raise _Ended(self._unreachable("no reason given" if condition is None else condition.description))

    def _on_end_of_stream(self, transport: Any) -> None:
        raise _Ended(self._unreachable("the connection was closed"))

    def _on_flow(self, link: Any) -> None:
        if self._outbox and link.is_sender:
            self._send_more()

    def _do_send(self, messages: Sequence[bytes], pending: Pending) -> None:
        self._outbox.extend((message, pending) for message in messages)
        self._send_more()

    def _send_more(self) -> None:
        sender = self._sender
        credit = sender.credit
        while credit > 0 and self._outbox:
            message, pending = self._outbox.popleft()
            if pending.is_abandoned or pending.error is not None:
                continue
            delivery = sender.delivery(str(next(self._sent_tags)))
            delivery.waiter = pending
            sender.stream(message)
            sender.advance()
            credit -= 1

    def _on_delivery(self, delivery: Any) -> None:
        if delivery.readable:
            if not delivery.partial:
                receiver = self._receiver
                data = bytes(receiver.recv(delivery.pending))
                receiver.advance()
                tag = next(self._tags)
                self._unsettled[tag] = delivery
                self._inbox.append(Arrival(tag, self._generation, data))
        elif delivery.aborted:
            delivery.settle()
            self._receiver.flow(1)
        elif delivery.updated and delivery.settled:
            self._on_settled(delivery)

    def _on_settled(self, delivery: Any) -> None:
        """The broker is done with a message that we have sent, or with a delivery that we have settled."""
        waiter: Pending | None = getattr(delivery, "waiter", None)
        if waiter is not None:
            self._finish(waiter, self._failure(delivery) if delivery.link.is_sender else None)
        else:  # it took a delivery back
            self._unsettled = {tag: each for tag, each in self._unsettled.items() if each != delivery}
        delivery.settle()

    def _failure(self, delivery: Any) -> PenstockError | None:
        """Why the broker has not stored a message; None if it has."""
        state = delivery.remote_state
        if state == delivery.ACCEPTED:
            return None
        condition = delivery.remote.condition
        if _is_too_large(condition):
            return self._refused(condition, is_link=True)
        name = getattr(state, "name", str(state)).lower()
        reason = "" if condition is None else f": {condition.description or condition.name}"
        return StreamError(f"{self._shown} could not store a message in {self._queue}, it was {name}{reason}")

    def _do_settle(self, tags: Sequence[int], state: str, reason: str, pending: Pending) -> None:
        code = getattr(self._proton.Delivery, state)
        deliveries = [self._unsettled.pop(tag) for tag in tags if tag in self._unsettled]
        if not deliveries:
            self._finish(pending, StaleDeliveryError(f"the connection of deliveries of {self._queue} was lost"))
            return
        pending.left = len(deliveries) if self._is_confirming else 1
        for delivery in deliveries:
            if state == "MODIFIED":
                delivery.local.failed = True
            elif state == "REJECTED":
                delivery.local.condition = self._proton.Condition(_FAILED, reason[:_LONGEST_REASON])
            delivery.update(code)
            if self._is_confirming:
                delivery.waiter = pending
            else:
                delivery.settle()
        if not self._is_confirming:
            self._written.append(pending)

    def _finish_written(self) -> None:
        done, self._written = self._written, []
        for pending in done:
            self._finish(pending)

    def _finish(self, pending: Pending, error: PenstockError | None = None) -> None:
        pending.finish(error)
        if pending.done.is_set():
            self._waiting.discard(pending)

    def _do_grant(self) -> None:
        with self._changed:
            count, self._to_grant = self._to_grant, 0
        if self._receiver is not None and count:
            self._receiver.flow(count)

    def _do_close(self, wire: Wire) -> None:
        """What is not settled is released, which brokers do not count as a delivery; then the connection is closed."""
        for delivery in self._unsettled.values():
            delivery.update(delivery.RELEASED)
            delivery.settle()
        self._unsettled.clear()
        wire.connection.close()

    def _lost(self, problem: PenstockError) -> None:
        """The connection cannot be used any more: tell everybody who waits."""
        self._session = self._sender = self._receiver = None
        self._is_ready, self._awaited, self._limit_check = False, 0, None
        for store in (self._unsettled, self._outbox, self._inbox, self._written):
            store.clear()
        with self._changed:
            self._work.clear()
            waiting, self._waiting = self._waiting, set()
            replaced = self._unreachable("the connection is being replaced")
            self._forget(problem if isinstance(problem, BrokerUnavailableError) else replaced)
        finish_lost(waiting, problem, replaced)

    def _refused(self, condition: Any, is_link: bool = False) -> PenstockError:
        """What the broker said when it closed a link, the session or the connection."""
        if condition is None:
            return self._unreachable("it has closed the connection")
        text = f"{condition.description or 'no reason given'} ({condition.name})"
        if condition.name == _NOT_FOUND and is_link:
            return BrokerUnavailableError(
                f"there is no queue {self._queue!r} at {self._shown}: create it. It said: {text}",
                retriable=False,
            )
        if _is_permission(condition):
            advice = "check the user's permissions" if self._login.user else "give a user, as in amqp1://USER:PASSWORD@"
            return BrokerUnavailableError(
                f"{self._shown} refused access to {self._queue!r}: {advice}. It said: {text}", retriable=False
            )
        is_unreadable = self.product.hides_limit and condition.name == _UNREADABLE
        if _is_too_large(condition) or (is_unreadable and any(each.largest_bytes for each in self._waiting)):
            return self._too_large(text)
        return BrokerUnavailableError(f"{self._shown} refused: {text}", retriable=condition.name not in _FINAL)

    def _too_large(self, text: str) -> RecordTooLargeError:
        return too_large(self._queue, self._shown, text, self.product.size_remedy)

    def _unreachable(self, reason: object) -> BrokerUnavailableError:
        if isinstance(reason, TimeoutError):  # also of a TLS handshake that a port without TLS does not answer
            return self._no_answer()
        if isinstance(reason, ssl.SSLError):
            return tls_failure(self._shown, reason, "amqp1")
        text = str(reason) or type(reason).__name__
        return BrokerUnavailableError(f"the AMQP 1.0 broker at {self._shown} cannot be reached: {text}. Is it running?")


def _is_permission(condition: Any) -> bool:
    """Whether a user is not allowed to do something. Artemis says so only in its text when it cannot create a queue."""
    if condition is None:
        return False
    return condition.name == _UNAUTHORIZED or "does not have permission" in (condition.description or "")


def _is_too_large(condition: Any) -> bool:
    """Whether a message was over a limit. RabbitMQ 3 and Artemis say so only in their text."""
    return condition is not None and (condition.name == _TOO_LARGE or says_too_large(condition.description or ""))


def _symbols(data: Any) -> list[str]:
    """The capabilities in proton's form: one, several, or none."""
    if not data.next():
        return []
    found = data.get_object()
    data.rewind()
    return [str(found)] if isinstance(found, str) else [str(each) for each in getattr(found, "elements", found)]
