"""Dead letters in a topic of the embedded log keep the promises, with processes that are killed for good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

import penstock
from penstock.dead_letters.stream import StreamDeadLetters
from penstock.testing.conformance.letters import dead_letters, plain_letter
from tests.clients.names import fresh
from tests.dead_letters import openings
from tests.servers import Penstock


@pytest.fixture(scope="module", autouse=True)
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("letters")) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv(openings.URL_VARIABLE, f"kafka://{running.bootstrap}")
        yield running
        openings.hang_up()


TestLog = dead_letters(openings.on_the_log)


def test_any_kafka_client_can_read_the_letters(broker: Penstock) -> None:
    topic, group = f"{fresh()}.dlq", fresh("group")
    letter = plain_letter("billing", 7)
    with penstock.connect(f"kafka://{broker.bootstrap}") as streams:
        letters = StreamDeadLetters(streams, topic)
        letters.put([letter])
        letters.close()
        kept = {setting.name: setting.value for setting in streams.admin().config(topic)}
    assert kept["retention.ms"] == "-1", "letters are kept until somebody looks at them"
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert (message.key(), message.value()) == (letter.id.encode(), letter.record.value)
    headers = message.headers()
    assert isinstance(headers, list)
    assert headers[0] == ("trace", b"1")
    assert dict(headers)["penstock-letter-error"] == letter.error.encode()
