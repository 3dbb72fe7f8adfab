"""The jar that is checked in, held against the sources beside it."""

from __future__ import annotations

import zipfile

import pytest

from penstock.spark.jvm import JAR, LEAN_FILES
from tools import build_jvm, parts


def test_the_jar_says_that_it_was_made_of_these_sources() -> None:
    assert build_jvm.digest_in(JAR) == build_jvm.digest_of_sources(), "run python -m tools.build_jvm"


def test_the_jar_is_what_the_sources_compile_to() -> None:
    try:
        compiler = parts.java_compiler(build_jvm.RELEASE)
    except parts.PartMissing as missing:
        pytest.skip(str(missing))
    assert JAR.read_bytes() == build_jvm.jar_bytes(compiler), "run python -m tools.build_jvm"


def test_the_classes_that_the_settings_name_are_in_the_jar() -> None:
    with zipfile.ZipFile(JAR) as archive:
        classes = {name.removesuffix(".class").replace("/", ".") for name in archive.namelist()}
    assert {value for key, value in LEAN_FILES.items() if key.endswith(".impl")} <= classes
