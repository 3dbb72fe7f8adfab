"""From what a user writes to a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column

from penstock.errors import ConfigError
from penstock.model import Guarantee
from penstock.serde import Topic
from penstock.spark.sink.functions import BatchFunction, FunctionTarget
from penstock.spark.sink.topic import TopicTarget
from penstock.spark.targets import Target
from penstock.streams.options import ConnectOptions


def target_of(
    spec: str | Topic[Any] | Target | BatchFunction,
    url: str,
    *,
    key: str | Sequence[str] | Column | None = None,
    guarantee: Guarantee | str = Guarantee.EXACTLY_ONCE,
    idempotency_key: str | None = None,
    compact: bool = False,
    partitions: int | None = None,
    client: ConnectOptions | None = None,
) -> Target:
    """The name of a topic at `url`, a `Topic`, a target as it is, or a function of a batch and its number.

    The options are about topics: a target brings its own, and a function has none.
    """
    if isinstance(spec, str | Topic):
        return TopicTarget(
            url,
            spec,
            key=key,
            guarantee=guarantee,  # type: ignore[arg-type]  # made one when the target is built
            idempotency_key=idempotency_key,
            compact=compact,
            partitions=partitions,
            client=client,
        )
    if isinstance(spec, Target):
        return spec
    if callable(spec):
        return FunctionTarget(spec)
    raise ConfigError(
        f"{spec!r} is no place to write to: give the name of a topic, a Topic, SqlTable(...), Folder(...), or a "
        "function of a batch and its number"
    )
