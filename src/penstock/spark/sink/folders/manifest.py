"""Manifests: which files a batch has brought to a folder. A batch counts when its manifest is there.

They are kept under `_penstock` in the folder, where readers of Spark, Arrow and DuckDB do not look, one for each of the
last batches of a query, with what is staged beside them.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from typing import Final

import msgspec
from pyarrow.fs import FileSelector, FileType, LocalFileSystem

from penstock.errors import FencedError, PipelineError
from penstock.spark.sink.file_systems import opened, sync

HIDDEN: Final = "_penstock"
_KEPT: Final = 100
"""Manifests of so many batches stay: an older driver that wakes up after others went on finds its batch among them."""
_END: Final = ".json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch does to the folder. Paths are relative to it."""

    query: str
    batch: int
    rows: int
    staging: str
    """The folder in which the files were written; it goes when all are in their places."""
    files: list[tuple[str, str]]
    """From where in the staging folder to where."""
    keeps: bool = True
    """Whether the files of the batches before stay."""


class Shelf:
    """The manifests of one query in one folder."""

    def __init__(self, path: str, query_id: str) -> None:
        self.system, self.root = opened(path)
        name = hashlib.blake2b(query_id.encode(), digest_size=8).hexdigest()
        self.own = f"{HIDDEN}/{name}"
        """Where this query keeps its own things."""
        self.system.create_dir(f"{self.root}/{self.own}", recursive=True)

    def batches(self) -> list[int]:
        """The batches that have manifests, in their order."""
        found = self.system.get_file_info(FileSelector(f"{self.root}/{self.own}"))
        names = [info.base_name for info in found if info.type is FileType.File]
        return sorted(
            int(name.removesuffix(_END))
            for name in names
            if name.endswith(_END) and name.removesuffix(_END).isdecimal()
        )

    def read(self, batch: int) -> Manifest:
        path = self._path(batch)
        with self.system.open_input_stream(path) as file:
            data = file.read()
        try:
            return msgspec.json.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise PipelineError(f"{path} is damaged ({error}): restore it from a copy of the folder") from error

    def add(self, manifest: Manifest) -> None:
        """Have the batch count. FencedError when it does already: somebody else has delivered it.

        Whole or not at all, also for one who looks meanwhile. On a local disk, of two who try, one wins.
        """
        path = self._path(manifest.batch)
        draft = f"{self.root}/{self.own}/draft-{uuid.uuid4().hex}"
        with self.system.open_output_stream(draft) as file:
            file.write(msgspec.json.encode(manifest))
        sync(self.system, draft)
        try:
            if isinstance(self.system, LocalFileSystem):
                os.link(draft, path)
                os.unlink(draft)
                sync(self.system, f"{self.root}/{self.own}")
                return
            if self.system.get_file_info(path).type is not FileType.NotFound:
                raise FileExistsError(path)
            self.system.move(draft, path)
        except FileExistsError as error:
            raise FencedError(
                f"batch {manifest.batch} of query {manifest.query!r} was delivered to {self.root} by another run: this "
                "one delivers no more"
            ) from error

    def forget_old(self) -> None:
        for batch in self.batches()[:-_KEPT]:
            self.system.delete_file(self._path(batch))

    def _path(self, batch: int) -> str:
        return f"{self.root}/{self.own}/{batch:012d}{_END}"
