"""What the outage cases of all suites share: a server that can be killed, behind a network that can be broken."""

from __future__ import annotations

import time
import unittest
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol, TypeVar

from penstock.errors import BrokerUnavailableError, DeliveryError, StoreUnavailableError, StreamError
from penstock.testing.tcp_proxy import TcpProxy

RECOVERY_S: Final = 120.0
"""How long a connection may take to work again once its server does."""
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

    def outage(self) -> Outage:
        """The server, which runs again with a whole network when the case ends, whatever the case did to it."""
        if self.make_outage is None:
            raise unittest.SkipTest("does not apply: no outage= was given, so there is no server to kill")
        outage: Outage = self.make_outage()
        self.addCleanup(outage.proxy.heal)
        return outage

    def eventually(self, what: str, attempt: Callable[[], R], timeout_s: float = RECOVERY_S) -> R:
        """The result of the first attempt that is not empty and does not say that the server is unavailable."""
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
