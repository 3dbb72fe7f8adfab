"""HTTP requests to a schema registry, with authentication, time limits and retries."""

from __future__ import annotations

import base64
import http.client
import random
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from penstock.abc import Clock
from penstock.errors import ConfigError, IncompatibleSchemaError, RegistryError, RegistryUnavailableError
from penstock.model.clock import SystemClock
from penstock.model.retry import Retry

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_ACCEPT: Final = f"{_CONTENT_TYPE}, application/json"
_TEMPORARY: Final = frozenset({408, 429, 500, 502, 503, 504})
_CONFLICT: Final = 409
_LARGEST_ANSWER_BYTES: Final = 16 << 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Report redirects as errors: the credentials are for the given address only."""

    def redirect_request(self, *_: Any) -> None:
        return None


def authorization(user: str | None, password: str | None, token: str | None) -> dict[str, str]:
    """The header for a user and password, a token, or neither. Raises ConfigError for other combinations."""
    if token is not None and user is not None:
        raise ConfigError("schema registry: give a user or a token, not both")
    if (user is None) != (password is None):
        raise ConfigError("schema registry: give both user and password, or neither")
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    if user is not None:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}
    return {}


class RegistryHttp:
    """An HTTP client of one registry, which may have several addresses. Thread-safe."""

    def __init__(
        self,
        addresses: Sequence[str],
        authorization: Mapping[str, str],
        timeout_s: float,
        retry: Retry,
        ssl_context: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.addresses = tuple(address.rstrip("/") for address in addresses)
        self._headers = {"Accept": _ACCEPT, "Content-Type": _CONTENT_TYPE, **authorization}
        self._timeout_s = timeout_s
        self._retry = retry
        self._chance = random.Random()
        self._clock: Clock = clock or SystemClock()
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if ssl_context is not None:
            handlers.append(urllib.request.HTTPSHandler(context=ssl_context))
        self._opener = urllib.request.build_opener(*handlers)

    def call(
        self, method: str, path: Sequence[str], body: Mapping[str, Any] | None = None, query: Mapping[str, str] = {}
    ) -> Any:
        """The decoded JSON answer. Requests of this API are idempotent: retries go to the addresses in turn."""
        where = "/".join(urllib.parse.quote(part, safe="") for part in path)
        if query:
            where += "?" + urllib.parse.urlencode(query)
        data = None if body is None else msgspec.json.encode(body)
        attempt = 0
        while True:  # `retry` limits the attempts
            address = self.addresses[attempt % len(self.addresses)]
            attempt += 1
            try:
                return self._call_once(method, address, where, data)
            except RegistryUnavailableError as error:
                delay_s = self._retry.delay_after(attempt, error, self._chance)
                if delay_s is None:
                    raise RegistryUnavailableError(
                        f"{error} (tried {attempt} times)" if attempt > 1 else str(error), error.status, error.code
                    ) from error
                self._clock.sleep(delay_s)

    def _call_once(self, method: str, address: str, where: str, data: bytes | None) -> Any:
        what = f"the schema registry at {address}, asked to {method} /{where}"
        request = urllib.request.Request(f"{address}/{where}", data, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
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
            raise RegistryError(f"{what}, did not answer with JSON: is it a schema registry?") from error


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
