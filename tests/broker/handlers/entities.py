"""Kio entities from plain mappings, and bytes from entities: how tests write requests and check that answers fit.

This is deliberately not the broker's own encoder. It is slow and strict: a name that no version of an API has is an
error, and so is a value that kio cannot write.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import io
import types
import typing
from collections.abc import Mapping
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer


def request_entity(api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
    """A request as the broker reads it: written by kio and read back, so that ids and nulls are as on the wire."""
    schema = load_request_schema(api_key, version)
    return _through_bytes(schema, build(schema, fields, _known_names(api_key, "request")))


def response_entity(api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
    """A handler's answer as a client of that version reads it."""
    schema = load_response_schema(api_key, version)
    return _through_bytes(schema, build(schema, fields, _known_names(api_key, "response")))


def response_bytes(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    schema = load_response_schema(api_key, version)
    return _write(schema, build(schema, fields, _known_names(api_key, "response")))


def read_response(api_key: int, version: int, body: bytes) -> Any:
    return _read(load_response_schema(api_key, version), body)


def versions_of(api_key: int) -> list[int]:
    """The versions that kio knows."""
    return sorted(schema_name_map[api_key_map[api_key]])


def build(schema: type[Any], fields: Mapping[str, Any], known: Mapping[str, frozenset[str]]) -> Any:
    unknown = set(fields) - known[schema.__name__]
    assert not unknown, f"{schema.__name__}: no version has {', '.join(sorted(unknown))}"
    hints = typing.get_type_hints(schema)
    values = {}
    for field in dataclasses.fields(schema):
        if field.name in fields:
            values[field.name] = _convert(hints[field.name], fields[field.name], known)
        elif field.default is dataclasses.MISSING:
            values[field.name] = _zero(hints[field.name])
    return schema(**values)


def _convert(hint: Any, value: Any, known: Mapping[str, frozenset[str]]) -> Any:
    optional, hint = _without_none(hint)
    if value is None:
        assert optional, f"null for {hint}"
        return None
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_convert(item, each, known) for each in value)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, known)
    if isinstance(hint, type) and issubclass(hint, ErrorCode):
        assert isinstance(value, ErrorCode)
    return value


def _zero(hint: Any) -> Any:
    """What the protocol takes for a field that is left out."""
    optional, hint = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        return ()
    if optional or dataclasses.is_dataclass(hint):
        return None
    if issubclass(hint, ErrorCode):
        return ErrorCode.none
    for kind, zero in ((bool, False), (datetime.timedelta, datetime.timedelta()), (int, 0), (str, ""), (float, 0.0)):
        if issubclass(hint, kind):
            return zero
    raise AssertionError(f"no default for {hint}")


def _without_none(hint: Any) -> tuple[bool, Any]:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = [each for each in typing.get_args(hint) if each is not types.NoneType]
        assert len(inner) == 1, hint
        return True, inner[0]
    return False, hint


@functools.cache
def _known_names(api_key: int, part: str) -> Mapping[str, frozenset[str]]:
    """The fields of every entity of an API, over all its versions."""
    load = load_request_schema if part == "request" else load_response_schema
    names: dict[str, set[str]] = {}
    for version in versions_of(api_key):
        _collect(load(api_key, version), names)
    return {name: frozenset(fields) for name, fields in names.items()}


def _collect(schema: type[Any], names: dict[str, set[str]]) -> None:
    known = names.setdefault(schema.__name__, set())
    for name, hint in typing.get_type_hints(schema).items():
        if name.startswith("__"):
            continue
        known.add(name)
        inner = _without_none(hint)[1]
        if typing.get_origin(inner) is tuple:
            inner = typing.get_args(inner)[0]
        if dataclasses.is_dataclass(inner) and isinstance(inner, type):
            _collect(inner, names)


def _through_bytes(schema: type[Any], entity: Any) -> Any:
    return _read(schema, _write(schema, entity))


def _write(schema: type[Any], entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, entity)
    return buffer.getvalue()


def _read(schema: type[Any], body: bytes) -> Any:
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body), f"{len(body) - size} bytes are left over"
    return entity
