"""Amazon Kinesis Data Streams, by `kinesis://REGION` URLs.

A topic is a stream, a partition is a shard: its number is the one in the shard's id, and stays the same for ever.
A pointer is a sequence number. In come records, with keys as partition keys; out go batches and receipts. After a
resharding, ended shards stay partitions until their records have expired, and `parents` says which of them to finish
before a new shard is begun: groups and readers do so.
"""

from __future__ import annotations

from penstock.streams.kinesis.settings import KinesisSettings
from penstock.streams.kinesis.stream import KinesisStream

__all__ = ["KinesisSettings", "KinesisStream"]
