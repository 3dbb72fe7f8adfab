"""Which errors are worth another attempt."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException

from penstock.errors import (
    BrokerUnavailableError,
    ConfigError,
    FencedError,
    SchemaMismatchError,
    StoreUnavailableError,
    UnknownTopicError,
)
from penstock.spark.run.restart import Restart, is_transient


@pytest.mark.parametrize(
    "error",
    [
        BrokerUnavailableError("away"),
        StoreUnavailableError("away"),
        OSError("disk"),
        RuntimeError("[PYTHON_DATA_SOURCE_ERROR] ... penstock.errors.BrokerUnavailableError: no broker answers"),
    ],
)
def test_what_is_away_may_come_back(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("no"),
        SchemaMismatchError("no"),
        FencedError("no"),
        UnknownTopicError("no"),
        RuntimeError("... penstock.errors.StreamError ... penstock.errors.RecordsExpiredError: records are gone"),
        AnalysisException("a column is missing"),
    ],
)
def test_what_somebody_must_mend_is_not_tried_again(error: Exception) -> None:
    assert not is_transient(error)


@pytest.mark.parametrize("attempts", [-1, 1.5, True, "3"])
def test_attempts_that_are_no_number_are_refused(attempts: int) -> None:
    with pytest.raises(ConfigError, match="attempts"):
        Restart(attempts=attempts)
