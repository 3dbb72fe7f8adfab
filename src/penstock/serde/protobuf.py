"""Protobuf messages, with the classes that protoc generates."""

from __future__ import annotations

import base64
import binascii
import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError, MissingExtraError, SerdeError
from penstock.serde.message_indexes import decode_indexes, encode_indexes, indexes_of, name_in_file, name_in_text
from penstock.serde.registry.framing import HEAD_BYTES, Framing, SubjectName, schema_id
from penstock.serde.registry.schema import Reference, Schema, SchemaKind
from penstock.serde.typed import Decode, TypedSerde
from penstock.serde.types import is_protobuf, name_of

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry

_KNOWN_TO_ALL: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every registry knows: they are not registered."""


class ProtobufSerde(TypedSerde):
    """Messages of one class as Protobuf.

    With a registry, the `.proto` file of the class and its imports are registered, and each value names its message and
    schema; a message of another name is refused, not misread. `subject`, `register` and `for_keys` are as for
    `JsonSerde`.
    """

    FORMAT = "Protobuf"

    def __init__(
        self,
        type: Any,
        *,
        registry: SchemaRegistry | None = None,
        subject: str | SubjectName = "topic",
        register: bool = True,
        for_keys: bool = False,
    ) -> None:
        if not is_protobuf(type):
            raise ConfigError(f"{name_of(type)} is not a Protobuf message class: pass one that protoc generated")
        options: dict[str, Any] = {"registry": registry, "subject": subject, "register": register, "for_keys": for_keys}
        self.made_with = ((type,), options)
        self.name: str = type.DESCRIPTOR.full_name
        self._register = register
        self._indexes = encode_indexes(indexes_of(type.DESCRIPTOR))
        self._seen: dict[tuple[int, tuple[int, ...]], str | None] = {}
        framing = Framing(self.schema, self.name, **options) if registry is not None else None
        super().__init__(type, self._write, self._read, framing=framing, name=self.name)

    def schema(self) -> Schema:
        """The message's file as a serialized descriptor; the files it imports are registered first."""
        if self._framing is None:
            raise ConfigError(f"{self!r} has no registry: only a registry needs its schema")
        return self._schema_of_file(self.type.DESCRIPTOR.file)

    def decoder(self, topic: str) -> Decode:
        if self._framing is None:
            return self._read

        def decode(data: bytes) -> Any:
            return self._read(data[self._start(data, topic) :])

        return decode

    def _write(self, value: Any) -> bytes:
        data: bytes = value.SerializeToString()
        return data if self._framing is None else self._indexes + data

    def _read(self, data: bytes) -> Any:
        message = self.type()
        message.ParseFromString(data)
        if not message.IsInitialized():
            raise ValueError(f"required fields are missing: {', '.join(message.FindInitializationErrors())}")
        return message

    def _start(self, data: bytes, topic: str) -> int:
        """Where the message starts, after the id and the indexes, once its name was checked."""
        id = schema_id(data, topic)
        path, start = decode_indexes(data, HEAD_BYTES)
        if (id, path) not in self._seen:
            assert self._framing is not None
            self._seen[id, path] = _name_in_schema(self._framing.schema_of(id, topic), path)
        name = self._seen[id, path]
        if name != self.name:
            found = "no message" if name is None else f"the message {name}"
            raise SerdeError(f"topic {topic!r} carries {self.name}, and a value is {found} of schema {id}")
        return start

    def _schema_of_file(self, file: Any) -> Schema:
        assert self._framing is not None
        registry = self._framing.registry
        references = []
        for imported in file.dependencies:
            if imported.name.startswith(_KNOWN_TO_ALL):
                continue
            schema = self._schema_of_file(imported)
            if self._register:
                registry.register(imported.name, schema)
            version = registry.lookup(imported.name, schema).version
            references.append(Reference(imported.name, imported.name, version))
        text = base64.standard_b64encode(file.serialized_pb).decode("ascii")
        return Schema(text, SchemaKind.PROTOBUF, tuple(references))

    def __repr__(self) -> str:
        return f"ProtobufSerde({self.name})"


def _name_in_schema(schema: Schema, path: tuple[int, ...]) -> str | None:
    if schema.kind is not SchemaKind.PROTOBUF:
        return None
    descriptors = _descriptors()
    try:
        file = descriptors.FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
    except (binascii.Error, ValueError):  # it is `.proto` text
        return name_in_text(schema.text, path)
    except Exception as error:  # DecodeError, which has no useful base class
        raise ValueError(f"its schema is not a file descriptor: {error}") from error
    return name_in_file(file, path)


def _descriptors() -> Any:
    try:
        return importlib.import_module("google.protobuf.descriptor_pb2")
    except ImportError as error:
        raise MissingExtraError("Protobuf", "protobuf") from error
