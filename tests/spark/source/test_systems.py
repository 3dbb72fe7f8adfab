"""Pipelines read every stream system by its URL, and go on where they were after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.spark import Pipeline, TopicTarget
from tests.clients.names import fresh
from tests.systems import every_system as systems

OTHERS: Final = (
    systems.redis,
    systems.nats,
    systems.rabbitmq_stream,
    systems.pulsar,
    systems.postgres,
    systems.sqlite,
    systems.files,
    systems.kinesis,
)
"""Kafka and the embedded log have tests of their own."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("system", OTHERS)
def test_a_pipeline_reads_it_and_goes_on_after_a_restart(
    spark: SparkSession, log_url: str, system: Callable[[Path], Iterator[str]], tmp_path: Path
) -> None:
    topic, results = fresh("numbers"), fresh("copies")

    def run_once(url: str) -> list[int]:
        with Pipeline("copying", url, spark=spark, checkpoints=str(tmp_path / "checkpoints")) as pipe:
            pipe.write(pipe.read(topic, dead_letters=None).select("key", "value"), TopicTarget(log_url, results))
            pipe.run(once=True)
        with penstock.connect(log_url) as connection:
            return sorted(int(record.value or b"") for record in connection.read(results))

    with system(tmp_path) as url:  # type: ignore[attr-defined]
        with penstock.connect(url) as stream:
            stream.create_topic(topic, 1)
            for number in range(20):
                stream.send(topic, str(number), key="k")
            stream.flush(60)
            assert run_once(url) == list(range(20))
            for number in range(20, 30):
                stream.send(topic, str(number), key="k")
            stream.flush(60)
        assert run_once(url) == list(range(30))
