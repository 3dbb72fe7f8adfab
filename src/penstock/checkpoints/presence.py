"""Whether a checkpoint store exists. Asking creates none."""

from __future__ import annotations

from pathlib import Path

from penstock.checkpoints.sqlite.statements import SCHEMA as SQLITE_SCHEMA
from penstock.sql.sqlite import has_tables


def is_absent(url: str) -> bool:
    """Whether opening the store of this URL would create it. Raises StoreUnavailableError if a database is away.

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
