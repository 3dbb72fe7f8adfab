"""Fetching Spark's Kafka connector: which versions are taken, and what stays when it goes wrong."""

from __future__ import annotations

import shutil
import socket
import stat
import sys
import threading
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from penstock.errors import ConnectorMissingError, JavaMissingError
from penstock.java.installed import find_java
from penstock.spark.sessions import jars
from penstock.spark.sessions.jar_resolvers import Artifact, Choices, Ivy, Maven
from penstock.spark.sessions.jars import HIGHEST_PATCH, fetch_all, older_than_or, properties_of
from penstock.spark.sessions.opening import has_connector
from tests import real_parts

CONNECTOR = Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13")
TOKENS = Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13")
PARENT = Artifact("org.apache.spark", "spark-parent_2.13", "pom")
CLIENTS = Artifact("org.apache.kafka", "kafka-clients")
POOL = Artifact("org.apache.commons", "commons-pool2")
SPARK = pyspark.__version__
WHOLE = {CONNECTOR: [SPARK], TOKENS: [SPARK], PARENT: [SPARK], CLIENTS: ["3.9.2"], POOL: ["2.13.1"]}

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version><packaging>{packaging}</packaging>
<properties><kafka.version>3.9.2</kafka.version><commons-pool2.version>2.13.1</commons-pool2.version></properties>
</project>
"""

FAKE_MAVEN = """#!{python}
import pathlib, shutil, sys
from xml.etree import ElementTree
options = dict(word.partition("=")[::2] for word in sys.argv if word.startswith("-D"))
project = pathlib.Path(sys.argv[sys.argv.index("--file") + 1]).parent
code = 0
for pom in sorted(project.glob("m*/pom.xml")):
    values = {{each.tag.rpartition("}}")[2]: each.text for each in ElementTree.parse(pom).iter()
              if each.text != "*" and "pom.xml" not in (each.text or "")}}
    dependency = next(each for each in ElementTree.parse(pom).iter() if each.tag.endswith("dependency"))
    group, name, version, kind = [each.text for each in list(dependency)[:4]]
    file = pathlib.Path({repository!r}, *group.split("."), name, version, f"{{name}}-{{version}}.{{kind}}")
    if file.is_file():
        shutil.copy(file, options["-DoutputDirectory"])
    else:
        print({complaint!r} % f"{{name}}:{{version}}")
        code = 1
