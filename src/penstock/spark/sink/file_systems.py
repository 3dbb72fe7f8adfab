"""Paths and URIs to the file systems that they are on, as far as Arrow knows them."""

from __future__ import annotations

import os

import pyarrow.fs
from pyarrow import ArrowInvalid

from penstock.errors import ConfigError


def sync(system: pyarrow.fs.FileSystem, path: str) -> None:
    """Have a file, or the names in a folder, survive a power cut. Only local disks must be asked for it."""
    if isinstance(system, pyarrow.fs.LocalFileSystem):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_local(path: str) -> bool:
    return "://" not in path and not path.startswith("file:")


def opened(path: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a path or URI, and the path on it. ConfigError for one that cannot be reached from here."""
    if is_local(path):
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(path)
    try:
        uri = path.replace("s3a://", "s3://", 1)
        if uri.startswith("file:"):  # Hadoop writes file:/folder where others write file:///folder
            uri = "file:///" + uri.removeprefix("file:").lstrip("/")
        return pyarrow.fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
    except (ArrowInvalid, OSError) as error:
        raise ConfigError(f"{path} cannot be reached: {error}") from error
