"""The client of a schema registry, with a memory: what it has once learnt never changes."""

from __future__ import annotations

import ssl
import threading
import urllib.parse
from collections.abc import Sequence
from typing import Any, Final

from penstock.abc import Clock
from penstock.errors import ConfigError, RegistryError
from penstock.serde.made_again import MadeAgain
from penstock.serde.registry.http import Authentication, Patience, RegistryHttp
from penstock.serde.registry.schema import RegisteredSchema, Schema

_NOT_FOUND: Final = 404
COMPATIBILITIES: Final = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip


class SchemaRegistry(MadeAgain):
    """A schema registry with Confluent's API: `SchemaRegistry("https://schemas.example", user=..., password=...)`.

    `url` may be several addresses of one registry, separated by commas; user and password may stand in it. `token` is
    for bearer authentication. What cannot be reached, or says that it is in trouble, is tried `attempts` times with
    growing pauses, then it is a RegistryUnavailableError. Ids and their schemas are remembered for good, as a registry
    never changes them. Any thread may use it.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        timeout_s: float = 10.0,
        attempts: int = 4,
        first_backoff_s: float = 0.2,
        max_backoff_s: float = 5.0,
        ssl_context: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        addresses, url_user, url_password = _parse(url)
        if user is None and password is None:
            user, password = url_user, url_password
        authentication = Authentication(user, password, token)
        patience = Patience(timeout_s, attempts, first_backoff_s, max_backoff_s)
        self.url = ",".join(addresses)
        proof = {"user": user, "password": password, "token": token, "ssl_context": ssl_context}
        times = {"timeout_s": timeout_s, "attempts": attempts}
        pauses = {"first_backoff_s": first_backoff_s, "max_backoff_s": max_backoff_s}
        self.made_with = ((self.url,), {**proof, **times, **pauses, "clock": clock})
        self._http = RegistryHttp(addresses, authentication, patience, ssl_context, clock)
        self._lock = threading.Lock()
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[tuple[str, Schema], int] = {}
        self._versions: dict[tuple[str, int], RegisteredSchema] = {}

    def register(self, subject: str, schema: Schema) -> int:
        """The id of a schema; it becomes a version of the subject unless it is one.

        Raises IncompatibleSchemaError when the subject's compatibility does not allow it.
        """
        return self._id(("subjects", subject, "versions"), subject, schema)

    def id_of(self, subject: str, schema: Schema) -> int:
        """The id of a schema that somebody has registered. RegistryError (404) when nobody has."""
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
        """Which version of the subject a schema is. RegistryError (404) when it is none."""
        return RegisteredSchema.from_wire(self._http.call("POST", ("subjects", subject), schema.to_wire()), schema)

    def schema(self, id: int) -> Schema:
        """The schema of an id. RegistryError (404) when there is none."""
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
        """A version of a subject, the first being 1."""
        with self._lock:
            known = self._versions.get((subject, version))
        if known is not None:
            return known
        found = RegisteredSchema.from_wire(self._http.call("GET", ("subjects", subject, "versions", str(version))))
        with self._lock:
            self._versions[subject, version] = found
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of a subject. It is asked for anew each time."""
        return RegisteredSchema.from_wire(self._http.call("GET", ("subjects", subject, "versions", "latest")))

    def subjects(self) -> list[str]:
        return list(self._http.call("GET", ("subjects",)))

    def versions(self, subject: str) -> list[int]:
        return [int(version) for version in self._http.call("GET", ("subjects", subject, "versions"))]

    def incompatibilities(self, subject: str, schema: Schema) -> list[str]:
        """What keeps the schema from becoming the next version of the subject; nothing when it may, or is the first."""
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
        """What a subject demands of its next version; without a subject, or where it has no rule, what all do."""
        path = ("config",) if subject is None else ("config", subject)
        query = {} if subject is None else {"defaultToGlobal": "true"}
        return str(_field(self._http.call("GET", path, query=query), "compatibilityLevel"))

    def set_compatibility(self, level: str, subject: str | None = None) -> None:
        """Demand this of the next versions: NONE, BACKWARD, FORWARD, FULL, or one of these with _TRANSITIVE."""
        if level not in COMPATIBILITIES:
            raise ConfigError(f"{level!r} is no compatibility: use one of {', '.join(COMPATIBILITIES)}")
        path = ("config",) if subject is None else ("config", subject)
        self._http.call("PUT", path, {"compatibility": level})

    def __repr__(self) -> str:
        return f"<SchemaRegistry at {self.url}>"


def _parse(url: str) -> tuple[Sequence[str], str | None, str | None]:
    """The addresses without what is secret, and the user and password that the first one that has them names."""
    addresses: list[str] = []
    user = password = None
    for text in url.split(","):
        parts = urllib.parse.urlsplit(text.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"{text.strip()!r} is no address of a schema registry: use http://host:port or https://host"
            )
        if user is None and parts.username is not None:
            user, password = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
        addresses.append(urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])))
    return addresses, user, password


def _field(answer: Any, name: str) -> Any:
    if not isinstance(answer, dict) or name not in answer:
        raise RegistryError(f"the schema registry's answer has no {name!r}: is it a schema registry?")
    return answer[name]
