"""Finding the real parts of a test run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import real_parts
from tools import parts


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing on PATH, no Java anywhere, an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(parts, "JVM_FOLDER", tmp_path / "jvm")
    parts.java.cache_clear()
    parts.java_with_compiler.cache_clear()
    yield
    parts.java.cache_clear()
    parts.java_with_compiler.cache_clear()


def put_program(path: Path, script: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def put_java(home: Path, version: str, *, compiler: bool) -> Path:
    program = put_program(home / "bin" / "java")
    (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    if compiler:
        put_program(home / "bin" / "javac")
    return program


def test_a_missing_part_skips_with_what_set_up_noted(tmp_path: Path) -> None:
    note = parts.failure_note("kcat")
    note.parent.mkdir(parents=True)
    note.write_text("apt-get install failed: E: Unable to locate package kcat\n")
    with pytest.raises(pytest.skip.Exception) as skipped:
        real_parts.kcat()
    assert str(skipped.value) == "kcat is not installed: apt-get install failed: E: Unable to locate package kcat"


def test_a_part_that_was_never_tried_says_which_command_gets_it() -> None:
    with pytest.raises(parts.PartMissing, match="run `make parts`"):
        parts.kafka_jars()


def test_kcat_is_also_found_by_its_older_name(tmp_path: Path) -> None:
    program = put_program(tmp_path / "bin" / "kafkacat")
    assert real_parts.kcat() == str(program)


def test_the_newest_java_is_taken_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_java(tmp_path / "jvm" / "a-21", "21.0.2", compiler=False)
    put_java(tmp_path / "jvm" / "b-8", "1.8.0_402", compiler=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    newest = put_java(tmp_path / "home", "25", compiler=False)
    assert parts.java() == str(newest)


def test_a_java_without_a_compiler_is_passed_over_where_sources_are_run(tmp_path: Path) -> None:
    put_java(tmp_path / "jvm" / "jre", "25", compiler=False)
    with_compiler = put_java(tmp_path / "jvm" / "jdk", "17.0.15", compiler=True)
    assert parts.java_with_compiler() == str(with_compiler)


def test_a_java_that_is_too_old_is_named_in_the_reason(tmp_path: Path) -> None:
    put_java(tmp_path / "jvm" / "old", "11.0.22", compiler=True)
    with pytest.raises(parts.PartMissing, match=r"17 or newer is not installed, .*old/bin/java is 11"):
        parts.java()


def test_a_java_without_a_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    program = put_program(tmp_path / "bin" / "java", "echo 'openjdk version \"21.0.2\" 2024-01-16' >&2")
    assert parts.java_version(program) == 21


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "java"
    broken.parent.mkdir()
    broken.write_bytes(b"\x7fELF, but no more than that")
    broken.chmod(0o755)
    assert parts.java_version(broken) == 0


def test_the_pinned_kafka_has_a_version() -> None:
    assert parts.kafka_version().startswith("4.")


def test_the_compiler_of_one_version_is_found_beside_newer_ones(tmp_path: Path) -> None:
    put_java(tmp_path / "jvm" / "a-25", "25", compiler=True)
    put_java(tmp_path / "jvm" / "b-17", "17.0.1", compiler=False)
    wanted = put_java(tmp_path / "jvm" / "c-17", "17.0.15", compiler=True)
    assert parts.java_compiler(17) == wanted.with_name("javac")
    with pytest.raises(parts.PartMissing, match="a JDK of version 21 is not installed"):
        parts.java_compiler(21)


def test_the_connector_is_the_one_of_the_spark_that_is_installed() -> None:
    with pytest.raises(parts.PartMissing, match="spark-connector is not in the cache folder"):
        parts.spark_connector()
    folder = parts.cache_folder() / "spark" / importlib.metadata.version("pyspark") / "connector"
    folder.mkdir(parents=True)
    assert real_parts.spark_connector() == folder
