"""Arrow file systems by path or URI."""

from __future__ import annotations

import os
import re

import pyarrow.fs
from pyarrow import ArrowInvalid, ArrowNotImplementedError

from penstock.errors import ConfigError
from penstock.spark.sink.webhdfs import WebHdfs, addresses_of


def sync(system: pyarrow.fs.FileSystem, path: str) -> None:
    """Make a file, or the entries of a folder, durable on a local disk. Other file systems need no fsync."""
    if isinstance(system, pyarrow.fs.LocalFileSystem):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def move_new(system: pyarrow.fs.FileSystem, source: str, path: str) -> None:
    """Rename a file durably. Raises FileExistsError if there is a file at `path`.

    Of two such renames at once exactly one succeeds, on local disks and HDFS. Object stores have no such operation, and
    both may succeed there.
    """
    if isinstance(system, pyarrow.fs.LocalFileSystem):
        os.link(source, path)
        os.unlink(source)
        sync(system, os.path.dirname(path))
        return
    if isinstance(system, pyarrow.fs.PyFileSystem) and isinstance(system.handler, WebHdfs):
        system.handler.move_new(source, path)
        return
    if system.get_file_info(path).type is not pyarrow.fs.FileType.NotFound:
        raise FileExistsError(path)
    system.move(source, path)


def is_local(path: str) -> bool:
    return "://" not in path and not path.startswith("file:")


def opened(path: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a path or URI, and the path on it. Raises ConfigError if it cannot be reached."""
    if is_local(path):
        return pyarrow.fs.LocalFileSystem(), os.path.abspath(path)
    if path.startswith(("hdfs:", "webhdfs:", "swebhdfs:")):
        addresses, root = addresses_of(path)
        return pyarrow.fs.PyFileSystem(WebHdfs(addresses)), root.rstrip("/")
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
