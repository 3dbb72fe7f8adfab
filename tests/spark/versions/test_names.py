"""The names of versions."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.spark.versions import checkpoint_name, next_version, output_topic
from penstock.spark.versions.names import by_age


def test_the_first_version_has_the_plain_names() -> None:
    for first in (None, "v1"):
        assert output_topic("spend", first) == "spend"
        assert checkpoint_name("usage", first) == "usage"


def test_later_versions_have_names_of_their_own() -> None:
    assert output_topic("spend", "v2") == "spend.v2"
    assert checkpoint_name("usage", "v2") == "usage@v2"


def test_a_version_is_never_mixed_up_with_a_pipeline_of_a_similar_name() -> None:
    assert checkpoint_name("usage", "v2") != checkpoint_name("usage.v2", None)


@pytest.mark.parametrize(
    ("known", "following"),
    [([], "v2"), (["v1"], "v2"), (["v1", "v2"], "v3"), (["v9", "v10"], "v11"), (["with-tax"], "v2")],
)
def test_the_next_version_is_one_that_was_not_there(known: list[str], following: str) -> None:
    assert next_version(known) == following


def test_versions_are_sorted_as_numbers() -> None:
    assert sorted(["v10", "with-tax", "v2", "v1"], key=by_age) == ["v1", "v2", "v10", "with-tax"]


@pytest.mark.parametrize("version", ["", "V2", "v2.1", "a b", "v2/x", "@", "v" * 31])
def test_what_cannot_be_in_a_name_is_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="is not allowed"):
        output_topic("spend", version)
