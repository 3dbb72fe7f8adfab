"""The settings of `kinesis:` URLs."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.streams.backend_url import check_counts, check_not_negative, check_positive


@dataclass(frozen=True, slots=True)
class KinesisSettings:
    """Settings of a `kinesis:` URL."""

    endpoint_url: str | None = None
    """Where Kinesis is, if not at AWS: `http://127.0.0.1:4567`, or an interface endpoint of a VPC. `AWS_ENDPOINT_URL`
    does the same."""

    default_shards: int = 1
    """How many shards a stream gets that is created without a number. Each shard takes 1 MB and 1000 records a
    second, and is paid by the hour."""

    strict_order: bool = True
    """Keep the order of a key even when Kinesis refuses some records of a request: at most one record of each key, or
    of each chosen partition, is in a request. False: 500 records of any keys are; much faster for few keys, but a
    record that is refused and sent again is stored after later ones of its key."""

    max_record_bytes: int = 1_048_576
    """The largest record, key included. Raise it to what `UpdateMaxRecordSize` allows for the streams."""

    read_interval_s: float = 0.2
    """The time between two requests to one shard: it allows five a second to all who read it together. Longer leaves
    more of them to others; shorter is only of use outside AWS."""

    request_timeout_s: float = 10.0
    """How long a connection, or the answer to a request, may take."""

    retry_s: float = 15.0
    """How long a request that only looks something up is repeated while Kinesis is busy or cannot be reached."""

    delivery_timeout_s: float = 120.0
    """How long a record is tried before its receipt says that it failed. Closing waits as long."""

    def __post_init__(self) -> None:
        check_counts(self, "default_shards", "max_record_bytes")
        check_positive(self, "request_timeout_s", "delivery_timeout_s")
        check_not_negative(self, "read_interval_s", "retry_s")
