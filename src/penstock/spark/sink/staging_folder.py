"""The folder of staged files: on a disk that driver and executors share, or on any file system that Arrow knows."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pyarrow.fs
from pyarrow import ArrowInvalid, NativeFile

from penstock.errors import ConfigError, PipelineError


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """`QueryIdentity.staging`: a folder for each batch, and nothing else in it."""

    path: str

    def create(self, batch_id: int, name: str) -> NativeFile:
        """A new file, to be written once."""
        system, path = self._opened()
        system.create_dir(f"{path}/{batch_id}", recursive=True)
        return system.open_output_stream(f"{path}/{batch_id}/{name}")

    def read(self, batch_id: int, name: str, host: str) -> NativeFile:
        """A file that a task on `host` has told of."""
        system, path = self._opened()
        try:
            return system.open_input_stream(f"{path}/{batch_id}/{name}")
        except FileNotFoundError as error:
            raise PipelineError(
                f"the rows that a task on {host!r} has staged in {path}/{batch_id}/{name} are not to be found there by "
                "the driver: put the checkpoints of the pipeline where the driver and all executors see them, such as "
                "a shared folder or s3://"
            ) from error

    def remove(self, batch_id: int) -> None:
        """Nobody needs the files of this batch any more."""
        system, path = self._opened()
        if system.get_file_info(f"{path}/{batch_id}").type is not pyarrow.fs.FileType.NotFound:
            system.delete_dir(f"{path}/{batch_id}")

    def clear(self) -> None:
        """Remove what earlier runs have left."""
        system, path = self._opened()
        if system.get_file_info(path).type is not pyarrow.fs.FileType.NotFound:
            system.delete_dir(path)

    def _opened(self) -> tuple[pyarrow.fs.FileSystem, str]:
        if "://" not in self.path and not self.path.startswith("file:"):
            return pyarrow.fs.LocalFileSystem(), os.path.abspath(self.path)
        try:
            uri = self.path.replace("s3a://", "s3://", 1)
            if uri.startswith("file:"):  # Hadoop writes file:/folder where others write file:///folder
                uri = "file:///" + uri.removeprefix("file:").lstrip("/")
            return pyarrow.fs.FileSystem.from_uri(uri)  # type: ignore[no-any-return]
        except (ArrowInvalid, OSError) as error:
            raise ConfigError(
                f"rows cannot be staged in {self.path}: {error}. Put the checkpoints elsewhere"
            ) from error
