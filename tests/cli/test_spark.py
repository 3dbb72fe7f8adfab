"""`penstock spark`."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark
import pytest

from penstock.java.installed import find_java
from penstock.spark.sessions.class_archive import archive_file, session_jars
from tests.cli.running import Command


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def filled(cache: Path) -> Path:
    jar = cache / "spark" / pyspark.__version__ / "connector" / "spark-sql-kafka.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"x" * 2048)
    return jar


def test_jars_that_are_there_are_printed_and_not_fetched_again(filled: Path) -> None:
    done = Command("memory:").well("spark", "jars")
    assert done.out == f"{filled}\n"
    assert "exists already" in done.err
    assert "1 jar, 2.0 KB" in done.err


def test_where_they_are_can_be_asked_without_fetching_any(filled: Path) -> None:
    done = Command("memory:").well("spark", "jars", "--where")
    assert (done.out, done.err) == (f"{filled}\n", "")


def test_where_they_would_be_is_told_with_how_to_get_them(cache: Path) -> None:
    done = Command("memory:")("spark", "jars", "--where")
    assert (done.code, done.out) == (1, "")
    assert str(cache) in done.err
    assert "run `penstock spark jars` once" in done.err


def test_where_and_force_contradict_each_other(filled: Path) -> None:
    done = Command("memory:")("spark", "jars", "--where", "--force")
    assert done.code == 1
    assert "exclude each other" in done.err


def test_a_maven_that_fails_is_told_in_one_sentence(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "mvn"
    program.write_text("#!/bin/sh\necho '[ERROR] Unknown host repository.example'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = Command("memory:")("spark", "jars")
    assert done.code == 1
    assert "did not answer" in done.err
    assert "Unknown host repository.example" in done.err
    assert "Traceback" not in done.err


def test_the_noun_alone_shows_its_help() -> None:
    done = Command("memory:")("spark")
    assert "jars" in done.out + done.err


def test_an_archive_that_is_not_there_is_told_with_how_to_make_it(cache: Path) -> None:
    done = Command("memory:")("spark", "archive", "--where")
    assert (done.code, done.out) == (1, "")
    assert "run `penstock spark archive` once" in done.err


def test_an_archive_that_is_there_is_printed_and_not_made_again(cache: Path) -> None:
    file = archive_file(find_java(), os.pathsep.join(session_jars()))
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * 2048)
    done = Command("memory:").well("spark", "archive")
    assert done.out == f"{file}\n"
    assert "exists already" in done.err
    assert Command("memory:").well("spark", "archive", "--where").out == f"{file}\n"
    done = Command("memory:")("spark", "archive", "--where", "--force")
    assert (done.code, done.out) == (1, "")
    assert "exclude each other" in done.err
