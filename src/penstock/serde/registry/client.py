"""A schema registry client that caches ids and schemas, which never change."""

from __future__ import annotations

import ssl
import threading
import urllib.parse
from collections.abc import Sequence
from typing import Any, Final

from penstock.abc import Clock
from penstock.errors import ConfigError, RegistryError
from penstock.model.retry import Retry
from penstock.serde.made_again import MadeAgain
from penstock.serde.registry.http import RegistryHttp, authorization
from penstock.serde.registry.schema import RegisteredSchema, Schema

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
