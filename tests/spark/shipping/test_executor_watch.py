"""A job for which no executor comes is cancelled, with what was asked for; one that runs is left alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.sessions import masters
from penstock.spark.sessions.masters import ExecutorWatch, executors_of

GROUP = "watched"


@pytest.fixture
def context(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkContext]:
    """Of a local master, whose driver runs the tasks: there is never an executor."""
    monkeypatch.setattr(masters, "MANAGED_WAIT", "1s")
    spark.sparkContext.setJobGroup(GROUP, "watched")
    yield spark.sparkContext
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _wait(numbers: object) -> list[object]:
    threading.Event().wait(60)
    return []


def test_a_job_without_executors_is_cancelled(context: SparkContext) -> None:
    assert executors_of(context) == 0
    with ExecutorWatch(context, GROUP) as watch, pytest.raises(Py4JError, match="cancelled"):
        context.parallelize([1], 1).mapPartitions(_wait).collect()
    assert watch.gave_up
    assert "has given this program no executor for 1 s. It asks for 1g of memory" in watch.complaint()


def test_a_job_with_executors_is_left_alone(context: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Semaphore(0)

    def one(_: SparkContext) -> int:
        looked.release()
        return 1

    monkeypatch.setattr(masters, "executors_of", one)
    with ExecutorWatch(context, GROUP) as watch:
        for _ in range(10):  # for two seconds, twice as long as it waits
            assert looked.acquire(timeout=60)
    assert not watch.gave_up


def test_a_wait_that_is_not_a_time_is_refused(context: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masters, "EXECUTOR_WAIT", "spark.app.name")
    with pytest.raises(ConfigError, match=r"spark\.app\.name=tests must be a time, such as 120s or 10m"):
        ExecutorWatch(context, GROUP)


@pytest.mark.parametrize(
    ("master", "told"),
    [
        ("spark://host:7077", "the page of the master"),
        ("yarn", "yarn application -status app-1"),
        ("k8s://https://host:6443", "kubectl describe pods -l spark-app-selector=app-1"),
        ("other", "what the cluster says"),
    ],
)
def test_each_kind_of_cluster_has_its_own_place_to_look(master: str, told: str) -> None:
    assert told in masters._advice(master, "app-1")
