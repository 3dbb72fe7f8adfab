"""Open the checkpoint store that a URL names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from penstock.abc import CheckpointStore, Stream
from penstock.checkpoints.memory import MemoryCheckpoints
from penstock.checkpoints.objects.dynamodb import DynamoCheckpoints
from penstock.checkpoints.objects.files import FileCheckpoints
from penstock.checkpoints.objects.s3 import S3Checkpoints
from penstock.checkpoints.redis.store import RedisCheckpoints
from penstock.checkpoints.sqlite.store import SCHEMA as SQLITE_SCHEMA
from penstock.checkpoints.sqlite.store import SqliteCheckpoints
from penstock.databases.sqlite import has_tables
from penstock.errors import ConfigError
from penstock.streams.schemes import CHECKPOINTS, has_scheme, installed_schemes, opener

STORE_URLS: Final = (
    "sqlite:./FILE (?synchronous=FULL, ?busy_timeout_s=30)",
    "file:./FOLDER",
    "memory:",
    "postgresql://USER@HOST/DATABASE",
    "redis://HOST:6379/0",
    "dynamodb://REGION/TABLE",
    "s3://BUCKET/PREFIX",
)
"""The URLs of checkpoint stores."""


def open_store(store: str | CheckpointStore, stream: Stream | None = None) -> CheckpointStore:
    """Open the store that a URL names; a store is returned unchanged. `stream` is the stream whose checkpoints it
    keeps: "kafka:" is the store in its brokers. ConfigError lists the supported URLs."""
    if not isinstance(store, str):
        missing = [name for name in ("claim", "renew", "load", "save") if not hasattr(store, name)]
        if missing:
            raise ConfigError(f"{store!r} is not a checkpoint store: it has no {', '.join(missing)}; {_forms()}")
        return store
    scheme, colon, _ = store.partition(":")
    if not colon:
        raise ConfigError(f"{store!r} does not name a checkpoint store; {_forms()}")
    if not has_scheme(CHECKPOINTS, scheme):
        installed = ", ".join(installed_schemes(CHECKPOINTS))
        raise ConfigError(f"{scheme!r} is not a kind of checkpoint store; {_forms()}. Installed: {installed}")
    opened: CheckpointStore = opener(CHECKPOINTS, store, "a checkpoint store")(store, stream)
    return opened


def is_absent(url: str) -> bool:
    """Whether opening the store of this URL would create it. Asking creates nothing. Raises StoreUnavailableError if a
    database is away.

    False for stores whose opening creates nothing, such as Redis and S3.
    """
    scheme, _, rest = url.partition(":")
    path = Path(rest.partition("?")[0])
    if scheme == "sqlite":
        return not path.exists() or not has_tables(path, SQLITE_SCHEMA)
    if scheme == "file":
        return not path.exists()
    if scheme in ("postgresql", "postgres"):
        from penstock.checkpoints.postgres.store import is_in  # it needs a package that may not be installed

        return not is_in(url)
    return False


# Each store is imported when it is opened: some need packages that may not be installed.


def open_postgres(url: str, stream: Stream | None) -> CheckpointStore:
    from penstock.checkpoints.postgres.store import PostgresCheckpoints

    return PostgresCheckpoints(url)


def open_redis(url: str, stream: Stream | None) -> CheckpointStore:
    return RedisCheckpoints(url)


def open_dynamodb(url: str, stream: Stream | None) -> CheckpointStore:
    return DynamoCheckpoints(url)


def open_s3(url: str, stream: Stream | None) -> CheckpointStore:
    return S3Checkpoints(url)


def open_file(url: str, stream: Stream | None) -> CheckpointStore:
    return FileCheckpoints(_path(url, url.partition(":")[2]))


def open_memory(url: str, stream: Stream | None) -> CheckpointStore:
    if url.partition(":")[2]:
        raise ConfigError(f"{url!r}: memory: takes no path, as it is not shared")
    return MemoryCheckpoints()


def open_sqlite(url: str, stream: Stream | None) -> CheckpointStore:
    path, _, query = url.partition(":")[2].partition("?")
    try:
        settings: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise ConfigError(f"{url!r}: the query is invalid: {error}") from error
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
        raise ConfigError(f"{url!r}: write the path right after the colon, as in sqlite:./x.db or sqlite:/var/x.db")
    if not path:
        raise ConfigError(f"{url!r} names no file; {_forms()}")
    return path


def _forms() -> str:
    return f"supported: {', '.join(STORE_URLS[:-1])} or {STORE_URLS[-1]}"
