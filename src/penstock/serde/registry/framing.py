"""Confluent's wire format: a zero byte, the schema's id in four bytes, then the value."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.errors import ConfigError, RegistryError, SerdeError
from penstock.serde.registry.schema import Schema

if TYPE_CHECKING:  # the client imports the HTTP modules, which a program without a registry does not need
    from penstock.serde.registry.client import SchemaRegistry

_HEAD: Final = struct.Struct(">bI")
HEAD_BYTES: Final = _HEAD.size
_MAGIC: Final = 0
_NOT_FOUND: Final = 404

SubjectName = Callable[[str, str | None, bool], str]
"""The subject for a topic, the record's name (None if it has none), and whether it is for keys."""


def _by_topic(topic: str, record: str | None, for_keys: bool) -> str:
    return f"{topic}-{'key' if for_keys else 'value'}"


def _by_record(topic: str, record: str | None, for_keys: bool) -> str:
    if record is None:
        raise ConfigError(
            f"topic {topic!r}: the subject is the record's name, and the record of this schema has no name"
        )
    return record


def _by_topic_and_record(topic: str, record: str | None, for_keys: bool) -> str:
    return f"{topic}-{_by_record(topic, record, for_keys)}"


_STRATEGIES: Final[dict[str, SubjectName]] = {
    "topic": _by_topic,
    "record": _by_record,
    "topic-record": _by_topic_and_record,
}


class Framing:
    """Adds the id of one schema to values, and reads the ids of others' values."""

    def __init__(
        self,
        schema: Callable[[], Schema],
        record: str | None,
        *,
        registry: SchemaRegistry,
        subject: str | SubjectName,
        register: bool,
        for_keys: bool,
    ) -> None:
        if isinstance(subject, str) and subject not in _STRATEGIES:
            raise ConfigError(
                f"there is no subject name strategy {subject!r}: use {', '.join(_STRATEGIES)}, or a function"
            )
        if not (callable(getattr(registry, "register", None)) and callable(getattr(registry, "schema", None))):
            raise ConfigError(f"{registry!r} is not a SchemaRegistry: pass SchemaRegistry(url)")
        self.registry = registry
        self._schema = schema
        self._record = record
        self._subject = _STRATEGIES[subject] if isinstance(subject, str) else subject
        self._register = register
        self._for_keys = for_keys
        self._heads: dict[str, bytes] = {}

    def subject(self, topic: str) -> str:
        return self._subject(topic, self._record, self._for_keys)

    def head(self, topic: str) -> bytes:
        """The bytes before a value of this topic. The first call for a topic asks the registry."""
        head = self._heads.get(topic)
        if head is None:
            subject = self.subject(topic)
            schema = self._schema()
            if self._register:
                id = self.registry.register(subject, schema)
            else:
                id = self._registered_by_others(subject, schema)
            head = self._heads[topic] = _HEAD.pack(_MAGIC, id)
        return head

    def _registered_by_others(self, subject: str, schema: Schema) -> int:
        try:
            return self.registry.id_of(subject, schema)
        except RegistryError as error:
            if error.status != _NOT_FOUND:
                raise
            raise RegistryError(
                f"the schema is not a version of subject {subject!r}: register it, or use register=True ({error})",
                error.status,
                error.code,
            ) from error

    def schema_of(self, id: int, topic: str) -> Schema:
        """The schema that a value was written with. Raises SerdeError if the registry does not have it: the bytes are
        invalid, or come from elsewhere. Raises RegistryError if the registry cannot be asked: the value may be good."""
        try:
            return self.registry.schema(id)
        except RegistryError as error:
            if error.status != _NOT_FOUND:
                raise
            raise SerdeError(
                f"topic {topic!r}: a value names schema {id}, which {self.registry!r} does not have"
            ) from error


def schema_id(data: bytes, topic: str) -> int:
    """The schema id of a value. Raises SerdeError if there is none."""
    if len(data) < HEAD_BYTES:
        raise SerdeError(f"topic {topic!r}: {len(data)} bytes are too short for a value with a schema id")
    magic, id = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise SerdeError(
            f"topic {topic!r}: a value starts with {data[0]}, not 0: it was written without a schema registry"
        )
    return int(id)
