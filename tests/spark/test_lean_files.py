"""The lean local file system: what it leaves out, and what it keeps."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession


class Java(Protocol):
    """What the tests call in the JVM, by its own names."""

    def __getattr__(self, name: str) -> Any: ...


@pytest.fixture
def java(spark: SparkSession) -> Java:
    jvm: Java | None = spark.sparkContext._jvm
    assert jvm is not None
    return jvm


@pytest.fixture
def files(java: Java, spark: SparkSession) -> Any:
    """Hadoop's file system for file: paths, as Spark has it."""
    return java.org.apache.hadoop.fs.FileSystem.get(java.java.net.URI("file:///"), configuration(spark))


@pytest.fixture
def context(java: Java, spark: SparkSession) -> Any:
    """The other interface of Hadoop, which checkpoints are written through."""
    return java.org.apache.hadoop.fs.FileContext.getFileContext(java.java.net.URI("file:///"), configuration(spark))


@pytest.fixture
def stock(java: Java) -> Any:
    """Hadoop's own local file system, which writes checksum files."""
    conf = java.org.apache.hadoop.conf.Configuration()
    conf.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    return java.org.apache.hadoop.fs.FileSystem.newInstance(java.java.net.URI("file:///"), conf)


def configuration(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.hadoopConfiguration()


def write(java: Java, files: Any, path: Path, text: str) -> None:
    out = files.create(hadoop_path(java, path), True)
    out.write(bytearray(text.encode()))
    out.close()


def read(java: Java, files: Any, path: Path) -> str:
    stream = files.open(hadoop_path(java, path))
    try:
        return bytes(stream.readAllBytes()).decode()
    finally:
        stream.close()


def hadoop_path(java: Java, path: Path) -> Any:
    return java.org.apache.hadoop.fs.Path(path.as_uri())


def rename(java: Java, context: Any, source: Path, target: Path, *, overwrite: bool) -> None:
    option = java.org.apache.hadoop.fs.Options.Rename
    options = java.java.lang.reflect.Array.newInstance(option.NONE.getClass(), 1)
    java.java.lang.reflect.Array.set(options, 0, option.OVERWRITE if overwrite else option.NONE)
    context.rename(hadoop_path(java, source), hadoop_path(java, target), options)


def reason(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())


def test_spark_uses_it_for_local_paths(files: Any, context: Any) -> None:
    assert files.getClass().getName() == "penstock.LeanLocalFileSystem"
    assert context.getDefaultFileSystem().getClass().getName() == "penstock.LeanLocalFs"


def test_a_file_is_written_without_a_checksum_file(java: Java, files: Any, tmp_path: Path) -> None:
    write(java, files, tmp_path / "x", "abc")
    assert os.listdir(tmp_path) == ["x"]
    assert read(java, files, tmp_path / "x") == "abc"


def test_permissions_are_what_was_asked_for(java: Java, files: Any, tmp_path: Path) -> None:
    permission = java.org.apache.hadoop.fs.permission.FsPermission
    write(java, files, tmp_path / "x", "abc")
    files.setPermission(hadoop_path(java, tmp_path / "x"), permission("640"))
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640
    files.mkdirs(hadoop_path(java, tmp_path / "folder"), permission("750"))
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o750
    files.setPermission(hadoop_path(java, tmp_path / "folder"), permission("1777"))
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o1777
    assert str(files.getFileStatus(hadoop_path(java, tmp_path / "x")).getPermission()) == "rw-r-----"


def test_permissions_of_what_is_not_there_are_an_error(java: Java, files: Any, tmp_path: Path) -> None:
    with pytest.raises(Py4JJavaError) as caught:
        files.setPermission(
            hadoop_path(java, tmp_path / "absent"), java.org.apache.hadoop.fs.permission.FsPermission("640")
        )
    assert reason(caught.value) == "java.io.FileNotFoundException"


def test_what_stock_spark_wrote_is_read_and_still_verified(java: Java, files: Any, stock: Any, tmp_path: Path) -> None:
    write(java, stock, tmp_path / "x", "abc")
    assert sorted(os.listdir(tmp_path)) == [".x.crc", "x"]
    assert read(java, files, tmp_path / "x") == "abc"
    assert [str(status.getPath().getName()) for status in files.listStatus(hadoop_path(java, tmp_path))] == ["x"]
    (tmp_path / "x").write_text("abd")
    with pytest.raises(Py4JJavaError) as caught:
        read(java, files, tmp_path / "x")
    assert reason(caught.value) == "org.apache.hadoop.fs.ChecksumException"


def test_what_it_writes_over_a_file_with_a_checksum_is_read_by_both(
    java: Java, files: Any, context: Any, stock: Any, tmp_path: Path
) -> None:
    for name in ("created", "renamed", "renamed-in-context"):
        write(java, stock, tmp_path / name, "former")
    write(java, files, tmp_path / "created", "newer")
    for name in ("renamed", "renamed-in-context"):
        write(java, files, tmp_path / "source", "newer")
        if name == "renamed":
            assert files.rename(hadoop_path(java, tmp_path / "source"), hadoop_path(java, tmp_path / name))
        else:
            rename(java, context, tmp_path / "source", tmp_path / name, overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["created", "renamed", "renamed-in-context"]
    for name in os.listdir(tmp_path):
        assert read(java, files, tmp_path / name) == "newer"
        assert read(java, stock, tmp_path / name) == "newer"


def test_a_checksum_of_the_source_does_not_stay_behind(
    java: Java, context: Any, stock: Any, files: Any, tmp_path: Path
) -> None:
    write(java, stock, tmp_path / "source", "abc")
    rename(java, context, tmp_path / "source", tmp_path / "target", overwrite=False)
    assert os.listdir(tmp_path) == ["target"]
    assert read(java, files, tmp_path / "target") == "abc"


def test_a_name_that_is_taken_is_not_overwritten_unasked(java: Java, files: Any, context: Any, tmp_path: Path) -> None:
    write(java, files, tmp_path / "source", "second")
    write(java, files, tmp_path / "target", "first")
    with pytest.raises(Py4JJavaError) as caught:
        rename(java, context, tmp_path / "source", tmp_path / "target", overwrite=False)
    assert reason(caught.value) == "org.apache.hadoop.fs.FileAlreadyExistsException"
    assert (tmp_path / "target").read_text() == "first"
    assert (tmp_path / "source").read_text() == "second"
    rename(java, context, tmp_path / "source", tmp_path / "target", overwrite=True)
    assert (tmp_path / "target").read_text() == "second"
    assert os.listdir(tmp_path) == ["target"]


def test_of_many_that_take_one_name_at_once_one_gets_it(java: Java, files: Any, context: Any, tmp_path: Path) -> None:
    for race in range(20):
        target = tmp_path / f"target-{race}"
        sources = [tmp_path / f"source-{race}-{number}" for number in range(4)]
        for source in sources:
            source.write_text(source.name)

        def attempt(source: Path, target: Path = target) -> bool:
            try:
                rename(java, context, source, target, overwrite=False)
            except Py4JJavaError as error:
                if reason(error) != "org.apache.hadoop.fs.FileAlreadyExistsException":
                    raise
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            won = [source.name for source, gained in zip(sources, pool.map(attempt, sources), strict=True) if gained]
        assert won == [target.read_text()]
        assert sorted(path.name for path in tmp_path.glob(f"source-{race}-*")) == sorted(
            source.name for source in sources if source.name not in won
        )


def test_folders_are_renamed_as_before(java: Java, files: Any, context: Any, tmp_path: Path) -> None:
    (tmp_path / "source" / "inner").mkdir(parents=True)
    rename(java, context, tmp_path / "source", tmp_path / "target", overwrite=False)
    assert (tmp_path / "target" / "inner").is_dir()
    assert not (tmp_path / "source").exists()


@pytest.mark.parametrize(("source", "target"), [("absent", "x"), ("there", "absent/x")])
def test_a_rename_from_or_to_nowhere_is_an_error(
    java: Java, files: Any, context: Any, tmp_path: Path, source: str, target: str
) -> None:
    (tmp_path / "there").write_text("x")
    with pytest.raises(Py4JJavaError) as caught:
        rename(java, context, tmp_path / source, tmp_path / target, overwrite=False)
    assert reason(caught.value) == "java.io.FileNotFoundException"
    assert (tmp_path / "there").read_text() == "x"


def test_a_checkpoint_with_checksum_files_is_carried_on(
    spark: SparkSession, java: Java, stock: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    checkpoint = tmp_path / "checkpoint"
    seen: list[str] = []

    def run_once() -> None:
        frame = spark.readStream.format("text").load(str(tmp_path / "in"))
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: seen.extend(row.value for row in batch.collect()))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    (tmp_path / "in" / "1").write_text("one\n")
    run_once()
    for file in (checkpoint / "metadata", checkpoint / "offsets" / "0", checkpoint / "commits" / "0"):
        write(java, stock, file, file.read_text())
        assert file.with_name(f".{file.name}.crc").exists()
    (tmp_path / "in" / "2").write_text("two\n")
    run_once()
    assert seen == ["one", "two"]
    assert not (checkpoint / "commits" / ".1.crc").exists()
