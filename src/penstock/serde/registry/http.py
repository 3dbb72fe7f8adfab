"""Requests to a schema registry: authentication, time limits, and trying again what may help."""

from __future__ import annotations

import base64
import http.client
import random
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from penstock.abc import Clock
from penstock.errors import ConfigError, IncompatibleSchemaError, RegistryError, RegistryUnavailableError
from penstock.model.clock import SystemClock

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPT: Final = f"{_CONTENT_TYPE}, application/json"
_TEMPORARY: Final = frozenset({408, 429, 500, 502, 503, 504})
_CONFLICT: Final = 409
_LARGEST_ANSWER_BYTES: Final = 16 << 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A registry that sends us elsewhere is told as an error: the credentials are for the address given."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Authentication:
    """What a request proves its right with: nothing, a user and password, or a token."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is not None and self.user is not None:
            raise ConfigError("the schema registry is given both a user and a token: give one of them")
        if (self.user is None) != (self.password is None):
            raise ConfigError("the schema registry is given a user or a password without the other: give both")

    def headers(self) -> dict[str, str]:
        if self.token is not None:
            return {"Authorization": f"Bearer {self.token}"}
        if self.user is not None:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request may take, and how often it is tried."""

    timeout_s: float = 10.0
    attempts: int = 4
    first_backoff_s: float = 0.2
    max_backoff_s: float = 5.0

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.attempts < 1 or self.first_backoff_s < 0 or self.max_backoff_s < 0:
            raise ConfigError(f"{self} is not allowed: time limits are above 0, and there is at least one attempt")

    def backoff_s(self, attempt: int) -> float:
        """How long to wait after this attempt, the first being 1: twice as long each time, the last half by chance."""
        longest_s: float = min(self.max_backoff_s, self.first_backoff_s * 2 ** (attempt - 1))
        return longest_s * (0.5 + random.random() / 2)


class RegistryHttp:
    """The HTTP of one registry, behind one address or several. Any thread may use it."""

    def __init__(
        self,
        addresses: Sequence[str],
        authentication: Authentication,
        patience: Patience,
        ssl_context: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.addresses = tuple(address.rstrip("/") for address in addresses)
        self._headers = {"Accept": _ACCEPT, "Content-Type": _CONTENT_TYPE, **authentication.headers()}
        self._patience = patience
        self._clock: Clock = clock or SystemClock()
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if ssl_context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=ssl_context))
        self._opener = urllib.request.build_opener(*handlers)

    def call(
        self, method: str, path: Sequence[str], body: Mapping[str, Any] | None = None, query: Mapping[str, str] = {}
    ) -> Any:
        """The answer to a request, from JSON. Every request of this API may be repeated without harm, and is, after a
        pause, where that may help; the addresses take turns."""
        where = "/".join(urllib.parse.quote(part, safe="") for part in path)
        if query:
            where += "?" + urllib.parse.urlencode(query)
        data = None if body is None else msgspec.json.encode(body)
        attempt = 0
        while True:  # ends: at the latest with the last attempt allowed
            address = self.addresses[attempt % len(self.addresses)]
            attempt += 1
            try:
                return self._call_once(method, address, where, data)
            except RegistryUnavailableError as error:
                if attempt >= self._patience.attempts:
                    raise RegistryUnavailableError(
                        f"{error} (tried {attempt} times)" if attempt > 1 else str(error), error.status, error.code
                    ) from error
                self._clock.sleep(self._patience.backoff_s(attempt))

    def _call_once(self, method: str, address: str, where: str, data: bytes | None) -> Any:
        what = f"the schema registry at {address}, asked to {method} /{where}"
        request = urllib.request.Request(f"{address}/{where}", data, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=self._patience.timeout_s) as response:
                answer = response.read(_LARGEST_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(what, error.code, error.read(_LARGEST_ANSWER_BYTES)) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RegistryUnavailableError(f"{what}, could not be reached: {reason or type(error).__name__}") from error
        if len(answer) > _LARGEST_ANSWER_BYTES:
            raise RegistryError(f"{what}, answered with more than {_LARGEST_ANSWER_BYTES} bytes")
        try:
            return msgspec.json.decode(answer)
        except msgspec.DecodeError as error:
            raise RegistryError(f"{what}, answered with something that is no JSON: is it a schema registry?") from error


def _refusal(what: str, status: int, answer: bytes) -> RegistryError:
    code, text = status, ""
    try:
        said = msgspec.json.decode(answer)
        code, text = int(said["error_code"]), str(said["message"])
    except (msgspec.DecodeError, TypeError, KeyError, ValueError):
        text = answer[:200].decode(errors="replace").strip()
    message = f"{what}, refused with {status}: {text or http.client.responses.get(status, 'no reason given')}"
    if status in _TEMPORARY:
        return RegistryUnavailableError(message, status, code)
    if status == _CONFLICT:
        return IncompatibleSchemaError(message, status, code)
    return RegistryError(message, status, code)
