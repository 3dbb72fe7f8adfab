"""`find_java`: the Java installation to run Spark or Apache Kafka on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import JavaMissingError

MINIMUM: Final = 17
"""What Spark 4 and Apache Kafka 4 require."""
ASKING_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation."""

    home: Path
    """Its JAVA_HOME."""
    version: int
    """8, 11, 17, 21, ...; 0 if unknown."""
    where: str
    """How it was found: JAVA_HOME, PATH, or a folder."""

    @property
    def fits(self) -> bool:
        return self.version >= MINIMUM


def find_java(environment: Mapping[str, str] = os.environ, *, needed_by: str = "Spark") -> Java:
    """The Java of JAVA_HOME, else of PATH, else the oldest installed one that is new enough.

    One that is too old is skipped wherever it was found, as a newer one may be installed beside it. Of the installed
    ones the oldest is taken, as Spark was tested with it for longest. Raises JavaMissingError.
    """
    found = []
    for java in _named(environment):
        if java.fits:
            return java
        found.append(java)
    installed = sorted(_installed(), key=lambda java: (java.version, str(java.home)))
    for java in installed:
        if java.fits:
            return java
    raise JavaMissingError(_complaint([*found, *installed], environment, needed_by))


def _named(environment: Mapping[str, str]) -> Iterator[Java]:
    home = environment.get("JAVA_HOME")
    if home and (java := _java_of(Path(home) / "bin" / "java", f"JAVA_HOME={home}")):
        yield java
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path and (java := _java_of(Path(on_path), f"{on_path} on PATH")):
        yield java


def _installed() -> Iterator[Java]:
    seen = set()
    for folder in jvm_folders():
        if not folder.is_dir():
            continue
        for home in sorted(folder.iterdir()):
            for candidate in (home, home / "Contents" / "Home"):
                program = candidate / "bin" / "java"
                if not os.access(program, os.X_OK) or program.resolve() in seen:
                    continue
                seen.add(program.resolve())
                if java := _java_of(program, str(home)):
                    yield java


def jvm_folders() -> tuple[Path, ...]:
    """The folders in which package managers install Java."""
    if sys.platform == "darwin":
        return (
            Path("/Library/Java/JavaVirtualMachines"),
            Path.home() / "Library/Java/JavaVirtualMachines",
            Path("/opt/homebrew/opt"),
            *_users_own(),
        )
    return (Path("/usr/lib/jvm"), Path("/usr/java"), Path("/opt/java"), *_users_own())


def _users_own() -> tuple[Path, ...]:
    return Path.home() / ".sdkman/candidates/java", Path.home() / ".jdks", Path.home() / ".jdk"


def _java_of(program: Path, where: str) -> Java | None:
    """None if it cannot be run: the `java` of macOS is only a hint where to get one."""
    if not os.access(program, os.X_OK):
        return None
    home = program.resolve().parent.parent
    release = home / "release"
    if release.is_file():
        return Java(home, _version_in(release.read_text("utf-8", errors="replace")), where)
    command = [str(program), "-XshowSettings:properties", "-version"]
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ASKING_TIMEOUT_S, check=True
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    home_line = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    return Java(Path(home_line.group(1).strip()) if home_line else home, _version_in(output), where)


def _version_in(text: str) -> int:
    """17 for JAVA_VERSION="17.0.15" or openjdk version "17.0.15"; 8 for "1.8.0_402"."""
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else 0


def _complaint(found: list[Java], environment: Mapping[str, str], needed_by: str) -> str:
    home = environment.get("JAVA_HOME")
    there = [f"Java {java.version or 'of an unknown version'} ({java.where})" for java in found]
    if home and not any(java.where.startswith("JAVA_HOME=") for java in found):
        there.insert(0, f"no java that runs in JAVA_HOME={home}")
    what = "found " + ", ".join(there) if there else "found none: not by JAVA_HOME, not on PATH, not installed"
    fix = f"{_how_to_install()}, or set JAVA_HOME to one that you have."
    return f"{needed_by} needs Java {MINIMUM} or newer; {what}. {fix}"


def _how_to_install() -> str:
    if sys.platform == "darwin":
        return f"Install one with `brew install openjdk@{MINIMUM}`"
    for program, command in (
        ("apt-get", f"apt-get install openjdk-{MINIMUM}-jre-headless"),
        ("dnf", f"dnf install java-{MINIMUM}-openjdk-headless"),
        ("apk", f"apk add openjdk{MINIMUM}-jre-headless"),
    ):
        if shutil.which(program):
            return f"Install one with `{command}`"
    return "Install one, such as Eclipse Temurin from https://adoptium.net"
