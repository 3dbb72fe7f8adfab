"""Kafka's protocol, spoken to the embedded log, keeps the promises of a stream."""

from __future__ import annotations

import os

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import penstock
from penstock.testing import conformance
from tests.servers import Penstock

BOOTSTRAP = "PENSTOCK_CONFORMANCE_BOOTSTRAP"


def open_kafka() -> penstock.Connection:
    """Found by the environment, so that child processes find it, too."""
    return penstock.connect(f"kafka://{os.environ[BOOTSTRAP]}", linger_ms=1)


def delete_records(connection: penstock.Connection, topic: str, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": connection.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
        future.result(30)


class TestKafka(conformance.stream(open_kafka, expire=delete_records)):  # type: ignore[misc]
    @pytest.fixture(autouse=True)
    def _broker(self, server: Penstock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(BOOTSTRAP, server.bootstrap)
