"""Keys and values as downloads, never shown in the browser."""

from __future__ import annotations

from starlette.responses import Response

from penstock.errors import PenstockError
from penstock.model import Record


def as_file(record: Record, which: str) -> Response:
    """The key or the value of a record, byte for byte."""
    name = "".join(each if each.isascii() and (each.isalnum() or each in "._-") else "_" for each in record.topic)[:100]
    part = "key" if which == "key" else "value"
    return Response(
        (record.key if part == "key" else record.value) or b"",
        media_type="application/octet-stream",
        headers={
            "content-disposition": f'attachment; filename="{name}-{record.partition}-{record.offset}.{part}"',
            "content-security-policy": "sandbox; default-src 'none'",
        },
    )


def no_file(error: PenstockError) -> Response:
    return Response(f"{error}\n", status_code=404, media_type="text/plain; charset=utf-8")
