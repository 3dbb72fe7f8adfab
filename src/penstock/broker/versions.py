"""The supported APIs and versions, and the responses to unsupported ones."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Final

from kio.index import UnknownAPIKey, UnknownEntity
from kio.schema.errors import ErrorCode

from penstock.broker.handlers import APIS
from penstock.broker.wire import fetch, produce
from penstock.broker.wire.schema import API_VERSIONS, encode_blank, request_is_flexible

PRODUCE: Final = 0
FETCH: Final = 1

SUPPORTED: Final[dict[int, tuple[int, int]]] = {
    PRODUCE: (produce.MIN_VERSION, produce.MAX_VERSION),
    FETCH: (fetch.MIN_VERSION, fetch.MAX_VERSION),
    API_VERSIONS: (0, 4),
    **{key: (low, high) for key, (_, low, high) in APIS.items()},
}
"""The lowest and highest version by API key."""


class _FlexibleHeaders(dict[int, int]):
    """The first version, by API key, whose request header ends with tagged fields. Cached."""

    def __missing__(self, api_key: int) -> int:
        low, high = SUPPORTED[api_key]
        first = next((version for version in range(low, high + 1) if request_is_flexible(api_key, version)), high + 1)
        self[api_key] = first
        return first


FLEXIBLE_HEADERS: Final = _FlexibleHeaders({PRODUCE: produce.FLEXIBLE_SINCE, FETCH: fetch.FLEXIBLE_SINCE})


def api_versions_fields() -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "api_keys": [
            {"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in sorted(SUPPORTED.items())
        ],
    }


@cache
def _oldest_api_versions() -> bytes:
    rows = b"".join(struct.pack(">hhh", key, low, high) for key, (low, high) in sorted(SUPPORTED.items()))
    return struct.pack(">hi", ErrorCode.unsupported_version, len(SUPPORTED)) + rows


def refuse(
    api_key: int,
    version: int,
    correlation_id: int,
    code: ErrorCode = ErrorCode.unsupported_version,
    message: str | None = None,
) -> bytes | None:
    """A response with nothing but the error, in the form of that API and version.

    An unsupported version of ApiVersions is answered in its oldest form, so that the client learns the supported ones.
    None if no response can carry the error: for an API or version of unknown form, and if the response is a list that
    would look like success if it were empty. Then the connection must be closed.
    """
    if api_key == API_VERSIONS and code is ErrorCode.unsupported_version:
        body = _oldest_api_versions()
        return struct.pack(">ii", len(body) + 4, correlation_id) + body
    try:
        return encode_blank(api_key, version, correlation_id, code, message)
    except (UnknownAPIKey, UnknownEntity):
        return None
