"""A broker that is told not to create topics by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from kio.schema.errors import ErrorCode

from tests.clients import confluent, wire
from tests.clients.names import fresh
from tests.servers import ApacheKafka, Penstock, Server

pytestmark = pytest.mark.xdist_group("strict servers")


@pytest.fixture(scope="module", params=["penstock", "apache_kafka"])
def strict_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("strict")
    setting, value = "auto.create.topics.enable", "false"
    if request.param == "penstock":
        with Penstock(folder, "--config", f"{setting}={value}") as penstock:
            yield penstock
    else:
        with ApacheKafka(folder, {setting: value}) as kafka:
            yield kafka


def test_asking_for_a_topic_does_not_make_it(strict_server: Server) -> None:
    produced, consumed = fresh(), fresh()
    sender = confluent.producer(strict_server, {"topic.metadata.propagation.max.ms": 0})
    error = confluent.delivery_error(sender, produced, b"x")
    assert error is not None
    assert error.code() in (KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART)
    asked = wire.call(strict_server, "metadata", 12, topics=[{"name": consumed}], allow_auto_topic_creation=True)
    assert asked.topics[0].error_code is ErrorCode.unknown_topic_or_partition
    listed = confluent.admin(strict_server).list_topics(timeout=confluent.TIMEOUT_S).topics
    assert not {produced, consumed} & set(listed)


def test_topics_are_made_by_those_who_mean_it(strict_server: Server) -> None:
    topic = confluent.create_topic(strict_server)
    assert confluent.produce(strict_server, topic, [b"x"]) == [0]
