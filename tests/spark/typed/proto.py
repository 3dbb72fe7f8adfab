"""A Protobuf message with a field of each kind, made without protoc."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any


def _protobuf(name: str) -> Any:
    """A module of protobuf, which has no types."""
    return importlib.import_module(f"google.protobuf.{name}")


descriptor_pb2, descriptor_pool, message_factory = map(
    _protobuf, ("descriptor_pb2", "descriptor_pool", "message_factory")
)
timestamp_pb2, duration_pb2, wrappers_pb2 = map(_protobuf, ("timestamp_pb2", "duration_pb2", "wrappers_pb2"))
_F = descriptor_pb2.FieldDescriptorProto


@lru_cache
def visit_class() -> Any:
    """The class of the message `tests.Visit`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/visit.proto",
        package="tests",
        syntax="proto3",
        dependency=[module.DESCRIPTOR.name for module in (timestamp_pb2, duration_pb2, wrappers_pb2)],
    )
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(("UNKNOWN", "FIRST", "AGAIN")):
        kind.value.add(name=name, number=number)
    origin = file.message_type.add(name="Origin")
    origin.field.add(name="host", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    origin.field.add(name="port", number=2, type=_F.TYPE_INT32, label=_F.LABEL_OPTIONAL)
    visit = file.message_type.add(name="Visit")
    entry = visit.nested_type.add(name="CountsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_F.TYPE_INT64, label=_F.LABEL_OPTIONAL)
    visit.oneof_decl.add(name="_maybe")
    named = {
        "kind": ".tests.Kind",
        "at": ".google.protobuf.Timestamp",
        "took": ".google.protobuf.Duration",
        "wrapped": ".google.protobuf.StringValue",
        "counts": ".tests.Visit.CountsEntry",
        "from": ".tests.Origin",
    }
    types = {"page": _F.TYPE_STRING, "big": _F.TYPE_UINT64, "seen": _F.TYPE_BOOL, "maybe": _F.TYPE_INT64}
    names = ("page", "kind", "at", "took", "big", "seen", "maybe", "wrapped", "tags", "counts", "from")
    for number, name in enumerate(names, 1):
        field = visit.field.add(name=name, number=number)
        field.label = _F.LABEL_REPEATED if name in ("tags", "counts") else _F.LABEL_OPTIONAL
        if name in named:
            field.type_name = named[name]
            field.type = _F.TYPE_ENUM if name == "kind" else _F.TYPE_MESSAGE
        else:
            field.type = types.get(name, _F.TYPE_STRING)
        if name == "maybe":
            field.proto3_optional = True
            field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, duration_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Visit"))
