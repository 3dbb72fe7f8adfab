"""The folder of staged files: on a disk that driver and executors share, or on any file system that Arrow knows."""

from __future__ import annotations

from dataclasses import dataclass

from pyarrow import NativeFile
from pyarrow.fs import FileType

from penstock.errors import PipelineError
from penstock.spark.sink.file_systems import opened


@dataclass(frozen=True, slots=True)
class StagingFolder:
    """`QueryIdentity.staging`: a folder for each batch, and nothing else in it."""

    path: str

    def create(self, batch_id: int, name: str) -> NativeFile:
        """A new file, to be written once."""
        system, path = opened(self.path)
        system.create_dir(f"{path}/{batch_id}", recursive=True)
        return system.open_output_stream(f"{path}/{batch_id}/{name}")

    def read(self, batch_id: int, name: str, host: str) -> NativeFile:
        """A file that a task on `host` has told of."""
        system, path = opened(self.path)
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
        self._remove(f"/{batch_id}")

    def clear(self) -> None:
        """Remove what earlier runs have left."""
        self._remove("")

    def _remove(self, below: str) -> None:
        system, path = opened(self.path)
        if system.get_file_info(path + below).type is not FileType.NotFound:
            system.delete_dir(path + below)
