"""Delivery of batches as files: Spark stages them, a manifest commits them, and renames publish them.

A manifest lists the files of a batch, which counts once its manifest exists. Manifests of the last batches of a query,
and staged files, are in `_penstock` inside the folder, which Spark, Arrow and DuckDB ignore when they read it.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

import msgspec
from pyarrow.fs import FileInfo, FileSelector, FileType
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sql

from penstock.errors import FencedError, PipelineError
from penstock.spark.sink.file_systems import move_new, opened, sync
from penstock.spark.sink.publishing import check_order
from penstock.spark.sink.target import Delivered, QueryIdentity

HIDDEN: Final = "_penstock"
_KEPT: Final = 100
"""How many manifests are kept: an older driver that resumes later finds its batch among them."""
_SUFFIX: Final = ".json"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one batch to the folder. Paths are relative to it."""

    query: str
    batch: int
    rows: int
    staging: str
    """The folder in which the files were written; it is deleted after all were moved."""
    files: list[tuple[str, str]]
    """The path of each file in the staging folder, and its final path."""
    keeps: bool = True
    """Whether the files of earlier batches stay."""


class ManifestFolder:
    """The manifests of one query in one folder."""

    def __init__(self, path: str, query_id: str) -> None:
        self.system, self.root = opened(path)
        name = hashlib.blake2b(query_id.encode(), digest_size=8).hexdigest()
        self.own = f"{HIDDEN}/{name}"
        """The query's own folder, for its manifests and staged files."""
        self.system.create_dir(f"{self.root}/{self.own}", recursive=True)

    def batches(self) -> list[int]:
        """The batches that have manifests, in ascending order."""
        found = self.system.get_file_info(FileSelector(f"{self.root}/{self.own}"))
        names = [info.base_name for info in found if info.type is FileType.File]
        return sorted(
            int(name.removesuffix(_SUFFIX))
            for name in names
            if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdecimal()
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
        """Write the manifest atomically, which delivers the batch.

        Raises FencedError if another run has delivered it. On local disks and HDFS, exactly one of two concurrent runs
        wins.
        """
        path = self._path(manifest.batch)
        draft = f"{self.root}/{self.own}/draft-{uuid.uuid4().hex}"
        with self.system.open_output_stream(draft) as file:
            file.write(msgspec.json.encode(manifest))
        sync(self.system, draft)
        try:
            move_new(self.system, draft, path)
        except FileExistsError as error:
            raise FencedError(
                f"batch {manifest.batch} of query {manifest.query!r} was delivered to {self.root} by another run: this "
                "run must stop"
            ) from error

    def forget_old(self) -> None:
        for batch in self.batches()[:-_KEPT]:
            self.system.delete_file(self._path(batch))

    def _path(self, batch: int) -> str:
        return f"{self.root}/{self.own}/{batch:012d}{_SUFFIX}"


_OPTIONS: Final[dict[str, dict[str, str]]] = {"parquet": {}, "json": {}, "csv": {"header": "true"}}


class FolderDelivery:
    """A folder opened for one run of a query.

    The order of steps delivers a batch once. Spark writes its files to a staging folder of this run. Adding the
    manifest commits the batch. Then the files are renamed to their final paths, one by one, and in complete mode the
    files of earlier batches are deleted. If a run dies in between, the next one first completes the last manifest;
    files that were already renamed are skipped.
    """

    def __init__(
        self, path: str, file_format: str, partition_by: tuple[str, ...], identity: QueryIdentity, label: str
    ) -> None:
        self._format = file_format
        self._partition_by = partition_by
        self._identity = identity
        self._label = label
        self._manifests = ManifestFolder(path, identity.id)
        self._path = path.rstrip("/")
        self._mark = self._manifests.own.rpartition("/")[2]
        self._run = uuid.uuid4().hex[:12]
        self._last: Manifest | None = None
        known = self._manifests.batches()
        if known:
            self._last = self._manifests.read(known[-1])
            self._apply(self._last)
        self._clear_staged()

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        if self._last is not None:
            check_order(batch_id, self._last.batch, self._label)
            if self._last.batch == batch_id:
                return Delivered(self._last.rows, repeated=True)
        staging = f"{self._manifests.own}/staged-{self._run}-{batch_id}"
        rows = self._write(frame, staging)
        self._identity.evaluated(batch_id)
        files = self._final_paths(staging, batch_id)
        if rows and not files:
            raise PipelineError(
                f"{rows} rows of batch {batch_id} were written to {self._label}, but the driver finds no file there: "
                "executors write to a folder of their own. Use a folder that all hosts see"
            )
        manifest = Manifest(
            query=self._identity.query,
            batch=batch_id,
            rows=rows,
            staging=staging,
            files=files,
            keeps=self._identity.mode != "complete",
        )
        newer = [batch for batch in self._manifests.batches() if batch > (self._last.batch if self._last else -1)]
        if newer:
            raise FencedError(
                f"batch {newer[-1]} of query {self._identity.query!r} was delivered to {self._label} by another run: "
                "this run must stop"
            )
        for source, _ in manifest.files:
            sync(self._manifests.system, f"{self._manifests.root}/{staging}/{source}")
        self._manifests.add(manifest)
        self._apply(manifest)
        self._manifests.forget_old()
        self._last = manifest
        return Delivered(rows)

    def close(self) -> None:
        """Do nothing: the folder holds no resources."""

    def _write(self, frame: DataFrame, staging: str) -> int:
        seen = Observation()
        writer = frame.observe(seen, sql.count(sql.lit(1)).alias("rows")).write.format(self._format)
        writer = writer.mode("overwrite").options(**_OPTIONS[self._format])
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(f"{self._path}/{staging}")
        return int(seen.get["rows"])

    def _final_paths(self, staging: str, batch_id: int) -> list[tuple[str, str]]:
        """The staged and final path of each file. Final names contain query and batch, and do not depend on the run."""
        paths = []
        for number, path in enumerate(self._data_files(staging)):
            folder, _, name = path.rpartition("/")
            end = name[name.index(".") :]
            name = f"{'' if not folder else folder + '/'}{self._mark}-{batch_id:08d}-{number:05d}{end}"
            paths.append((path, name))
        return paths

    def _data_files(self, staging: str) -> list[str]:
        names = self._files_below(staging)
        return sorted(name for name in names if name.rpartition("/")[2].startswith("part-"))

    def _files_below(self, folder: str) -> list[str]:
        top = f"{self._manifests.root}/{folder}".rstrip("/") + "/"
        found: list[FileInfo] = self._manifests.system.get_file_info(
            FileSelector(top, recursive=True, allow_not_found=True)
        )
        return [info.path.removeprefix(top) for info in found if info.type is FileType.File]

    def _apply(self, manifest: Manifest) -> None:
        """Make the changes of a manifest that are not made yet."""
        system, root = self._manifests.system, self._manifests.root
        folders = {f"{root}/{path}".rpartition("/")[0] for _, path in manifest.files}
        for source, path in manifest.files:
            staged = f"{root}/{manifest.staging}/{source}"
            if system.get_file_info(staged).type is not FileType.NotFound:
                system.create_dir(f"{root}/{path}".rpartition("/")[0], recursive=True)
                system.move(staged, f"{root}/{path}")
        for folder in folders:
            sync(system, folder)
        if not manifest.keeps:
            self._remove_before(manifest)
        if system.get_file_info(f"{root}/{manifest.staging}").type is not FileType.NotFound:
            system.delete_dir(f"{root}/{manifest.staging}")

    def _remove_before(self, manifest: Manifest) -> None:
        """Delete the files of earlier batches, which this batch replaces."""
        for path in self._files_below(""):
            mark, _, rest = path.rpartition("/")[2].partition("-")
            number = rest.partition("-")[0]
            if mark == self._mark and number.isdecimal() and int(number) < manifest.batch:
                self._manifests.system.delete_file(f"{self._manifests.root}/{path}")

    def _clear_staged(self) -> None:
        own = f"{self._manifests.root}/{self._manifests.own}"
        for info in self._manifests.system.get_file_info(FileSelector(own)):
            if info.type is FileType.Directory and info.base_name.startswith("staged-"):
                self._manifests.system.delete_dir(info.path)
            elif info.base_name.startswith("draft-"):
                self._manifests.system.delete_file(info.path)
