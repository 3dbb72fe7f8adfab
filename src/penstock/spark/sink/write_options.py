"""The options of the format "penstock" for writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import ConfigError, GuaranteeError
from penstock.model import Guarantee
from penstock.spark.sink.publishing import TRANSACTION_TIMEOUT_S
from penstock.spark.sink.target import guarantee_of
from penstock.spark.source.read_options import (
    absolute_url,
    choice,
    client_options,
    named_options,
    number,
    positive,
)
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, without_password
from penstock.streams.url_settings import resolved

NAMES: Final = {
    "url": "the stream: log:./data, kafka://host:9092",
    "topic": "the topic; without it, each row names one in the column `topic`",
    "guarantee": "exactly-once (the default) or at-least-once",
    "partitions": "the number of partitions of a topic that is created; the default is the broker's",
    "compact": "true: a topic that is created keeps the last record of each key",
    "transactionTimeoutS": "how long publishing one batch may take, in seconds",
    "stagingFolder": "where rows are staged; the default is in the folder of the checkpoint",
}
_CHECKPOINT: Final = "checkpointlocation"
_OF_SPARK: Final = frozenset({_CHECKPOINT, "queryname", "path"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options. They are pickled and sent to all tasks."""

    url: str = field(repr=False)
    topic: str | None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    partitions: int | None = None
    compact: bool = False
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S
    staging: str | None = None
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse and check the options of a writer. Raises ConfigError, UrlError and GuaranteeError."""
    options, settings = named_options(given, NAMES, "writing", _OF_SPARK)
    guarantee = guarantee_of(options.get("guarantee", Guarantee.EXACTLY_ONCE), 'the format "penstock"')
    url = absolute_url(options["url"])
    if scheme_of(url) not in KAFKA_SCHEMES:
        _refuse_what_only_kafka_has(options, guarantee)
    url, client = resolved(url, client_options(settings, options["url"]))
    return SinkOptions(
        url=url,
        topic=options.get("topic"),
        guarantee=guarantee,
        partitions=positive(options, "partitions"),
        compact=choice(options, "compact", ("false", "true")) == "true",
        transaction_timeout_s=_timeout_s(options),
        staging=_staging(options, given),
        client=client,
    )


def _refuse_what_only_kafka_has(options: Mapping[str, str], guarantee: Guarantee) -> None:
    shown = without_password(options["url"])
    if guarantee is Guarantee.EXACTLY_ONCE:
        raise GuaranteeError(
            f"exactly-once is not available on {shown}: it does not speak Kafka's protocol, whose transactions publish "
            "Spark's batches; set the option guarantee to at-least-once"
        )
    for name in ("compact", "transactionTimeoutS", "stagingFolder"):
        if name in options:
            raise ConfigError(f"the option {name!r} does not apply to {shown}: omit it")


def _timeout_s(options: Mapping[str, str]) -> float:
    name = "transactionTimeoutS"
    timeout_s = number(name, options[name], float) if name in options else TRANSACTION_TIMEOUT_S
    if not 1 <= timeout_s <= 900:
        raise ConfigError(f"the option {name!r} is {timeout_s:g}; it must be between 1 and 900 seconds")
    return timeout_s


def _staging(options: Mapping[str, str], given: Mapping[str, str]) -> str | None:
    if options.get("stagingFolder"):
        return options["stagingFolder"]
    checkpoint = next((value for name, value in given.items() if name.lower() == _CHECKPOINT), None)
    return None if checkpoint is None else f"{checkpoint.rstrip('/')}/penstock-staging"
