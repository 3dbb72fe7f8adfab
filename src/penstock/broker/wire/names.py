"""The names of the APIs, for logs and metrics."""

from __future__ import annotations

from kio.schema.index import api_key_map


def api_name(api_key: int) -> str:
    return api_key_map.get(api_key, str(api_key))
