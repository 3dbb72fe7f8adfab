"""Aliases: names that lead readers to topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.abc import Stream
from penstock.errors import AliasChangedError, ConfigError, UnknownTopicError
from penstock.streams.aliases import ALIASES_TOPIC, aliases, current_topic, forget, switch
from penstock.streams.memory.streams import MemoryStream


@pytest.fixture(params=["memory", "log"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stream]:
    if request.param == "memory":
        yield _with_topics(MemoryStream())
        return
    with penstock.connect(f"log:{tmp_path / 'log'}") as connection:
        yield _with_topics(connection)


def _with_topics(streams: Stream) -> Stream:
    for topic in ("spend", "spend.v2", "spend.v3"):
        streams.create_topic(topic, 1)
    return streams


def test_a_name_without_an_alias_is_itself(streams: Stream) -> None:
    assert current_topic(streams, "spend") == "spend"
    assert current_topic(streams, "nobody-has-this") == "nobody-has-this"
    assert ALIASES_TOPIC not in streams.topics(), "asking creates nothing"


def test_readers_are_led_to_what_was_switched_to(streams: Stream) -> None:
    assert current_topic(streams, "spend") == "spend"
    switch(streams, "spend", "spend.v2", expected="spend", pipeline="usage", version="v2")
    assert current_topic(streams, "spend") == "spend.v2"
    assert current_topic(streams, "spend.v2") == "spend.v2"
    alias = aliases(streams)["spend"]
    assert (alias.topic, alias.pipeline, alias.version) == ("spend.v2", "usage", "v2")


def test_an_alias_is_followed_one_step(streams: Stream) -> None:
    switch(streams, "spend", "spend.v2")
    switch(streams, "spend.v2", "spend.v3")
    assert current_topic(streams, "spend") == "spend.v2"


def test_switching_to_the_name_itself_takes_the_alias_away(streams: Stream) -> None:
    switch(streams, "spend", "spend.v2")
    switch(streams, "spend", "spend", expected="spend.v2")
    assert aliases(streams) == {}
    assert current_topic(streams, "spend") == "spend"


def test_who_has_not_seen_the_last_switch_does_not_switch(streams: Stream) -> None:
    switch(streams, "spend", "spend.v2", expected="spend")
    with pytest.raises(AliasChangedError, match=r"leads to topic 'spend\.v2' now, not to 'spend'"):
        switch(streams, "spend", "spend.v3", expected="spend")
    assert current_topic(streams, "spend") == "spend.v2"


def test_nobody_is_led_to_a_topic_that_is_not_there(streams: Stream) -> None:
    with pytest.raises(UnknownTopicError):
        switch(streams, "spend", "spend.v9")


def test_a_damaged_alias_harms_nobody_but_its_own_readers(streams: Stream) -> None:
    switch(streams, "spend", "spend.v2")
    stream = streams.open_topic(ALIASES_TOPIC)
    for receipt in stream.append([penstock.NewRecord(ALIASES_TOPIC, b"{not json", b"other")]):
        receipt.result(20)
    stream.close()
    forget(streams)
    assert current_topic(streams, "spend") == "spend.v2"
    with pytest.raises(ConfigError, match="the alias of 'other'"):
        current_topic(streams, "other")


def test_the_topic_of_aliases_keeps_the_newest_for_ever(tmp_path: Path) -> None:
    with penstock.connect(f"log:{tmp_path / 'log'}") as connection:
        _with_topics(connection)
        switch(connection, "spend", "spend.v2")
        summary = connection.admin().require(ALIASES_TOPIC)
        settings = {each.name: each.value for each in connection.admin().config(ALIASES_TOPIC)}
    assert summary.partitions == (0,)
    assert settings["cleanup.policy"] == "compact"
