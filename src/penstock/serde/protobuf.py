"""Protobuf messages, by the classes that protoc generates."""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError, MissingExtraError, PenstockError, SerdeError
from penstock.serde.made_again import MadeAgain
from penstock.serde.message_indexes import decode_indexes, encode_indexes, indexes_of, name_in_file, name_in_text
from penstock.serde.registry.framing import HEAD_BYTES, Framing, SubjectName, schema_id
from penstock.serde.registry.schema import Reference, Schema, SchemaKind
from penstock.serde.typed import undecodable
from penstock.serde.types import is_protobuf, name_of

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry

_KNOWN_TO_ALL: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every registry has: they are not registered."""


class ProtobufSerde(MadeAgain):
    """Messages of one class as Protobuf.

    With a registry, the `.proto` file of the class and those it imports are registered, and each value says which
    message of which schema it is; a message of another name is refused, not misread. `subject`, `register` and
    `for_keys` are as for `JsonSerde`.
    """

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
            raise ConfigError(f"{name_of(type)} is no class of a Protobuf message: give one that protoc has generated")
        options = {"registry": registry, "subject": subject, "register": register, "for_keys": for_keys}
        self.made_with = ((type,), options)
        self.type = type
        self.name: str = type.DESCRIPTOR.full_name
        self._register = register
        self._indexes = encode_indexes(indexes_of(type.DESCRIPTOR))
        self._seen: dict[tuple[int, tuple[int, ...]], str | None] = {}
        self._framing: Framing | None = None
        if registry is not None:
            self._framing = Framing(
                registry, self.schema, self.name, subject=subject, register=register, for_keys=for_keys
            )

    def schema(self) -> Schema:
        """The file of the message, as its serialised descriptor; the files it imports are registered first."""
        if self._framing is None:
            raise ConfigError(f"{self!r} has no registry, which alone would want to know its schema")
        return self._schema_of_file(self.type.DESCRIPTOR.file)

    def encode(self, value: Any, topic: str) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, self.type):
            raise SerdeError(
                f"topic {topic!r} carries {self.name}, and was given a value of type {type(value).__name__}"
            )
        try:
            data: bytes = value.SerializeToString()
        except Exception as error:
            raise SerdeError(f"topic {topic!r}: this {self.name} cannot be written as Protobuf: {error}") from error
        return data if self._framing is None else self._framing.head(topic) + self._indexes + data

    def decode(self, data: bytes | None, topic: str) -> Any:
        if data is None:
            return None
        try:
            start = 0 if self._framing is None else self._start(data, topic)
            message = self.type()
            message.ParseFromString(data[start:] if start else data)
            if not message.IsInitialized():
                raise ValueError(f"required fields are missing: {', '.join(message.FindInitializationErrors())}")
        except PenstockError:
            raise
        except Exception as error:
            raise undecodable(topic, data, f"{self.name} in Protobuf", error) from error
        return message

    def decoder(self, topic: str) -> Callable[[bytes], Any]:
        def decode(data: bytes) -> Any:
            return self.decode(data, topic)

        return decode

    def _start(self, data: bytes, topic: str) -> int:
        """Where the message begins, behind the id and the indexes, once it is sure to be of our name."""
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
    except (binascii.Error, ValueError):  # the text of a file
        return name_in_text(schema.text, path)
    except Exception as error:  # DecodeError, which is nobody's subclass
        raise ValueError(f"its schema is no file descriptor: {error}") from error
    return name_in_file(file, path)


def _descriptors() -> Any:
    try:
        return importlib.import_module("google.protobuf.descriptor_pb2")
    except ImportError as error:
        raise MissingExtraError("Protobuf", "protobuf") from error
