"""What plain readers of a lake table see: `deltalake` and `pyiceberg`, without anything of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from penstock.lakes import LakeTable

FORMATS: Final = ("delta", "iceberg")


def uri_of(form: str, folder: Path, name: str = "orders") -> str:
    """A table of this format in the folder. Skips the test if the library of the format is not installed."""
    pytest.importorskip("deltalake" if form == "delta" else "pyiceberg", reason=f"no library for {form} is installed")
    return f"delta:{folder}/{name}" if form == "delta" else f"iceberg:{folder}#shop.{name}"


def rows_of(table: LakeTable | str) -> list[dict[str, Any]]:
    """All rows, in no order; none if there is no such table."""
    uri = table if isinstance(table, str) else table.uri
    kind, _, rest = uri.partition(":")
    if kind == "delta":
        import deltalake

        if not deltalake.DeltaTable.is_deltatable(rest):
            return []
        found: list[dict[str, Any]] = deltalake.DeltaTable(rest).to_pyarrow_table().to_pylist()
        return found
    loaded = iceberg(uri)
    return [] if loaded is None else loaded.scan().to_arrow().to_pylist()


def iceberg(uri: str) -> Any:
    """The table of pyiceberg; None if there is none."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    folder, _, name = uri.partition(":")[2].rpartition("#")
    if not Path(folder, "catalog.db").exists():
        return None
    catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return None


def files_of(uri: str) -> list[str]:
    """The data files of the newest version."""
    kind, _, rest = uri.partition(":")
    if kind == "delta":
        import deltalake

        return list(deltalake.DeltaTable(rest).file_uris())
    return [task.file.file_path for task in iceberg(uri).scan().plan_files()]


def data_files_on_disk(uri: str) -> list[Path]:
    """Every Parquet file in the folder of the table, whether the table still needs it or not."""
    kind, _, rest = uri.partition(":")
    folder = Path(rest) if kind == "delta" else Path(rest.partition("#")[0])
    return [path for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts]
