"""The options of the format "penstock" when it writes: their names, what each may be, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import ConfigError, GuaranteeError
from penstock.model import Guarantee
from penstock.spark.sink.publishing import TRANSACTION_TIMEOUT_S
from penstock.spark.source.options import CLIENT_PREFIX, client_options
from penstock.streams.url import LogUrl, MemoryUrl, parse_url
from penstock.streams.url_settings import resolved

NAMES: Final = {
    "url": "which stream: log:./data, kafka://host:9092",
    "topic": "which topic of it; without it, each row names one in the column `topic`",
    "guarantee": "exactly-once (as it is unless given) or at-least-once",
    "partitions": "how many a topic gets that is created; the broker's default, unless given",
    "compact": "true: a topic that is created keeps the last record of each key",
    "transactionTimeoutS": "how long publishing one batch may take, in seconds",
    "stagingFolder": "where rows are staged; in the folder of the checkpoint, unless given",
}
_BY_LOWER: Final = {name.lower(): name for name in NAMES}
_CHECKPOINT: Final = "checkpointlocation"
_OF_SPARK: Final = frozenset({_CHECKPOINT, "queryname", "path"})
_GUARANTEES: Final = (Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What is written, and how. It is pickled and goes to all tasks."""

    url: str
    topic: str | None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    partitions: int | None = None
    compact: bool = False
    transaction_timeout_s: float = TRANSACTION_TIMEOUT_S
    staging: str | None = None
    client: Mapping[str, Any] = field(default_factory=dict, repr=False)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """What the options of a writer mean. ConfigError, UrlError and GuaranteeError say what may be written."""
    options: dict[str, str] = {}
    settings: dict[str, str] = {}
    for written, value in given.items():
        if written.lower() in _BY_LOWER:
            options[_BY_LOWER[written.lower()]] = value
        elif written.lower().startswith(CLIENT_PREFIX):
            settings[written[len(CLIENT_PREFIX) :].lower()] = value
        elif written.lower() not in _OF_SPARK:
            raise ConfigError(
                f'the format "penstock" has no option {written!r} for writing; it has {", ".join(NAMES)}, and '
                "client.NAME for options of the client"
            )
    if not options.get("url"):
        raise ConfigError(f"the format \"penstock\" needs the option 'url': {NAMES['url']}")
    guarantee = options.get("guarantee", Guarantee.EXACTLY_ONCE)
    if guarantee not in _GUARANTEES:
        raise GuaranteeError(f"the option 'guarantee' is {guarantee!r}; it may be {' or '.join(_GUARANTEES)}")
    url, client = resolved(_absolute(options["url"]), client_options(settings))
    return SinkOptions(
        url=url,
        topic=options.get("topic"),
        guarantee=Guarantee(guarantee),
        partitions=_partitions(options),
        compact=_truth(options, "compact"),
        transaction_timeout_s=_timeout_s(options),
        staging=_staging(options, given),
        client=client,
    )


def _absolute(url: str) -> str:
    where = parse_url(url)
    if isinstance(where, MemoryUrl):
        raise ConfigError(
            f"{url} is the memory of one process, and Spark writes in others: use log:FOLDER, which needs no server"
        )
    return f"log:{os.path.abspath(where.folder)}" if isinstance(where, LogUrl) else url


def _partitions(options: Mapping[str, str]) -> int | None:
    value = options.get("partitions")
    if value is not None and (not value.isdecimal() or int(value) < 1):
        raise ConfigError(f"the option 'partitions' is {value!r}, which is no number of 1 or more")
    return None if value is None else int(value)


def _truth(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"the option {name!r} is {value!r}; it may be true or false")
    return value == "true"


def _timeout_s(options: Mapping[str, str]) -> float:
    name = "transactionTimeoutS"
    try:
        timeout_s = float(options.get(name, TRANSACTION_TIMEOUT_S))
    except ValueError:
        raise ConfigError(f"the option {name!r} is {options[name]!r}, which is no number") from None
    if not 1 <= timeout_s <= 900:
        raise ConfigError(f"the option {name!r} is {timeout_s:g}, which is not between 1 and 900 seconds")
    return timeout_s


def _staging(options: Mapping[str, str], given: Mapping[str, str]) -> str | None:
    if options.get("stagingFolder"):
        return options["stagingFolder"]
    checkpoint = next((value for name, value in given.items() if name.lower() == _CHECKPOINT), None)
    return None if checkpoint is None else f"{checkpoint.rstrip('/')}/penstock-staging"
