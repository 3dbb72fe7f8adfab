"""The register of versions, in memory and on the embedded log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.abc import Stream
from penstock.errors import AliasChangedError, ConfigError, PenstockError, PipelineError, UnknownTopicError
from penstock.spark.versions.register import Register, unfinished
from penstock.streams.aliases import aliases, current_topic
from penstock.streams.memory.streams import MemoryStream


@pytest.fixture(params=["memory", "log"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stream]:
    if request.param == "memory":
        yield MemoryStream()
        return
    with penstock.connect(f"log:{tmp_path / 'log'}") as connection:
        yield connection


@pytest.fixture
def register(streams: Stream) -> Register:
    for topic in ("spend", "spend.v2", "late", "late.v2"):
        streams.create_topic(topic, 1)
    return Register(streams)


def test_a_pipeline_that_was_never_processed_again_has_its_first_version_only(register: Register) -> None:
    assert register.versions("usage") == []
    assert register.current("usage") == "v1"


def test_a_version_is_begun_catches_up_and_becomes_current(register: Register, streams: Stream) -> None:
    begun = register.begin("usage", "v2", {"spend": "key", "late": "record"}, "/checkpoints")
    assert begun.state == "reprocessing"
    assert begun.topics == {"spend": "spend.v2", "late": "late.v2"}
    assert begun.by == {"spend": "key", "late": "record"}
    assert begun.checkpoints == "/checkpoints"
    assert [(each.version, each.state) for each in register.versions("usage")] == [
        ("v1", "current"),
        ("v2", "reprocessing"),
    ]
    assert unfinished(register.versions("usage")) == "v2"
    register.caught_up("usage", "v2")
    assert unfinished(register.versions("usage")) is None
    assert current_topic(streams, "spend") == "spend"

    register.switch("usage", "v2", expected="v1")
    assert register.current("usage") == "v2"
    assert (current_topic(streams, "spend"), current_topic(streams, "late")) == ("spend.v2", "late.v2")
    alias = aliases(streams)["spend"]
    assert (alias.pipeline, alias.version) == ("usage", "v2")
    assert alias.since

    register.retire("usage", "v1")
    assert [(each.version, each.state) for each in register.versions("usage")] == [("v1", "retired"), ("v2", "current")]


def test_one_can_switch_back(register: Register, streams: Stream) -> None:
    register.begin("usage", "v2", {"spend": "record"}, "/checkpoints")
    register.caught_up("usage", "v2")
    register.switch("usage", "v2", expected="v1")
    register.switch("usage", "v1", expected="v2")
    assert current_topic(streams, "spend") == "spend"
    assert aliases(streams) == {}
    assert [(each.version, each.state) for each in register.versions("usage")] == [
        ("v1", "current"),
        ("v2", "previous"),
    ]


def test_what_is_not_complete_is_not_switched_to(register: Register, streams: Stream) -> None:
    register.begin("usage", "v2", {"spend": "record"}, "/checkpoints")
    with pytest.raises(PipelineError, match="has not caught up"):
        register.switch("usage", "v2", expected="v1")
    assert current_topic(streams, "spend") == "spend"


def test_a_version_without_topics_to_read_is_not_switched_to(register: Register) -> None:
    register.begin("usage", "v3", {"spend": "record"}, "/checkpoints")
    register.caught_up("usage", "v3")
    with pytest.raises(UnknownTopicError):
        register.switch("usage", "v3", expected="v1")


def test_the_current_version_is_neither_processed_again_nor_retired(register: Register) -> None:
    with pytest.raises(PipelineError, match="is the current one"):
        register.begin("usage", "v1", {"spend": "record"}, "/checkpoints")
    register.begin("usage", "v2", {"spend": "record"}, "/checkpoints")
    with pytest.raises(PipelineError, match="switch to another one"):
        register.retire("usage", "v1")


def test_an_interrupted_version_is_begun_again_and_a_complete_one_is_not(register: Register) -> None:
    register.begin("usage", "v2", {"spend": "record"}, "/checkpoints")
    assert register.begin("usage", "v2", {"spend": "record"}, "/checkpoints").state == "reprocessing"
    register.caught_up("usage", "v2")
    with pytest.raises(PipelineError, match="is complete"):
        register.begin("usage", "v2", {"spend": "record"}, "/checkpoints")


def test_what_was_retired_does_not_come_back(register: Register) -> None:
    register.begin("usage", "v2", {"spend": "record"}, "/checkpoints")
    register.caught_up("usage", "v2")
    register.retire("usage", "v2")
    with pytest.raises(PipelineError, match="was retired"):
        register.switch("usage", "v2", expected="v1")
    with pytest.raises(PipelineError, match="was retired"):
        register.begin("usage", "v2", {"spend": "record"}, "/checkpoints")
    register.begin("usage", "v3", {"spend": "record"}, "/checkpoints")


def test_a_version_that_is_not_there_is_told_with_those_that_are(register: Register) -> None:
    register.begin("usage", "v2", {"spend": "record"}, "/checkpoints")
    with pytest.raises(ConfigError, match="it has v1, v2"):
        register.find("usage", "v7")


def test_two_that_switch_at_once_do_not_both(register: Register, streams: Stream) -> None:
    """Each has seen that v1 is current. However they are interleaved, one finds out that it is not any more."""
    streams.create_topic("spend.v3", 1)
    for version in ("v2", "v3"):
        register.begin("usage", version, {"spend": "record"}, "/checkpoints")
        register.caught_up("usage", version)
    outcomes: dict[str, PenstockError | None] = {}
    together = threading.Barrier(2)

    def switch(version: str) -> None:
        together.wait(20)
        try:
            Register(streams).switch("usage", version, expected="v1")
            outcomes[version] = None
        except PenstockError as error:
            outcomes[version] = error

    threads = [threading.Thread(target=switch, args=(version,)) for version in ("v2", "v3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (winner,) = [version for version, error in outcomes.items() if error is None]
    (loser,) = [error for error in outcomes.values() if error is not None]
    assert isinstance(loser, AliasChangedError)
    assert register.current("usage") == winner
    assert aliases(streams)["spend"].topic == f"spend.{winner}"
