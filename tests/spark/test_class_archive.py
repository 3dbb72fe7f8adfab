"""The archive of Spark's classes: for whom it counts, how it is made, and that sessions begin with it."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import PipelineError
from penstock.java.installed import Java, find_java
from penstock.spark.sessions import class_archive
from penstock.spark.sessions.class_archive import SILENCE, archive_file, archive_options, current_archive, session_jars

PATH = "spark.driver.extraClassPath"
EXTRA = "spark.driver.extraJavaOptions"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in a folder with a blank in its name."""
    folder = tmp_path / "a cache"
    monkeypatch.setenv("PENSTOCK_CACHE", str(folder))
    return folder


@pytest.fixture
def archive(cache: Path) -> Path:
    """Where the archive for sessions is to be; the folder is there, the archive is not."""
    file = archive_file(find_java(), os.pathsep.join(session_jars()))
    file.parent.mkdir(parents=True)
    return file


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is run instead of the pipeline whose classes are kept; the file to write comes as its third argument."""
    file = tmp_path / "program"
    monkeypatch.setattr(class_archive.sys, "executable", str(file))  # type: ignore[attr-defined]
    return file


def becomes(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_the_session_of_these_tests_has_the_archive_that_set_up_made_in_its_memory(spark: SparkSession) -> None:
    there = current_archive()
    if there is None:
        pytest.skip("there is no archive of Spark's classes: `make parts` makes it")
    gateway = SparkContext._gateway
    assert gateway is not None
    maps = Path(f"/proc/{gateway.proc.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what files a process has in its memory (/proc)")
    assert str(there) in maps.read_text()


def test_it_counts_for_one_java_one_class_path_and_the_jars_as_they_are(cache: Path, tmp_path: Path) -> None:
    java, jar = find_java(), tmp_path / "some.jar"
    jar.write_bytes(b"one")
    files = [archive_file(java, ""), archive_file(java, str(jar)), archive_file(Java(tmp_path, 21, "here"), str(jar))]
    jar.write_bytes(b"another")
    files.append(archive_file(java, str(jar)))
    assert len(set(files)) == 4
    assert all(file.is_relative_to(cache) for file in files)
    assert archive_file(java, str(jar)) == files[-1]


def test_a_session_begins_with_it_once_it_is_there(archive: Path) -> None:
    settings = {PATH: os.pathsep.join(session_jars())}
    assert (archive_options(settings), current_archive()) == ("", None)
    archive.touch()
    os.utime(archive, (1, 1))
    assert shlex.split(archive_options(settings)) == [f"-XX:SharedArchiveFile={archive}", *SILENCE]
    assert current_archive() == archive
    assert archive.stat().st_mtime > 1, "that it was used counts when old ones are removed"
    assert archive_options({PATH: ""}) == "", "it is not for another class path"


@pytest.mark.parametrize("own", ["-XX:SharedArchiveFile=mine.jsa", "-Xshare:off", "-XX:ArchiveClassesAtExit=new.jsa"])
def test_who_has_chosen_for_himself_is_left_alone(archive: Path, own: str) -> None:
    archive.touch()
    assert archive_options({PATH: os.pathsep.join(session_jars()), EXTRA: f"-Xmx1g {own}"}) == ""


@pytest.mark.parametrize("content", [b"", b"no archive" * 1000])
def test_java_starts_without_a_word_when_an_archive_is_of_no_use(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "classes.jsa"
    file.write_bytes(content)
    command = [str(find_java().home / "bin" / "java"), f"-XX:SharedArchiveFile={file}", *SILENCE, "--version"]
    environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "openjdk" in done.stdout.lower()
    assert "[" not in done.stdout.replace("[mixed", ""), done.stdout


def test_it_is_made_once_unless_it_is_forced(archive: Path, program: Path) -> None:
    told: list[str] = []
    becomes(program, 'echo first > "$3"')
    assert class_archive.make(tell=told.append) == archive
    assert archive.read_text() == "first\n"
    assert len(told) == 1
    becomes(program, 'echo second > "$3"')
    class_archive.make(tell=told.append)
    assert (archive.read_text(), len(told)) == ("first\n", 1)
    class_archive.make(force=True)
    assert archive.read_text() == "second\n"


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (
            'echo half > "$3"; echo one; echo "java.io.IOError: no space left"; exit 1',
            "failed: java.io.IOError: no space left",
        ),
        ("echo '[error][cds] non-empty directory /etc/spark'", "created no archive .* non-empty directory /etc/spark"),
        ("true", "it gave no reason"),
    ],
)
def test_what_went_wrong_is_told_and_what_was_there_stays(
    archive: Path, program: Path, script: str, complaint: str
) -> None:
    archive.write_text("the former")
    becomes(program, script)
    with pytest.raises(PipelineError, match=complaint):
        class_archive.make(force=True)
    assert archive.read_text() == "the former"
    log = archive.with_name(class_archive.LOG)
    assert {file.name for file in archive.parent.iterdir()} == {archive.name, "classes.lock", log.name}
    assert (log.read_text() == "one\njava.io.IOError: no space left\n") == ("echo one" in script)
    becomes(program, 'echo new > "$3"')
    class_archive.make(force=True)
    assert not log.exists()


def test_archives_that_nobody_has_used_for_a_month_are_removed(archive: Path, program: Path) -> None:
    becomes(program, 'echo new > "$3"')
    used, unused = archive.with_name("classes-used.jsa"), archive.with_name("classes-unused.jsa")
    for file, age_s in ((used, 29 * 86400), (unused, 31 * 86400)):
        file.touch()
        os.utime(file, (time.time() - age_s, time.time() - age_s))
    class_archive.make()
    assert (used.exists(), unused.exists()) == (True, False)
