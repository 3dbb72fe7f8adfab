"""Finding a Java, and what is said when there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import JavaMissingError
from penstock.java import installed as module
from penstock.java.installed import find_java

MakeJava = Callable[..., Path]


@pytest.fixture
def jvm_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which Javas are installed in this folder, and nowhere else."""
    folder = tmp_path / "jvm"
    folder.mkdir()
    monkeypatch.setattr(module, "jvm_folders", lambda: (tmp_path / "absent", folder))
    return folder


@pytest.fixture
def make_java() -> MakeJava:
    def make(home: Path, version: str, *, says_by_itself: bool = False) -> Path:
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        script = f"""#!/bin/sh\nprintf '    java.home = {home}\\nopenjdk version "{version}" 2025-04-15\\n' >&2\n"""
        program.write_text(script if says_by_itself else "#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
        if not says_by_itself:
            (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
        return home

    return make


def test_java_home_is_taken_first(jvm_folder: Path, tmp_path: Path, make_java: MakeJava) -> None:
    chosen = make_java(tmp_path / "chosen", "21.0.1")
    on_path = make_java(tmp_path / "path", "17.0.2")
    make_java(jvm_folder / "other", "17.0.2")
    java = find_java({"JAVA_HOME": str(chosen), "PATH": str(on_path / "bin")})
    assert (java.home, java.version) == (chosen, 21)


def test_then_the_one_on_the_path_through_its_links(jvm_folder: Path, tmp_path: Path, make_java: MakeJava) -> None:
    real = make_java(jvm_folder / "java-17", "17.0.15")
    make_java(jvm_folder / "java-25", "25")
    links = tmp_path / "bin"
    links.mkdir()
    (links / "java").symlink_to(real / "bin" / "java")
    assert find_java({"PATH": str(links)}).home == real


def test_then_the_oldest_that_is_new_enough(jvm_folder: Path, make_java: MakeJava) -> None:
    make_java(jvm_folder / "java-8", "1.8.0_402")
    make_java(jvm_folder / "java-25", "25.0.1")
    make_java(jvm_folder / "java-21", "21.0.1")
    assert find_java({"PATH": ""}).version == 21


def test_one_that_is_too_old_is_passed_over_wherever_it_stands(
    jvm_folder: Path, tmp_path: Path, make_java: MakeJava
) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    new = make_java(jvm_folder / "new", "17.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(old / "bin")}).home == new


def test_a_java_without_a_release_file_is_asked(jvm_folder: Path, tmp_path: Path, make_java: MakeJava) -> None:
    home = make_java(tmp_path / "plain", "17.0.3", says_by_itself=True)
    java = find_java({"PATH": str(home / "bin")})
    assert (java.home, java.version) == (home, 17)


def test_a_java_that_does_not_run_is_none(jvm_folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(JavaMissingError, match="found none"):
        find_java({"PATH": str(program.parent)})


def test_an_old_java_is_named_with_what_to_install(jvm_folder: Path, tmp_path: Path, make_java: MakeJava) -> None:
    old = make_java(tmp_path / "old", "1.8.0_402")
    make_java(jvm_folder / "eleven", "11.0.2")
    with pytest.raises(JavaMissingError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    message = str(caught.value)
    assert f"Java 8 (JAVA_HOME={old})" in message
    assert f"Java 11 ({jvm_folder / 'eleven'})" in message
    assert "needs Java 17 or newer" in message
    assert "Install one" in message


def test_a_java_home_that_leads_nowhere_is_named(jvm_folder: Path) -> None:
    with pytest.raises(JavaMissingError, match="no java that runs in JAVA_HOME=/nowhere"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": ""})


def test_macs_keep_the_home_deeper(jvm_folder: Path, make_java: MakeJava) -> None:
    home = make_java(jvm_folder / "temurin-17.jdk" / "Contents" / "Home", "17.0.9")
    assert find_java({"PATH": ""}).home == home
