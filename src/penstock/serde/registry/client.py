"""A schema registry client that caches ids and schemas, which never change."""

from __future__ import annotations

import base64
import http.client
import random
import ssl
import threading
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
from penstock.serde.made_again import MadeAgain
from penstock.serde.registry.schema import RegisteredSchema, Schema

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


_NOT_FOUND: Final = 404
_RETRY: Final = Retry(4, first_delay_s=0.2, max_delay_s=5.0)
COMPATIBILITIES: Final = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip


class SchemaRegistry(MadeAgain):
    """A schema registry with Confluent's API: `SchemaRegistry("https://schemas.example", user=..., password=...)`.

    `url` may hold several addresses of one registry, separated by commas, and a user and password. `token` is for
    bearer authentication. Requests that time out or get a temporary error are repeated as `retry` says, then raise
    RegistryUnavailableError. Ids and schemas are cached for good: a registry never changes them. Thread-safe.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        timeout_s: float = 10.0,
        retry: Retry = _RETRY,
        ssl_context: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        addresses, url_user, url_password = _parse(url)
        if user is None and password is None:
            user, password = url_user, url_password
        headers = authorization(user, password, token)
        if not isinstance(retry, Retry):
            raise ConfigError(f"retry={retry!r} is not a Retry")
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ConfigError(f"timeout_s={timeout_s!r} must be a positive number of seconds")
        self.url = ",".join(addresses)
        proof = {"user": user, "password": password, "token": token, "ssl_context": ssl_context}
        self.made_with = ((self.url,), {**proof, "timeout_s": timeout_s, "retry": retry, "clock": clock})
        self._http = RegistryHttp(addresses, headers, timeout_s, retry, ssl_context, clock)
        self._lock = threading.Lock()
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[tuple[str, Schema], int] = {}
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}

    def register(self, subject: str, schema: Schema) -> int:
        """Register a schema under the subject, unless it is registered, and return its id.

        Raises IncompatibleSchemaError if it breaks the compatibility of the subject.
        """
        return self._id(("subjects", subject, "versions"), subject, schema)

    def id_of(self, subject: str, schema: Schema) -> int:
        """The id of a registered schema. Raises RegistryError (404) if it is not registered."""
        return self._id(("subjects", subject), subject, schema)

    def _id(self, path: tuple[str, ...], subject: str, schema: Schema) -> int:
        with self._lock:
            known = self._ids.get((subject, schema))
        if known is not None:
            return known
        answer = self._http.call("POST", path, schema.to_wire())
        id = int(_field(answer, "id"))
        with self._lock:
            self._ids[subject, schema] = id
            self._schemas.setdefault(id, schema)
        return id

    def lookup(self, subject: str, schema: Schema) -> RegisteredSchema:
        """The version of the subject that has this schema. Raises RegistryError (404) if there is none."""
        return RegisteredSchema.from_wire(self._http.call("POST", ("subjects", subject), schema.to_wire()), schema)

    def schema(self, id: int) -> Schema:
        """The schema of an id. Raises RegistryError (404) if there is none."""
        with self._lock:
            known = self._schemas.get(id)
        if known is not None:
            return known
        answer = self._http.call("GET", ("schemas", "ids", str(id)))
        _field(answer, "schema")
        schema = Schema.from_wire(answer)
        with self._lock:
            self._schemas[id] = schema
        return schema

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """A version of a subject, counted from 1."""
        with self._lock:
            known = self._versions.get((subject, version))
        if known is not None:
            return known
        found = RegisteredSchema.from_wire(self._http.call("GET", ("subjects", subject, "versions", str(version))))
        with self._lock:
            self._versions[subject, version] = found
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject. It is never cached."""
        return RegisteredSchema.from_wire(self._http.call("GET", ("subjects", subject, "versions", "latest")))

    def subjects(self) -> list[str]:
        return list(self._http.call("GET", ("subjects",)))

    def versions(self, subject: str) -> list[int]:
        return [int(version) for version in self._http.call("GET", ("subjects", subject, "versions"))]

    def incompatibilities(self, subject: str, schema: Schema) -> list[str]:
        """Why the schema cannot be the next version of the subject; empty if it can, or would be the first."""
        path = ("compatibility", "subjects", subject, "versions", "latest")
        try:
            answer = self._http.call("POST", path, schema.to_wire(), {"verbose": "true"})
        except RegistryError as error:
            if error.status == _NOT_FOUND:  # the subject has no version yet
                return []
            raise
        if _field(answer, "is_compatible"):
            return []
        return [str(message) for message in answer.get("messages") or ["it is not compatible with the latest version"]]

    def compatibility(self, subject: str | None = None) -> str:
        """The compatibility level of a subject; the global level without a subject, or if it has none of its own."""
        path = ("config",) if subject is None else ("config", subject)
        query = {} if subject is None else {"defaultToGlobal": "true"}
        return str(_field(self._http.call("GET", path, query=query), "compatibilityLevel"))

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility level: NONE, BACKWARD, FORWARD, FULL, or one of these with _TRANSITIVE."""
        if level not in COMPATIBILITIES:
            raise ConfigError(f"{level!r} is not a compatibility level: use one of {', '.join(COMPATIBILITIES)}")
        path = ("config",) if subject is None else ("config", subject)
        self._http.call("PUT", path, {"compatibility": level})

    def __repr__(self) -> str:
        return f"<SchemaRegistry at {self.url}>"


def _parse(url: str) -> tuple[Sequence[str], str | None, str | None]:
    """The addresses without credentials, and the first user and password found in them."""
    addresses: list[str] = []
    user = password = None
    for text in url.split(","):
        parts = urllib.parse.urlsplit(text.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{text.strip()!r} is not a schema registry address: use http://host:port or https://host"
            )
        if user is None and parts.username is not None:
            user, password = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
        addresses.append(urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
    return addresses, user, password


def _field(answer: Any, name: str) -> Any:
    if not isinstance(answer, dict) or name not in answer:
        raise RegistryError(f"the schema registry's answer has no {name!r}: is it a schema registry?")
    return answer[name]
