"""Decoding requests and encoding responses by the protocol's schemas."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.static.constants import EntityType

from penstock.broker.wire.decoder import Read, Source, decoder
from penstock.broker.wire.encoder import Write, blank, encoder, has_error_code
from penstock.broker.wire.primitives import MAX_ENTRIES, MalformedRequestError


def api_name(api_key: int) -> str:
    return api_key_map.get(api_key, str(api_key))


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
def _reader(api_key: int, version: int) -> Read:
    return decoder(_schema(api_key, version, EntityType.request))


@cache
def _writer(api_key: int, version: int) -> tuple[Write, bool]:
    schema = _schema(api_key, version, EntityType.response)
    flexible = bool(schema.__flexible__)  # type: ignore[attr-defined]
    return encoder(schema), flexible and api_key != API_VERSIONS


def request_is_flexible(api_key: int, version: int) -> bool:
    return bool(_schema(api_key, version, EntityType.request).__flexible__)  # type: ignore[attr-defined]


def decode_request(api_key: int, version: int, body: bytes, max_entries: int = MAX_ENTRIES) -> Any:
    """Decode a request as kio's object. Raises MalformedRequestError. Bytes after it are ignored."""
    try:
        return _reader(api_key, version)(Source(body, max_entries))
    except (IndexError, struct.error) as error:
        raise MalformedRequestError("it ends in the middle of a field") from error
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"a string is not UTF-8: {error.reason}") from error


def encode_response(api_key: int, version: int, correlation_id: int, fields: Mapping[str, Any]) -> bytes:
    write, tagged_header = _writer(api_key, version)
    out = bytearray(8)
    if tagged_header:
        out += b"\x00"
    write(out, fields)
    _HEADER.pack_into(out, 0, len(out) - 4, correlation_id)
    return bytes(out)


def encode_blank(api_key: int, version: int, correlation_id: int, code: ErrorCode, message: str | None) -> bytes | None:
    """A response with only the error. None if the response has no field for it: empty, it would look like success.
    Raises kio's errors for an API or version that kio does not know."""
    schema = _schema(api_key, version, EntityType.response)
    if not has_error_code(schema):
        return None
    return encode_response(api_key, version, correlation_id, blank(schema, code, message))
