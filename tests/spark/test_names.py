"""The public names of `penstock.spark`, and nothing by accident."""

from __future__ import annotations

import pytest

import penstock.spark

PUBLIC = [
    "Console",
    "Folder",
    "FunctionTarget",
    "Pipeline",
    "QueryProgress",
    "RealTime",
    "Restart",
    "SqlState",
    "SqlTable",
    "TopicTarget",
    "guarded",
    "read_batch",
    "read_stream",
    "read_table",
    "register",
    "run_together",
    "session",
    "simulate",
    "stateful",
]


def test_the_public_names_are_these() -> None:
    assert penstock.spark.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_is_there_documented_and_listed(name: str) -> None:
    thing = getattr(penstock.spark, name)
    assert callable(thing)
    assert thing.__doc__
    assert name in dir(penstock.spark)


def test_any_other_name_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Spark'"):
        penstock.spark.Spark  # noqa: B018
