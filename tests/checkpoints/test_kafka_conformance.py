"""The Kafka store, on the embedded log, passes the suite for checkpoint stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import Producer

from penstock.checkpoints.kafka.entries import checkpoint_entry, encode_key, partition_of
from penstock.checkpoints.kafka.store import TOPIC, KafkaCheckpoints
from penstock.model import CheckpointKey
from penstock.testing.conformance.checkpoints import checkpoint_store
from tests.servers import Penstock

BOOTSTRAP: Final = "PENSTOCK_KAFKA_STORE_BOOTSTRAP"


def open_kafka_store() -> KafkaCheckpoints:
    """Found by the environment, so that child processes find it, too."""
    return KafkaCheckpoints(f"kafka://{os.environ[BOOTSTRAP]}", partitions=4)


def spoil_kafka(_: KafkaCheckpoints, key: CheckpointKey) -> None:
    producer = Producer({"bootstrap.servers": os.environ[BOOTSTRAP]})
    place = partition_of(key.group, key.lease_name, 4)
    producer.produce(TOPIC, b"\x00\x00\x00\x01no checkpoint", encode_key(checkpoint_entry(key), 0), place)
    assert producer.flush(20) == 0


@pytest.fixture(scope="module")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Penstock]:
    with Penstock(tmp_path_factory.mktemp("kafka-store")) as running:
        yield running


class TestKafkaCheckpoints(checkpoint_store(open_kafka_store, spoil=spoil_kafka)):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def _broker(self, kafka_broker: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(BOOTSTRAP, kafka_broker.bootstrap)
