"""Folders as places for results: Parquet, JSON and CSV files that appear by renaming, and Delta tables.

`folder` is what users name. `publishing` makes the files of a batch appear, once, by a `manifest` that says which they
are; `delta` leaves that to Delta's own log.
"""

from __future__ import annotations

from penstock.spark.sink.folders.folder import Folder

__all__ = ["Folder"]
