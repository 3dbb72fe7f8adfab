"""Consumers and handlers of a name read the topic that it leads to."""

from __future__ import annotations

from pathlib import Path

import penstock
from penstock import App, Consumer
from penstock.streams.aliases import switch
from penstock.streams.memory.streams import MemoryStream


def _filled() -> MemoryStream:
    streams = MemoryStream()
    for topic in ("spend", "spend.v2"):
        streams.create_topic(topic, 1)
        for number in range(3):
            streams.send(topic, f"{topic}:{number}", key=str(number)).result(5)
    return streams


def _handled(streams: MemoryStream) -> list[str]:
    handled: list[str] = []
    app = App(streams, group="billing", checkpoints="memory:")

    @app.handle("spend", end="latest")
    def take(record: penstock.Record) -> None:
        handled.append((record.value or b"").decode())

    app.run()
    return handled


def test_a_handler_reads_the_topic_that_its_name_leads_to() -> None:
    streams = _filled()
    assert _handled(streams) == ["spend:0", "spend:1", "spend:2"]
    switch(streams, "spend", "spend.v2")
    assert _handled(streams) == ["spend.v2:0", "spend.v2:1", "spend.v2:2"]


def test_progress_belongs_to_the_topic_and_not_to_the_name(tmp_path: Path) -> None:
    streams = _filled()
    checkpoints = f"sqlite:{tmp_path / 'checkpoints.db'}"
    with Consumer(streams, "spend", group="billing", checkpoints=checkpoints, end="latest") as consumer:
        assert [record.place.offset for record in consumer] == [0, 1, 2]
        assert consumer.health().topic == "spend"
    switch(streams, "spend", "spend.v2")
    with Consumer(streams, "spend", group="billing", checkpoints=checkpoints, end="latest") as consumer:
        assert [(record.topic, record.place.offset) for record in consumer] == [
            ("spend.v2", 0),
            ("spend.v2", 1),
            ("spend.v2", 2),
        ]
    with Consumer(streams, "spend", group="billing", checkpoints=checkpoints, end="latest") as consumer:
        assert list(consumer) == []


def test_what_is_sent_to_a_name_goes_to_the_topic_of_this_name() -> None:
    streams = _filled()
    switch(streams, "spend", "spend.v2")
    streams.send("spend", "late").result(5)
    assert [record.value for record in streams.read("spend")][-1] == b"late"
    assert len(list(streams.read("spend.v2"))) == 3
