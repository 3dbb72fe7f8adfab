"""Who may sign in: on loopback no login is needed unless a password or token is set; elsewhere it always is.

The password is kept as an scrypt hash, the token as a digest; both are compared in constant time. Sessions live in
memory: after a restart, everyone signs in again. Failed attempts make their address wait, longer every time, and only
a few passwords are tried at once, as each attempt deliberately costs some milliseconds of CPU.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.errors import ConfigError, SignInError
from penstock.model.addresses import is_loopback

PASSWORD_LENGTH: Final = 8
TOKEN_LENGTH: Final = 20
SESSION_S: Final = 12 * 3600.0
SESSIONS: Final = 1_000
ADDRESSES: Final = 10_000
FREE_ATTEMPTS: Final = 3
"""This many attempts may fail before an address has to wait."""
LONGEST_WAIT_S: Final = 300.0
FORGET_S: Final = 3600.0
TRIED_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Session:
    name: str
    """For the audit log: local (no login is needed), password, or token."""
    ends_s: float = float("inf")


LOCAL: Final = Session("local")


class TooManyAttempts(SignInError):
    def __init__(self, wait_s: float) -> None:
        super().__init__(f"too many attempts have failed; try again in {max(1, round(wait_s))} s")
        self.wait_s = wait_s


class Access:
    """Who may sign in, and who is signed in. Thread-safe."""

    def __init__(
        self,
        *,
        password: str | None = None,
        token: str | None = None,
        cookie: str = "penstock-session",
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if password is not None and len(password) < PASSWORD_LENGTH:
            raise ConfigError(f"the console's password must have at least {PASSWORD_LENGTH} characters")
        if token is not None and len(token) < TOKEN_LENGTH:
            raise ConfigError(
                f"the console's token must have at least {TOKEN_LENGTH} characters; create one with: openssl rand "
                "-hex 24"
            )
        self.cookie = cookie
        self._salt = secrets.token_bytes(16)
        self._password = None if password is None else self._hash(password)
        self._token = None if token is None else _digest(token)
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._trying = threading.BoundedSemaphore(TRIED_AT_ONCE)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @property
    def needs_login(self) -> bool:
        return self._password is not None or self._token is not None

    @property
    def takes_password(self) -> bool:
        return self._password is not None

    def sign_in(self, secret: str, address: str) -> str:
        """The id of a new session, for the cookie. Raises for a wrong password or token. Takes a while."""
        place = _place_of(address)
        self._refuse_while_waiting(place)
        if not self._trying.acquire(blocking=False):
            raise TooManyAttempts(1.0)
        try:
            name = self._name_for(secret)
        finally:
            self._trying.release()
        if name is None:
            self._note_failure(place)
            raise SignInError("that is not the password or token of this console")
        id = secrets.token_urlsafe(32)
        with self._lock:
            self._failures.pop(place, None)
            self._sessions[_digest(id).hex()] = Session(name, self._clock_s() + SESSION_S)
            while len(self._sessions) > SESSIONS:
                self._sessions.popitem(last=False)
        return id

    def sign_out(self, id: str) -> None:
        with self._lock:
            self._sessions.pop(_digest(id).hex(), None)

    def session(self, id: str | None) -> Session | None:
        """The session of a cookie; None: not signed in."""
        if not self.needs_login:
            return LOCAL
        with self._lock:
            found = self._sessions.get(_digest(id or "").hex())
        return found if found is not None and found.ends_s > self._clock_s() else None

    def bearer(self, token: str, address: str) -> Session:
        """A session for a program that sends the token with the request itself. Raises for a wrong one."""
        place = _place_of(address)
        self._refuse_while_waiting(place)
        if self._token is not None and hmac.compare_digest(_digest(token), self._token):
            return Session("token")
        self._note_failure(place)
        raise SignInError("that is not the token of this console")

    def _name_for(self, secret: str) -> str | None:
        is_token = self._token is not None and hmac.compare_digest(_digest(secret), self._token)
        is_password = self._password is not None and hmac.compare_digest(self._hash(secret), self._password)
        return "token" if is_token else "password" if is_password else None

    def _hash(self, password: str) -> bytes:
        return hashlib.scrypt(password.encode(), salt=self._salt, n=2**14, r=8, p=1, maxmem=64 * 1024 * 1024)

    def _refuse_while_waiting(self, place: str) -> None:
        with self._lock:
            failed, at_s = self._failures.get(place, (0, 0.0))
        wait_s = min(2.0 ** (failed - FREE_ATTEMPTS), LONGEST_WAIT_S) if failed >= FREE_ATTEMPTS else 0.0
        left_s = at_s + wait_s - self._clock_s()
        if left_s > 0:
            raise TooManyAttempts(left_s)

    def _note_failure(self, place: str) -> None:
        now_s = self._clock_s()
        with self._lock:
            failed, at_s = self._failures.pop(place, (0, now_s))
            self._failures[place] = (failed + 1 if now_s - at_s < FORGET_S else 1, now_s)
            while len(self._failures) > ADDRESSES:
                self._failures.popitem(last=False)


def check_reach(host: str, access: Access) -> None:
    """Refuse to listen elsewhere than on loopback without a login."""
    if not is_loopback(host) and not access.needs_login:
        raise ConfigError(
            f"the console does not listen on {host} without a login: everyone who reaches it could read and change "
            "the stream. Give it --password-file or --token-file, or listen on 127.0.0.1"
        )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _place_of(address: str) -> str:
    """The part of an address that an attacker cannot change at will: one machine may own a whole IPv6 /64."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else address
