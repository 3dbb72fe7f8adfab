"""From a URL to the store that it means."""

from __future__ import annotations

import importlib
from typing import Any, Final
from urllib.parse import parse_qsl

from penstock.abc import CheckpointStore
from penstock.errors import ConfigError

STORE_URLS: Final = (
    "sqlite:./FILE (?synchronous=FULL, ?busy_timeout_s=30)",
    "file:./FOLDER",
    "memory:",
    "postgresql://USER@HOST/DATABASE",
    "redis://HOST:6379/0",
    "dynamodb://REGION/TABLE",
    "s3://BUCKET/PREFIX",
)
"""What can be written where a store of checkpoints is asked for."""

SERVERS: Final = {
    "postgresql": ("penstock.checkpoints.postgres", "PostgresCheckpoints"),
    "postgres": ("penstock.checkpoints.postgres", "PostgresCheckpoints"),
    "redis": ("penstock.checkpoints.redis", "RedisCheckpoints"),
    "rediss": ("penstock.checkpoints.redis", "RedisCheckpoints"),
    "dynamodb": ("penstock.checkpoints.dynamodb", "DynamoCheckpoints"),
    "s3": ("penstock.checkpoints.s3", "S3Checkpoints"),
}
"""Stores that understand their URL themselves. Imported when asked for: each needs packages that may not be there."""


def open_store(store: str | CheckpointStore) -> CheckpointStore:
    """The store that a URL means; a store is given back as it is. ConfigError says what can be written."""
    if not isinstance(store, str):
        missing = [name for name in ("claim", "renew", "load", "save") if not hasattr(store, name)]
        if missing:
            raise ConfigError(f"{store!r} is no checkpoint store: it has no {', '.join(missing)}; {_forms()}")
        return store
    scheme, colon, rest = store.partition(":")
    if not colon:
        raise ConfigError(f"{store!r} names no kind of checkpoint store; {_forms()}")
    if scheme in SERVERS:
        module, name = SERVERS[scheme]
        opened: CheckpointStore = getattr(importlib.import_module(module), name)(store)
        return opened
    if scheme == "sqlite":
        return _sqlite(store, rest)
    if scheme == "file":
        from penstock.checkpoints.file import FileCheckpoints

        return FileCheckpoints(_path(store, rest))
    if scheme == "memory":
        from penstock.checkpoints.memory import MemoryCheckpoints

        if rest:
            raise ConfigError(f"{store!r}: nothing may follow memory:, which is the same nowhere else")
        return MemoryCheckpoints()
    raise ConfigError(f"{scheme!r} is no kind of checkpoint store; {_forms()}")


def _sqlite(url: str, rest: str) -> CheckpointStore:
    from penstock.checkpoints.sqlite import SqliteCheckpoints

    path, _, query = rest.partition("?")
    try:
        settings: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise ConfigError(f"{url!r} cannot be understood behind its question mark: {error}") from error
    unknown = settings.keys() - {"synchronous", "busy_timeout_s"}
    if unknown:
        raise ConfigError(f"{url!r}: there is no setting {min(unknown)!r}; there are synchronous and busy_timeout_s")
    if "busy_timeout_s" in settings:
        try:
            settings["busy_timeout_s"] = float(settings["busy_timeout_s"])
        except ValueError:
            raise ConfigError(f"{url!r}: busy_timeout_s must be a number of seconds") from None
    return SqliteCheckpoints(_path(url, path), **settings)


def _path(url: str, path: str) -> str:
    if path.startswith("//"):
        raise ConfigError(f"{url!r}: write the path right behind the colon, as in sqlite:./x.db or sqlite:/var/x.db")
    if not path:
        raise ConfigError(f"{url!r} names no file; {_forms()}")
    return path


def _forms() -> str:
    return f"it can be {', '.join(STORE_URLS[:-1])} or {STORE_URLS[-1]}"
