"""Delivering batches as files: Spark writes them aside, a manifest makes them count, renaming makes them appear."""

from __future__ import annotations

import uuid
from typing import Final

from pyarrow.fs import FileInfo, FileSelector, FileType
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sql

from penstock.errors import FencedError
from penstock.spark.sink.file_systems import sync
from penstock.spark.sink.folders.manifest import Manifest, Shelf
from penstock.spark.sink.publishing import check_order
from penstock.spark.targets import Delivered, QueryIdentity

_OPTIONS: Final[dict[str, dict[str, str]]] = {"parquet": {}, "json": {}, "csv": {"header": "true"}}


class FolderDelivery:
    """A folder that was opened for one run of a query.

    The order of steps is what makes a batch count once. Its files are written in a folder of this run's own. Then its
    manifest is added: from here on the batch counts. Then the files are renamed into their places, one by one, and in
    complete mode those of the batches before are removed. Who dies in between leaves a manifest, and the next run does
    what is left of it before anything else; renaming a file that is in its place already is nothing.
    """

    def __init__(
        self, path: str, file_format: str, partition_by: tuple[str, ...], identity: QueryIdentity, label: str
    ) -> None:
        self._format = file_format
        self._partition_by = partition_by
        self._identity = identity
        self._label = label
        self._shelf = Shelf(path, identity.id)
        self._path = path.rstrip("/")
        self._mark = self._shelf.own.rpartition("/")[2]
        self._run = uuid.uuid4().hex[:12]
        self._last: Manifest | None = None
        known = self._shelf.batches()
        if known:
            self._last = self._shelf.read(known[-1])
            self._carry_out(self._last)
        self._clear_staged()

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        if self._last is not None:
            check_order(batch_id, self._last.batch, self._label)
            if self._last.batch == batch_id:
                return Delivered(self._last.rows, repeated=True)
        staging = f"{self._shelf.own}/staged-{self._run}-{batch_id}"
        rows = self._write(frame, staging)
        manifest = Manifest(
            query=self._identity.query,
            batch=batch_id,
            rows=rows,
            staging=staging,
            files=self._places(staging, batch_id),
            keeps=self._identity.mode != "complete",
        )
        newer = [batch for batch in self._shelf.batches() if batch > (self._last.batch if self._last else -1)]
        if newer:
            raise FencedError(
                f"batch {newer[-1]} of query {self._identity.query!r} was delivered to {self._label} by another run: "
                "this one delivers no more"
            )
        for source, _ in manifest.files:
            sync(self._shelf.system, f"{self._shelf.root}/{staging}/{source}")
        self._shelf.add(manifest)
        self._carry_out(manifest)
        self._shelf.forget_old()
        self._last = manifest
        return Delivered(rows)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _write(self, frame: DataFrame, staging: str) -> int:
        seen = Observation()
        writer = frame.observe(seen, sql.count(sql.lit(1)).alias("rows")).write.format(self._format)
        writer = writer.mode("overwrite").options(**_OPTIONS[self._format])
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(f"{self._path}/{staging}")
        return int(seen.get["rows"])

    def _places(self, staging: str, batch_id: int) -> list[tuple[str, str]]:
        """Where the files of a batch go: names that tell query and batch, and are the same when it is done again."""
        places = []
        for number, path in enumerate(self._data_files(staging)):
            folder, _, name = path.rpartition("/")
            end = name[name.index(".") :]
            name = f"{'' if not folder else folder + '/'}{self._mark}-{batch_id:08d}-{number:05d}{end}"
            places.append((path, name))
        return places

    def _data_files(self, staging: str) -> list[str]:
        """What Spark wrote there, relative to that folder."""
        names = self._files_below(staging)
        return sorted(name for name in names if name.rpartition("/")[2].startswith("part-"))

    def _files_below(self, folder: str) -> list[str]:
        top = f"{self._shelf.root}/{folder}".rstrip("/") + "/"
        found: list[FileInfo] = self._shelf.system.get_file_info(
            FileSelector(top, recursive=True, allow_not_found=True)
        )
        return [info.path.removeprefix(top) for info in found if info.type is FileType.File]

    def _carry_out(self, manifest: Manifest) -> None:
        """Do what a manifest says, or what is left of it."""
        system, root = self._shelf.system, self._shelf.root
        folders = {f"{root}/{place}".rpartition("/")[0] for _, place in manifest.files}
        for source, place in manifest.files:
            staged = f"{root}/{manifest.staging}/{source}"
            if system.get_file_info(staged).type is not FileType.NotFound:
                system.create_dir(f"{root}/{place}".rpartition("/")[0], recursive=True)
                system.move(staged, f"{root}/{place}")
        for folder in folders:
            sync(system, folder)
        if not manifest.keeps:
            self._remove_before(manifest)
        if system.get_file_info(f"{root}/{manifest.staging}").type is not FileType.NotFound:
            system.delete_dir(f"{root}/{manifest.staging}")

    def _remove_before(self, manifest: Manifest) -> None:
        """All rows that there are came with this batch: the files of those before go."""
        for path in self._files_below(""):
            mark, _, rest = path.rpartition("/")[2].partition("-")
            number = rest.partition("-")[0]
            if mark == self._mark and number.isdecimal() and int(number) < manifest.batch:
                self._shelf.system.delete_file(f"{self._shelf.root}/{path}")

    def _clear_staged(self) -> None:
        """Remove what runs have staged that did not come to a manifest."""
        own = f"{self._shelf.root}/{self._shelf.own}"
        for info in self._shelf.system.get_file_info(FileSelector(own)):
            if info.type is FileType.Directory and info.base_name.startswith("staged-"):
                self._shelf.system.delete_dir(info.path)
            elif info.base_name.startswith("draft-"):
                self._shelf.system.delete_file(info.path)
