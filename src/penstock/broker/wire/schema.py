"""Requests and answers by the protocol's schemas."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from kio.static.constants import EntityType

from penstock.broker.wire.decoder import decoder
from penstock.broker.wire.encoder import Write, blank, encoder
from penstock.broker.wire.primitives import MalformedRequestError

API_VERSIONS: Final = 18
_HEADER: Final = struct.Struct(">ii")


@cache
def _schema(api_key: int, version: int, kind: EntityType) -> type:
    module = load_payload_module(api_key, version, kind)  # type: ignore[arg-type]
    for candidate in vars(module).values():
        if isinstance(candidate, type) and getattr(candidate, "__type__", None) is kind:
            return candidate
    raise LookupError(f"API {api_key} version {version} has no {kind.name}")


@cache
def _reader(api_key: int, version: int) -> Callable[[bytes, int], tuple[Any, int]]:
    return entity_reader(_schema(api_key, version, EntityType.request))


@cache
def _writer(api_key: int, version: int) -> tuple[Write, bool]:
    schema = _schema(api_key, version, EntityType.response)
    flexible = bool(schema.__flexible__)  # type: ignore[attr-defined]
    return encoder(schema), flexible and api_key != API_VERSIONS


def request_is_flexible(api_key: int, version: int) -> bool:
    """Whether the request's header ends with tagged fields."""
    return bool(_schema(api_key, version, EntityType.request).__flexible__)  # type: ignore[attr-defined]


def decode_request(api_key: int, version: int, body: bytes) -> Any:
    try:
        try:
            entity, _ = _reader(api_key, version)(body, 0)
        except KeyError:
            # A tagged field that the quick reader has never heard of.
            entity, _ = decoder(_schema(api_key, version, EntityType.request))(body, 0)
    except Exception as error:
        raise MalformedRequestError(f"API {api_key} version {version}: {error or type(error).__name__}") from error
    return entity


def encode_response(api_key: int, version: int, correlation_id: int, fields: Mapping[str, Any]) -> bytes:
    """The whole answer with its length in front."""
    write, tagged_header = _writer(api_key, version)
    out = bytearray(8)
    if tagged_header:
        out += b"\x00"
    write(out, fields)
    _HEADER.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def encode_blank(api_key: int, version: int, correlation_id: int, code: ErrorCode, message: str | None) -> bytes:
    """An answer that says nothing but the error. Raises kio's errors for what the protocol does not have."""
    fields = blank(_schema(api_key, version, EntityType.response), code, message)
    return encode_response(api_key, version, correlation_id, fields)
