"""What the outage cases of all suites share: a server that can be killed, behind a network that can be broken."""

from __future__ import annotations

import contextlib
import time
import unittest
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, Protocol, TypeVar

from penstock.errors import BrokerUnavailableError, DeliveryError, StoreUnavailableError, StreamError
from penstock.testing.tcp_proxy import TcpProxy

RECOVERY_S: Final = 120.0
"""How long a connection may take to work again once its server does, if its longest backoff is not known."""
BACKOFFS: Final = 4
"""How many of its longest backoffs it may take otherwise, and besides:"""
WORK_S: Final = 30.0
"""What connecting and catching up may take on a busy machine."""
RECONNECTIONS: Final = 20
"""How many connections it may open until it works again: one that tries without a backoff needs more."""
HANG_S: Final = 60.0
"""How long a call may take while the server does not answer."""
DELAY_S: Final = 0.1
PAUSE_S: Final = 0.1
UNAVAILABLE: Final = (BrokerUnavailableError, StreamError, StoreUnavailableError, DeliveryError, TimeoutError)
"""What a call may raise while the server cannot be reached. Callers try again."""

R = TypeVar("R")


class Outage(Protocol):
    """The server that the factory's backend connects to, through `proxy`."""

    @property
    def proxy(self) -> TcpProxy: ...

    def kill(self) -> None:
        """SIGKILL to the server."""

    def restart(self) -> None:
        """Start the killed server again, on the same data and the same address; returns when it answers."""


class OutageSuite(unittest.TestCase):
    """Mixed into a suite: `make_outage`, given by the author of a backend, returns the running server."""

    make_outage: ClassVar[Any] = None
    longest_backoff_s: ClassVar[float | None] = None

    def outage(self) -> Outage:
        """The server, which runs again with a whole network when the case ends, whatever the case did to it."""
        if self.make_outage is None:
            raise unittest.SkipTest("does not apply: no outage= was given, so there is no server to kill")
        outage: Outage = self.make_outage()
        self.addCleanup(outage.proxy.heal)
        return outage

    @property
    def recovery_s(self) -> float:
        """How long the backend may take to work again."""
        longest_s = self.longest_backoff_s
        return RECOVERY_S if longest_s is None else min(RECOVERY_S, BACKOFFS * longest_s + WORK_S)

    @contextlib.contextmanager
    def recovering(self, outage: Outage) -> Iterator[None]:
        """The server can be reached again: what is done here works after a few connections."""
        before = outage.proxy.connections
        yield
        made = outage.proxy.connections - before
        assert made <= RECONNECTIONS, f"it took {made} connections to work again, and {RECONNECTIONS} are allowed"

    def eventually(self, what: str, attempt: Callable[[], R], timeout_s: float | None = None) -> R:
        """The result of the first attempt that is not empty and does not say that the server is unavailable."""
        timeout_s = self.recovery_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + timeout_s
        last: object = "nothing came"
        while time.monotonic() < deadline_s:
            try:
                if result := attempt():
                    return result
            except UNAVAILABLE as error:
                last = repr(error)
            time.sleep(PAUSE_S)
        raise AssertionError(f"{what}: not within {timeout_s:g} s; last: {last}")


def answers_or_raises(call: Callable[[], R]) -> R | None:
    """Its result, or None when it says that the server is unavailable. Anything else it raises is raised."""
    try:
        return call()
    except UNAVAILABLE:
        return None
