"""The pipeline of the project that `penstock init` writes passes the project's own test."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import SparkSession

from penstock.cli.commands.init import init
from tests.docs.stopping import stop_brokers

MODULES = ("app", "pipeline", "tests.test_pipeline")


def test_the_pipeline_of_a_new_project_passes_its_test(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "shop"
    init(project)
    monkeypatch.syspath_prepend(project)
    monkeypatch.syspath_prepend(project / "tests")
    app, _, case = (importlib.import_module(name.rpartition(".")[2]) for name in MODULES)
    register_pickle_by_value(app)  # type: ignore[no-untyped-call]
    try:
        check_bills = case.test_bills_of_a_customer_are_added_up
        check_bills(tmp_path)
    finally:
        unregister_pickle_by_value(app)  # type: ignore[no-untyped-call]
        for name in MODULES:
            sys.modules.pop(name.rpartition(".")[2], None)
        stop_brokers(tmp_path)
