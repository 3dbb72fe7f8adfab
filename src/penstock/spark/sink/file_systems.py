"""Arrow file systems by path or URI."""

from __future__ import annotations

import os
import re

import pyarrow.fs
from pyarrow import ArrowInvalid, ArrowNotImplementedError

from penstock.errors import ConfigError


def sync(system: pyarrow.fs.FileSystem, path: str) -> None:
    """Make a file, or the entries of a folder, durable on a local disk. Other file systems need no fsync."""
    if isinstance(system, pyarrow.fs.LocalFileSystem):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_local(path: str) -> bool:
    return "://" not in path and not path.startswith("file:")


def opened(path: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a path or URI, and the path on it. Raises ConfigError if it cannot be reached."""
    if is_local(path):
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(path)
    try:
        uri = re.sub(r"^s3[an]://", "s3://", path)
        if uri.startswith("file:"):  # Hadoop writes file:/folder where others write file:///folder
            uri = "file:///" + uri.removeprefix("file:").lstrip("/")
        system, root = pyarrow.fs.FileSystem.from_uri(uri)
        return system, root.rstrip("/")
    except (ArrowInvalid, ArrowNotImplementedError, OSError) as error:
        raise ConfigError(
            f"{path} cannot be reached: {error}. Use a folder that pyarrow can reach, such as a shared folder, s3a://, "
            "gs://, abfss:// or hdfs://"
        ) from error