sys.exit(code)
"""
NOT_FOUND = "[ERROR] Could not find artifact %s in central"


def make_repository(folder: Path, content: dict[Artifact, list[str]]) -> Path:
    """A repository in the layout of Maven, with jars that hold nothing."""
    for artifact, versions in content.items():
        for version in versions:
            place = folder.joinpath(*artifact.group.split("."), artifact.name, version)
            place.mkdir(parents=True)
            pom = POM.format(group=artifact.group, name=artifact.name, version=version, packaging=artifact.extension)
            (place / f"{artifact.name}-{version}.pom").write_text(pom)
            if artifact.extension == "jar":
                with zipfile.ZipFile(place / artifact.file_name(version), "w") as archive:
                    archive.writestr("version.txt", version)
    return folder


def fake_maven(tmp_path: Path, repository: Path, complaint: str = NOT_FOUND) -> Maven:
    program = tmp_path / "mvn"
    program.write_text(FAKE_MAVEN.format(python=sys.executable, repository=str(repository), complaint=complaint))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Maven(str(program))


def ivy(tmp_path: Path, repository: Path) -> Ivy:
    """The real one, told to ask a folder."""
    try:
        java = find_java().home / "bin" / "java"
    except JavaMissingError as missing:
        pytest.skip(str(missing))
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="folder"/><resolvers>'
        f'<ibiblio name="folder" m2compatible="true" root="{repository.as_uri()}/"/>'
        "</resolvers></ivysettings>\n"
    )
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    return Ivy(str(java), jar, str(settings))


class Shelf:
    """A resolver that has what it is given."""

    label = "the shelf"

    def __init__(self, content: dict[Artifact, list[str]]) -> None:
        self.content = content
        self.asked: list[Artifact] = []

    def fetch(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
        self.asked += choices
        found = {}
        for artifact, versions in choices.items():
            version = next((each for each in versions if each in self.content.get(artifact, ())), None)
            if version is not None:
                found[artifact] = version
                with zipfile.ZipFile(folder / artifact.file_name(version), "w") as archive:
                    archive.writestr("version.txt", version)
        return found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars, "_check_that_they_fit", lambda jars: len(jars))
    return tmp_path / "cache"


def names(found: Sequence[Path]) -> list[str]:
    return sorted(path.name for path in found)


def test_the_version_itself_is_tried_first_then_the_nearest_older_ones_of_its_major_version() -> None:
    versions = older_than_or("4.2.1")
    assert versions[:3] == ["4.2.1", "4.2.0", f"4.1.{HIGHEST_PATCH}"]
    assert versions[-1] == "4.0.0"
    assert not [version for version in versions if version.startswith("3.")]


def test_a_preview_is_followed_by_the_release_it_led_to() -> None:
    assert older_than_or("4.3.0-preview1")[:3] == ["4.3.0-preview1", "4.3.0", f"4.2.{HIGHEST_PATCH}"]
    assert older_than_or("strange") == ["strange"]


def test_each_artifact_falls_back_on_its_own_and_it_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    shelf = Shelf({CONNECTOR: ["4.2.0", "4.1.0"], TOKENS: ["4.0.0"], CLIENTS: ["3.9.1"], POOL: ["2.12.1"]})
    found = fetch_all(shelf, "4.3.0", "2.13", tmp_path, told.append)
    assert names(found) == [
        "commons-pool2-2.12.1.jar",
        "kafka-clients-3.9.1.jar",
        "spark-sql-kafka-0-10_2.13-4.2.0.jar",
        "spark-token-provider-kafka-0-10_2.13-4.0.0.jar",
    ]
    assert "took spark-token-provider-kafka-0-10_2.13 4.0.0, as 4.3.0 is not available" in told


def test_an_artifact_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectorMissingError, match=r"have no kafka-clients that fits Spark 4.3.0.*settings"):
        fetch_all(Shelf({CONNECTOR: ["4.3.0"], TOKENS: ["4.3.0"], POOL: ["2.12.1"]}), "4.3.0", "2.13", tmp_path, print)


def test_the_versions_beside_the_connector_are_those_of_its_pom(tmp_path: Path) -> None:
    pom = tmp_path / "x.pom"
    pom.write_text(POM.format(group="g", name="n", version="1", packaging="pom"))
    assert properties_of(pom) == {"kafka.version": "3.9.2", "commons-pool2.version": "2.13.1"}
    assert properties_of(tmp_path / "absent") == {}
    pom.write_text("<project>")
    assert properties_of(pom) == {}


def test_maven_takes_the_first_version_that_there_is(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", {CONNECTOR: ["4.2.0", "4.1.3"], CLIENTS: ["3.9.2"]})
    out = tmp_path / "out"
    out.mkdir()
    choices = {CONNECTOR: ["4.3.0", "4.2.1", "4.2.0", "4.1.3"], CLIENTS: ["3.9.2"], POOL: ["2.13.1", "2.13.0"]}
    found = fake_maven(tmp_path, repository).fetch(choices, out)
    assert found == {CONNECTOR: "4.2.0", CLIENTS: "3.9.2"}
    assert (out / "spark-sql-kafka-0-10_2.13-4.2.0.jar").is_file()


def test_a_repository_that_cannot_be_asked_is_told_without_its_password(tmp_path: Path) -> None:
    complaint = "[ERROR] Could not transfer %s from https://me:secret@example.org/x: Unknown host"
    maven = fake_maven(tmp_path, tmp_path / "empty", complaint)
    with pytest.raises(ConnectorMissingError, match=r"did not answer .*//example\.org/x: Unknown host") as caught:
        maven.fetch({CONNECTOR: ["4.3.0"]}, tmp_path)
    assert "secret" not in str(caught.value)


def test_ivy_takes_the_first_version_that_there_is_and_reads_poms(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", {CONNECTOR: ["4.2.0"], PARENT: ["4.2.0"]})
    out = tmp_path / "out"
    out.mkdir()
    resolver = ivy(tmp_path, repository)
    assert resolver.fetch({CONNECTOR: ["4.2.1", "4.2.0"], POOL: ["2.13.1"]}, out) == {CONNECTOR: "4.2.0"}
    assert (out / "spark-sql-kafka-0-10_2.13-4.2.0.jar").is_file()
    assert resolver.fetch({PARENT: ["4.2.0"]}, out) == {PARENT: "4.2.0"}
    assert properties_of(out / "spark-parent_2.13-4.2.0.pom")["kafka.version"] == "3.9.2"


def test_a_repository_that_ivy_cannot_reach_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        resolver = ivy(tmp_path, tmp_path)
        settings = Path(resolver.settings or "")
        root = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        settings.write_text(settings.read_text().replace(f"{tmp_path.as_uri()}/", root))
        with pytest.raises(ConnectorMissingError, match="did not answer"):
            resolver.fetch({CONNECTOR: ["4.2.1", "4.2.0"]}, tmp_path)


def test_the_connector_is_fetched_once_and_found_without_asking_again(cache: Path, tmp_path: Path) -> None:
    assert jars.connector_jars() == ()
    shelf = Shelf(WHOLE | {CLIENTS: ["3.9.1"], POOL: ["2.12.1"]})
    fetched = jars.fetch_connector(resolver=shelf)
    assert fetched == jars.connector_jars()
    assert len(fetched) == 4
    assert all(jar.is_relative_to(cache / "spark" / SPARK) for jar in fetched)
    shelf.asked.clear()
    assert jars.fetch_connector(resolver=shelf) == fetched
    assert shelf.asked == []
    assert jars.fetch_connector(resolver=shelf, force=True) == fetched
    assert CONNECTOR in shelf.asked


def test_what_was_there_stays_when_fetching_again_fails(cache: Path) -> None:
    fetched = jars.fetch_connector(resolver=Shelf(WHOLE | {CLIENTS: ["3.9.1"], POOL: ["2.12.1"]}))
    with pytest.raises(ConnectorMissingError):
        jars.fetch_connector(resolver=Shelf({}), force=True)
    assert jars.connector_jars() == fetched
    assert sorted(path.name for path in (cache / "spark" / SPARK).iterdir()) == ["connector", "connector.lock"]


def test_of_two_that_want_it_at_once_one_waits_for_the_other(cache: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Slow(Shelf):
        def fetch(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
            entered.set()
            assert go_on.wait(60)
            return super().fetch(choices, folder)

    content = WHOLE | {CLIENTS: ["3.9.1"], POOL: ["2.12.1"]}
    slow, second = Slow(content), Shelf(content)
    first_thread = threading.Thread(target=jars.fetch_connector, kwargs={"resolver": slow})
    first_thread.start()
    assert entered.wait(60)
    second_thread = threading.Thread(target=jars.fetch_connector, kwargs={"resolver": second})
    second_thread.start()
    go_on.set()
    first_thread.join(60)
    second_thread.join(60)
    assert len(jars.connector_jars()) == 4
    assert second.asked == []


def test_a_connector_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the clients that it needs, as a connector of another time would be."""
    connector = real_parts.spark_connector()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))

    class Incomplete(Shelf):
        def fetch(self, choices: Choices, folder: Path) -> dict[Artifact, str]:
            found = super().fetch(choices, folder)
            for artifact, version in found.items():
                if artifact in (CONNECTOR, TOKENS):
                    (real,) = connector.glob(f"{artifact.name}-*.jar")
                    shutil.copy(real, folder / artifact.file_name(version))
            return found

    with pytest.raises(ConnectorMissingError, match=r"does not fit Spark .*org[./]apache[./]kafka"):
        jars.fetch_connector(resolver=Incomplete(WHOLE | {CLIENTS: ["3.9.1"], POOL: ["2.12.1"]}))
    assert jars.connector_jars() == ()


def test_the_session_has_the_connector_that_was_fetched(spark: SparkSession) -> None:
    real_parts.spark_connector()
    assert has_connector(spark)
