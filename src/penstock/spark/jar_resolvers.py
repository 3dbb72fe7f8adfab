"""Two ways to get jars from the repositories that a machine is set up for: Maven, and Ivy, which Spark brings along.

Both fetch artifacts one by one, without what those depend upon: Spark has that already, and the poms of Spark name a
repository that not every machine reaches.
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

DEPENDENCY_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
MAVEN_TIMEOUT_S: Final = 420.0
IVY_TIMEOUT_S: Final = 120.0
REASON_LENGTH: Final = 300

NOT_THERE: Final = re.compile(
    r"Could not find artifact|was not found in|No versions available|status code: 40[34]|\b40[34] (Forbidden|Not Found)"
    r"|unresolved dependency: .* not found|UNRESOLVED DEPENDENCIES"
)
"""What tools say when a repository answers and does not have something, or does not give it."""


NOT_REACHED: Final = re.compile(r"Host \S+ not found|Server access [Ee]rror|proxy server that is not well configured")
"""What Ivy says when no repository answers, before it goes on to say that there is no such thing."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A thing in a repository, without its version."""

    group: str
    name: str
    extension: str = "jar"

    def file_name(self, version: str) -> str:
        return f"{self.name}-{version}.{self.extension}"


Choices = Mapping[Artifact, Sequence[str]]
"""For each artifact the versions that would do, the best first."""


class Resolver(Protocol):
    """Something that fetches artifacts."""

    @property
    def label(self) -> str:
        """What it is called where people read it."""

    def fetch(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
        """Put into the folder, of each artifact, the first of its versions that the repositories have.

        Answers which versions those are; an artifact of which they have none is not in the answer. Raises
        ConnectorMissingError when the repositories cannot be asked.
        """


@dataclass(frozen=True, slots=True)
class Maven:
    """Runs mvn, so that the machine's Maven settings hold: mirrors, proxies, credentials."""

    program: str
    label: str = field(default="Maven", init=False)

    def fetch(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
        found = self._tried({artifact: versions[:1] for artifact, versions in choices.items()}, folder)
        others = {artifact: versions[1:] for artifact, versions in choices.items() if artifact not in found}
        return {**found, **self._tried(others, folder)}

    def _tried(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
        """Ask for all of them in one run, each in a module of its own, of which some may fail."""
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
                "--update-snapshots",  # which also asks again for what was not there yesterday
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
    """Runs the Ivy that is among the jars of Spark: what `spark.jars.packages` uses."""

    java: str
    jar: Path
    settings: str | None = None
    """A settings file of Ivy, as in `spark.jars.ivySettings`; by default the public repository is asked."""
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
        """Ivy keeps the poms that it has read in its cache: those of parents, too."""
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
    """None when it went well, else what the command wrote."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        raise ConnectorMissingError(
            f"{Path(command[0]).name} did not end within {timeout_s:.0f} s; is the repository within reach?"
        ) from slow
    return None if done.returncode == 0 else done.stdout


def _check_answered(said: str, telling: str) -> None:
    """A repository that does not have something is an answer. Anything else means that it could not be asked."""
    if NOT_THERE.search(said) and not NOT_REACHED.search(said):
        return
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    line = next((line for line in lines if re.search(telling, line)), lines[-1] if lines else "it did not say why")
    # Tools print addresses with the user names and passwords that are in them.
    reason = re.sub(r"//[^/@\s]+@", "//", line)[:REASON_LENGTH]
    raise ConnectorMissingError(f"the repositories could not be asked for Spark's Kafka connector: {reason}")
