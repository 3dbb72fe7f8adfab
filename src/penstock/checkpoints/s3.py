"""Checkpoints in S3, or a store like it that can put objects under a condition."""

from __future__ import annotations

from typing import Any, Final

from penstock.checkpoints._aws import client as aws_client
from penstock.checkpoints._aws import options_in
from penstock.checkpoints._s3_shelf import S3Shelf
from penstock.checkpoints._versioned import VersionedCheckpoints
from penstock.errors import ConfigError

OPTIONS: Final = frozenset({"endpoint", "region"})


class S3Checkpoints(VersionedCheckpoints):
    """Keeps checkpoints in a bucket: `s3://BUCKET/PREFIX?region=...&endpoint=...`.

    The bucket must exist. Credentials come from the usual AWS chain; `client` takes one of boto3 instead, which is
    closed with this store. `timeout_s` (10 s) is for a connection, and for an answer; four tries are made.

    Each lease has a small object, the head, which is only ever written under the condition that nobody else has written
    it meanwhile (`If-Match`, `If-None-Match`). Opening tries whether the store honours that, and refuses it with a
    ConfigError when it does not. A small checkpoint stands in the head, so that saving it is one request; for a larger
    one an object is written first. State, history and idempotency keys are kept as a snapshot and what came since,
    which is merged into it when it has grown. Old versions are removed: at the latest by the next owner. Should the
    bucket keep versions of its own, give it a lifecycle rule that expires those.

    Every save and every renewal is a request that S3 bills, and takes some tens of milliseconds: save every second or
    so, not after every record.
    """

    def __init__(self, url: str, *, client: Any = None, timeout_s: float = 10.0) -> None:
        bucket, prefix, options = options_in(url, "s3", OPTIONS)
        if not bucket:
            raise ConfigError(f"{url!r} names no bucket: write s3://BUCKET/PREFIX")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s is {timeout_s:g}: it must be positive")
        endpoint = options.get("endpoint")
        if client is None:
            client = aws_client("s3", options.get("region"), endpoint, timeout_s)
        elif options:
            raise ConfigError(f"{url!r} has options, but a client is given, which has its own: leave one of them out")
        shelf = S3Shelf(client, bucket, prefix, endpoint)
        try:
            shelf.probe()
        except BaseException:
            shelf.close()
            raise
        super().__init__(shelf)
