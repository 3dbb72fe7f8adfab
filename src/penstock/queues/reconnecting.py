"""What the connections of queues share: one thread that keeps a connection, and reconnects with pauses."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from penstock.errors import BrokerUnavailableError, ConnectionClosedError, PenstockError
from penstock.model.retry import Retry
from penstock.streams.backend_url import (
    BackendUrl,
    PasswordSettings,
    check_counts,
    check_key_has_certificate,
    check_positive,
    check_tls,
)

LONGEST_BACKOFF_S: Final = 5.0
"""The longest pause between two attempts to reconnect."""
_AGAIN: Final = Retry(None, max_delay_s=LONGEST_BACKOFF_S, jitter=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings(PasswordSettings):
    """Settings that every URL of such a queue may have."""

    prefetch: int = 200
    """How many messages the broker sends ahead of `receive`. More is faster; fewer are shared more evenly between
    consumers, and fewer come again, or are counted as delivered, when this one dies."""
    heartbeat_s: float = 10.0
    """A broker that is silent for twice as long is considered dead."""
    connect_timeout_s: float = 10.0
    """How long opening the queue waits for the broker."""
    send_timeout_s: float = 60.0
    """How long `send` and `settle` wait for the broker's answer."""
    ca_file: str | None = None
    """For TLS: the certificates to trust, in PEM. None: those of the system."""
    cert_file: str | None = None
    """For TLS: this client's certificate, in PEM, with `key_file`."""
    key_file: str | None = None
    """For TLS: the key of this client's certificate, in PEM."""

    def __post_init__(self) -> None:
        check_counts(self, "prefetch")
        check_positive(self, "heartbeat_s", "connect_timeout_s", "send_timeout_s")
        check_key_has_certificate(self, "key_file", "cert_file")

    def check_tls(self, url: BackendUrl, tls_scheme: str) -> None:
        """Refuse certificates for a connection that would not use them."""
        check_tls(url, self, tls_scheme, "ca_file", "cert_file", "key_file")


class Numbered(Protocol):
    """A delivery by its number on one connection."""

    @property
    def tag(self) -> int: ...

    @property
    def generation(self) -> int: ...


D = TypeVar("D", bound=Numbered)
N = TypeVar("N", bound=Numbered)


class ReconnectingLink(Generic[D]):
    """A thread with a connection to a queue, which reconnects until `close`.

    A subclass says in `_serve` how to connect and serve a connection until it is lost, and calls `_ready` and `_lost`.
    The state that its thread and callers use is guarded by `_changed`.
    """

    def __init__(self, shown: str, thread_name: str, *, connect_timeout_s: float, answer_timeout_s: float) -> None:
        self._shown = shown
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._changed = threading.Condition()
        self._arrived: collections.deque[D] = collections.deque()
        """Deliveries that nobody has taken."""
        self._held: dict[int, None] = {}
        """The tags of deliveries that arrived on this connection and are not settled, ascending."""
        self._problem: PenstockError | None = self._no_answer()
        """Why the queue cannot be used now; None while it can."""
        self._generation = 0
        """How many connections there were."""
        self._is_closing = False
        self._is_consuming = False
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def _no_answer(self) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"{self._shown} gave no answer within {self._connect_timeout_s:g} s: is it running, "
            "and is it the right port?"
        )

    def start(self) -> None:
        """Start the thread, and return when the queue can be used. If it cannot, close and raise why."""
        self._thread.start()
        deadline_s = time.monotonic() + self._connect_timeout_s
        with self._changed:
            while self._problem is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._is_hopeless():
                    break
                self._changed.wait(left_s)
            problem = self._problem
        if problem is not None:
            self.close()
            raise problem

    def take(self, limit: int, wait_s: float) -> list[D]:
        until_s = time.monotonic() + wait_s
        with self._changed:
            self._check_open()
            if not self._is_consuming:
                self._is_consuming = True
                self._consume()
            while not self._arrived:
                self._check_open()
                left_s = until_s - time.monotonic()
                if self._problem is not None and (left_s <= 0 or self._is_hopeless()):
                    raise self._problem
                if left_s <= 0:
                    return []
                self._changed.wait(left_s)
            taken = [self._arrived.popleft() for _ in range(min(limit, len(self._arrived)))]
            self._taken(len(taken))
            return taken

    def close(self) -> None:
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._end()
            self._changed.notify_all()
        self._thread.join(self._answer_timeout_s)

    def _login_refused(self, text: str, settings: LinkSettings) -> BrokerUnavailableError:
        """The error for a refused login. A password outside the URL may be replaced while the connection is lost."""
        may_pass = settings.password_may_change and self._generation > 0
        return BrokerUnavailableError(f"{self._shown} refused the user or the password{text}", retriable=may_pass)

    def _is_hopeless(self) -> bool:
        """Whether the problem cannot pass by waiting."""
        return self._problem is not None and not getattr(self._problem, "retriable", False)

    def _check_open(self) -> None:
        if self._is_closing:
            raise ConnectionClosedError(f"the connection to {self._shown} is closed")

    def _split(self, deliveries: Sequence[N]) -> tuple[list[N], list[N]]:
        """Divide deliveries into those that can be settled, which are no longer held, and those that are late."""
        ours: list[N] = []
        late: list[N] = []
        for delivery in deliveries:
            if delivery.generation == self._generation and delivery.tag in self._held:
                del self._held[delivery.tag]
                ours.append(delivery)
            else:
                late.append(delivery)
        return ours, late

    # What a subclass defines. All but `_serve` are called with `_changed` held.

    def _serve(self) -> None:
        """Connect, and serve the connection until it is lost or `close` is called. Runs in the thread."""
        raise NotImplementedError

    def _consume(self) -> None:
        """Ask the broker for deliveries, on this connection or the next."""
        raise NotImplementedError

    def _taken(self, count: int) -> None:
        """Called when this number of deliveries was taken."""

    def _end(self) -> None:
        """Make `_serve` return."""
        raise NotImplementedError

    # Called by the thread.

    def _run(self) -> None:
        delays_s = _AGAIN.delays_s()
        while not self._is_closing:
            generation = self._generation
            self._serve()
            if self._generation != generation:
                delays_s = _AGAIN.delays_s()
            with self._changed:
                if not self._is_closing:
                    self._changed.wait_for(lambda: self._is_closing, next(delays_s))

    def _ready(self) -> None:
        """Note that the queue can be used."""
        with self._changed:
            self._generation += 1
            self._problem = None
            self._changed.notify_all()

    def _deliver(self, deliveries: list[D]) -> None:
        with self._changed:
            self._arrived.extend(deliveries)
            self._held.update(dict.fromkeys(delivery.tag for delivery in deliveries))
            self._changed.notify_all()

    def _forget(self, problem: PenstockError) -> None:
        """Note that the connection is lost, and that nothing it delivered can be settled. The caller holds
        `_changed`."""
        self._arrived.clear()
        self._held.clear()
        self._problem = problem
        self._changed.notify_all()
