"""Protobuf messages, with the classes that protoc generates."""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError, MissingExtraError, SerdeError
from penstock.serde.registry.framing import HEAD_BYTES, Framing, SubjectName, schema_id
from penstock.serde.registry.schema import Reference, Schema, SchemaKind
from penstock.serde.typed import Decode, TypedSerde
from penstock.serde.types import is_protobuf, name_of

if TYPE_CHECKING:
    from penstock.serde.registry.client import SchemaRegistry


# Confluent's message indexes say which message of a `.proto` file a value is: they are the path from the file to the
# message. [1, 0] is the first message inside the second one of the file.

_LONGEST_PATH: Final = 64
"""Deeper nesting than any real file: such bytes are invalid."""
_LONGEST_VARINT_BYTES: Final = 5
_NOISE: Final = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'", re.DOTALL)
_STEP: Final = re.compile(r"\bpackage\s+([\w.]+)\s*;|\bmessage\s+(\w+)\s*\{|([{}])")


def indexes_of(descriptor: Any) -> tuple[int, ...]:
    """The path from the file to a message, given its descriptor."""
    path: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name.values() if parent is None else parent.nested_types
        path.append([sibling.full_name for sibling in siblings].index(descriptor.full_name))
        descriptor = parent
    return tuple(reversed(path))


def encode_indexes(path: Sequence[int]) -> bytes:
    """Encode a count and the indexes, each as a zigzag varint; the usual case, the first message, is a single zero."""
    if tuple(path) == (0,):
        return b"\0"
    return b"".join(_encode_varint(number) for number in (len(path), *path))


def decode_indexes(data: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """The indexes at `start`, and where they end. Raises ValueError if they are invalid."""
    count, position = _decode_varint(data, start)
    if count == 0:
        return (0,), position
    if not 0 < count <= _LONGEST_PATH:
        raise ValueError(f"{count} is not a valid number of message indexes")
    path = []
    for _ in range(count):
        index, position = _decode_varint(data, position)
        if index < 0:
            raise ValueError(f"{index} is not a message index")
        path.append(index)
    return tuple(path), position


def name_in_file(file: Any, path: Sequence[int]) -> str | None:
    """The full name of the message at `path` in a FileDescriptorProto; None if there is no such message."""
    names = [file.package] if file.package else []
    messages = file.message_type
    for index in path:
        if index >= len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def name_in_text(text: str, path: Sequence[int]) -> str | None:
    """The same for the text of a `.proto` file."""
    package = ""
    names: dict[tuple[int, ...], str] = {}
    inside: list[tuple[int, ...] | None] = [()]
    """For each open brace, its message; None for enums, options and the like."""
    children: dict[tuple[int, ...], int] = {}
    for step in _STEP.finditer(_NOISE.sub(" ", text)):
        named_package, message, brace = step.groups()
        if named_package and len(inside) == 1:
            package = named_package
        elif message:
            parent = inside[-1]
            here = None
            if parent is not None:
                here = (*parent, children.get(parent, 0))
                children[parent] = here[-1] + 1
                names[here] = f"{names[parent]}.{message}" if parent else message
            inside.append(here)
        elif brace == "{":
            inside.append(None)
        elif brace == "}" and len(inside) > 1:
            inside.pop()
    found = names.get(tuple(path))
    return f"{package}.{found}" if found and package else found


def _encode_varint(number: int) -> bytes:
    number <<= 1  # zigzag of a number that is never negative
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _decode_varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(_LONGEST_VARINT_BYTES):
        if position >= len(data):
            raise ValueError("the message indexes are cut off")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << (7 * shift)
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise ValueError("a message index is too long")


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
