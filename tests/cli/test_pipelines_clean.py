"""`penstock pipelines clean`: what is removed, and what never is."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.cli.running import Command
from tests.cli.test_pipelines import held
from tests.clients.names import fresh
from tests.observe.test_pipelines import make

pytest.importorskip("pyspark", reason="pyspark is not installed: it comes with penstock[spark]")

MONTH_S = 30 * 86_400.0
STOPPED = {"query": "spend", "state": "stopped"}


def aged(own: Path, age_s: float = MONTH_S) -> Path:
    """The folder of a pipeline, with the checkpoint of its query, as it was left some time ago."""
    spark = own / "spend" / "spark" / "offsets"
    spark.mkdir(parents=True, exist_ok=True)
    (spark / "0").write_text("v1")
    (own / "spend" / "query.json").write_text("{}")
    at_s = time.time() - age_s
    for path in own.rglob("*"):
        os.utime(path, (at_s, at_s))
    return own


@pytest.fixture
def versions(stream: penstock.Connection, tmp_path: Path) -> str:
    """A pipeline of six versions: v1, v2, v3 previous, v4 current, v5 ready, v6 being reprocessed."""
    from penstock.spark.versions.register import Register

    name, register = f"usage-{fresh()}", Register(stream)
    folder = str(tmp_path)
    for number in range(2, 7):
        stream.create_topic(f"{name}.v{number}")
        register.begin(name, f"v{number}", {name: "key"}, folder)
        if number < 6:
            register.caught_up(name, f"v{number}")
        if number < 5:
            register.switch(name, f"v{number}", expected=register.current(name))
    aged(make(tmp_path, name, **STOPPED))
    for number in range(2, 7):
        aged(make(tmp_path, f"{name}@v{number}", **STOPPED))
    return name


def verdicts(done: dict[str, Any]) -> dict[str, str]:
    return {each["version"]: each["verdict"] for each in done["checkpoints"] if each["query"] is None}


def clean(run: Command, folder: Path, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = run.well("pipelines", "clean", "--checkpoints", str(folder), "--json", *options).json
    return found


def test_old_versions_are_shown_and_with_yes_removed(run: Command, versions: str, tmp_path: Path) -> None:
    there = sorted(path.name for path in tmp_path.iterdir())
    dry = clean(run, tmp_path)
    assert verdicts(dry) == {"v1": "remove", "v2": "remove", "v3": "remove", "v4": "keep", "v5": "keep", "v6": "keep"}
    assert not dry["deleted"]
    assert dry["bytes"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == there, "nothing is removed without --yes"
    assert clean(run, tmp_path, "--yes")["deleted"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{versions}@v{number}" for number in (4, 5, 6)]
    listed = run.well("pipelines", "versions", "--all", "--json").json
    states = {each["version"]: each["state"] for each in listed if each["pipeline"] == versions}
    assert states == {
        **dict.fromkeys(("v1", "v2", "v3"), "retired"),
        "v4": "current",
        "v5": "ready",
        "v6": "reprocessing",
    }, "a version without its checkpoint must not start over"
    assert "There is nothing to delete" in run.well("pipelines", "clean", "--checkpoints", str(tmp_path)).err


def test_what_is_needed_is_kept_whatever_the_options_say(run: Command, versions: str, tmp_path: Path) -> None:
    everything = ("--keep", "0", "--older-than", "0")
    aged(make(tmp_path, "alone", **STOPPED))
    aged(make(tmp_path, "alone@v2", **STOPPED))
    aged(make(tmp_path, f"{versions}@v99", **STOPPED))
    (tmp_path / "not-ours").mkdir()
    with held(tmp_path / f"{versions}@v2"):
        done = clean(run, tmp_path, *everything, "--yes")
    reasons = {
        (each["pipeline"], each["version"]): each["why"] for each in done["checkpoints"] if each["verdict"] == "keep"
    }
    assert reasons == {
        ("alone", "v1"): "readers get its results",
        ("alone", "v2"): "the stream does not know this version: it may be of another stream",
        (versions, "v99"): "the stream does not know this version: it may be of another stream",
        (versions, "v2"): "it runs",
        (versions, "v4"): "readers get its results",
        (versions, "v5"): "it waits to be switched to",
        (versions, "v6"): "it is being reprocessed",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["alone", "alone@v2", "not-ours", *(f"{versions}@v{number}" for number in (2, 4, 5, 6, 99))]
    )


def test_the_newest_and_what_was_changed_lately_are_kept(run: Command, versions: str, tmp_path: Path) -> None:
    aged(tmp_path / f"{versions}@v2", age_s=3_600.0)
    done = clean(run, tmp_path, "--keep", "4")
    reasons = {each["version"]: each["why"] for each in done["checkpoints"]}
    assert reasons["v1"].startswith("an old version, unchanged for 30 d")
    assert reasons["v2"] == "it was changed 1 h ago"
    assert reasons["v3"] == "it is one of the newest 4"


def test_queries_that_a_pipeline_no_longer_has_are_removed(run: Command, tmp_path: Path) -> None:
    own = aged(make(tmp_path, "usage", **STOPPED))
    for name in ("renamed", "recent"):
        (own / name).mkdir()
        (own / name / "query.json").write_text("{}")
    at_s = time.time() - MONTH_S
    os.utime(own / "renamed" / "query.json", (at_s, at_s))
    (own / "notes").mkdir()
    done = clean(run, tmp_path, "--yes")
    assert [(each["query"], each["verdict"]) for each in done["checkpoints"]] == [
        (None, "keep"),
        ("recent", "keep"),
        ("renamed", "remove"),
    ]
    assert sorted(path.name for path in own.iterdir() if path.is_dir()) == ["notes", "recent", "spend"]


def test_an_interrupted_removal_is_finished_and_is_no_pipeline(run: Command, tmp_path: Path) -> None:
    make(tmp_path, ".removed-usage@v2-123")
    aged(make(tmp_path, "usage", **STOPPED))
    assert [each["version"] for each in clean(run, tmp_path)["checkpoints"]] == ["v1"]
    clean(run, tmp_path, "--yes")
    assert [path.name for path in tmp_path.iterdir()] == ["usage"]


def test_a_pipeline_that_is_not_there_is_told(run: Command, tmp_path: Path) -> None:
    done = run("pipelines", "clean", "nothing", "--checkpoints", str(tmp_path))
    assert (done.code, f"there is no pipeline 'nothing' in {tmp_path}" in done.err) == (1, True)


@pytest.mark.parametrize("command", [["clean"], ["list"], ["show", "usage"]])
def test_a_store_that_is_no_folder_is_refused_rather_than_shown_as_empty(run: Command, command: list[str]) -> None:
    done = run("pipelines", *command, "--checkpoints", "s3a://bucket/pipelines")
    assert done.code == 2
    assert "must be a folder of this machine" in done.err


def test_options_for_stores_without_locks_are_refused_for_a_folder(run: Command, versions: str) -> None:
    for option in (["--force"], ["--conf", "spark.hadoop.x=y"]):
        done = run("pipelines", "retire", versions, "v1", *option)
        assert done.code == 2
        assert f"Invalid value for {option[0]}" in done.err
    assert "v1" in run.well("pipelines", "versions").out
