"""Two ways to download jars from the repositories that a machine is configured for: Maven, and Ivy, a part of Spark.

Both fetch artifacts without their dependencies: Spark contains these, and its poms name a repository that not every
machine can reach.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol
from xml.sax.saxutils import escape

from penstock.errors import ConnectorMissingError
from penstock.java.downloads import DEPENDENCY_PLUGIN, reason_in, run_program

MAVEN_TIMEOUT_S: Final = 420.0
IVY_TIMEOUT_S: Final = 120.0

NOT_THERE: Final = re.compile(
    r"Could not find artifact|was not found in|No versions available|status code: 40[34]|\b40[34] (Forbidden|Not Found)"
    r"|unresolved dependency: .* not found|UNRESOLVED DEPENDENCIES"
)
"""The output of tools if a repository answers that it does not have an artifact, or denies it."""
NOT_REACHED: Final = re.compile(r"Host \S+ not found|Server access [Ee]rror|proxy server that is not well configured")
"""The output of Ivy if no repository answers. It also reports the artifact as missing then."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """An artifact in a repository, without its version."""

    group: str
    name: str
    extension: str = "jar"

    def file_name(self, version: str) -> str:
        return f"{self.name}-{version}.{self.extension}"


Choices = Mapping[Artifact, Sequence[str]]
"""The acceptable versions of each artifact, the best first."""


class Resolver(Protocol):
    """Downloads artifacts."""

    @property
    def label(self) -> str:
        """Its name in messages."""

    def fetch(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
        """Download, for each artifact, the first of its versions that the repositories have, to the folder.

        Returns these versions; an artifact of which they have none is missing. Raises ConnectorMissingError if the
        repositories do not answer.
        """


@dataclass(frozen=True, slots=True)
class Maven:
    """Runs mvn, with the machine's Maven settings: mirrors, proxies, credentials."""

    program: str
    label: str = field(default="Maven", init=False)

    def fetch(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
        found = self._try({artifact: versions[:1] for artifact, versions in choices.items()}, folder)
        others = {artifact: versions[1:] for artifact, versions in choices.items() if artifact not in found}
        return {**found, **self._try(others, folder)}

    def _try(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
        """Request all of them in one run, each in its own module, as some may fail."""
        wanted = [(artifact, version) for artifact, versions in choices.items() for version in versions]
        if not wanted:
            return {}
        project = folder / "project"
        for number, (artifact, version) in enumerate(wanted):
            module = project / f"m{number}"
            module.mkdir(parents=True, exist_ok=True)
            (module / "pom.xml").write_text(_pom(f"m{number}", _dependency(artifact, version)), encoding="utf-8")
        modules = "".join(f"<module>m{number}</module>" for number in range(len(wanted)))
        (project / "pom.xml").write_text(_pom("all", f"<modules>{modules}</modules>"), encoding="utf-8")
        said = _run(
            [
                self.program,
                "--batch-mode",
                "--quiet",
                "--fail-at-end",
                "--update-snapshots",  # also asks again for artifacts that were missing before
                "--file",
                str(project / "pom.xml"),
                f"{DEPENDENCY_PLUGIN}:copy-dependencies",
                f"-DoutputDirectory={folder}",
            ],
            MAVEN_TIMEOUT_S,
        )
        found: dict[Artifact, str] = {}
        for artifact, version in wanted:
            if artifact not in found and (folder / artifact.file_name(version)).is_file():
                found[artifact] = version
        if said is not None and len(found) < len(wanted):
            _check_answered(said, r"^\[ERROR\] ")
        return found


def _pom(name: str, body: str) -> str:
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>penstock</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>"
        f"{body}</project>\n"
    )


def _dependency(artifact: Artifact, version: str) -> str:
    return (
        f"<dependencies><dependency><groupId>{escape(artifact.group)}</groupId>"
        f"<artifactId>{escape(artifact.name)}</artifactId><version>{escape(version)}</version>"
        f"<type>{escape(artifact.extension)}</type><exclusions><exclusion><groupId>*</groupId>"
        "<artifactId>*</artifactId></exclusion></exclusions></dependency></dependencies>"
    )


@dataclass(frozen=True, slots=True)
class Ivy:
    """Runs the Ivy in Spark's jars, which `spark.jars.packages` uses."""

    java: str
    jar: Path
    settings: str | None = None
    """A settings file of Ivy, as in `spark.jars.ivySettings`; the default is the public repository."""
    label: str = field(default="Ivy", init=False)

    def fetch(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
        found = {}
        for artifact, versions in choices.items():
            for version in versions:
                if self._has(artifact, version, folder):
                    found[artifact] = version
                    break
        return found

    def _has(self, artifact: Artifact, version: str, folder: Path) -> bool:
        if artifact.extension == "pom":
            return self._has_pom(artifact, version, folder)
        target = folder / artifact.file_name(version)
        said = self._resolve(artifact, version, folder, ["-retrieve", str(folder / "[artifact]-[revision].[ext]")])
        if said is not None and not target.is_file():
            _check_answered(said, NOT_REACHED.pattern)
        return target.is_file()

    def _has_pom(self, artifact: Artifact, version: str, folder: Path) -> bool:
        """Ivy keeps the poms that it has read in its cache, including those of parents."""
        kept = folder / "ivy" / artifact.group / artifact.name / f"ivy-{version}.xml.original"
        if not kept.is_file() and (said := self._resolve(artifact, version, folder, [])) is not None:
            _check_answered(said, NOT_REACHED.pattern)
        if not kept.is_file():
            return False
        (folder / artifact.file_name(version)).write_bytes(kept.read_bytes())
        return True

    def _resolve(self, artifact: Artifact, version: str, folder: Path, more: list[str]) -> str | None:
        settings = ["-settings", self.settings] if self.settings else ["-m2compatible"]
        command = [self.java, "-jar", str(self.jar), *settings, "-cache", str(folder / "ivy"), "-notransitive"]
        command += ["-confs", "default", "-types", "jar", "bundle", *more]
        return _run([*command, "-dependency", artifact.group, artifact.name, version], IVY_TIMEOUT_S)


def _run(command: list[str], timeout_s: float) -> str | None:
    """None if it succeeded, else its output."""
    try:
        done = run_program(command, timeout_s)
    except subprocess.TimeoutExpired as slow:
        raise ConnectorMissingError(
            f"{Path(command[0]).name} did not end within {timeout_s:.0f} s: check that the repository can be reached"
        ) from slow
    return None if done.returncode == 0 else done.stdout


def _check_answered(said: str, telling: str) -> None:
    """Raise ConnectorMissingError unless a repository has answered that it does not have an artifact."""
    if NOT_THERE.search(said) and not NOT_REACHED.search(said):
        return
    raise ConnectorMissingError(
        f"the repositories did not answer for Spark's Kafka connector: {reason_in(said, telling)}"
    )
