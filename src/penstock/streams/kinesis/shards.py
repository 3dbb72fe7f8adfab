"""The shards of a stream: their numbers, hash keys, parents, and where they begin and end."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import StreamError, UnknownTopicError
from penstock.model import Pointer
from penstock.streams.adapting.aws import AwsClient, RefusedError

_NUMBER: Final = re.compile(r".*-(\d+)")
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Shard:
    number: int
    id: str
    parents: tuple[int, ...]
    hash_key: str
    """The first hash key that belongs to it."""
    start: Pointer
    """Before its first record."""
    end: Pointer | None
    """After its last record, if it has ended and its end is known."""
    is_open: bool


def shard_number(shard_id: str) -> int:
    """The number in `shardId-000000000007`. Kinesis gives each number once in the life of a stream."""
    found = _NUMBER.fullmatch(shard_id)
    if found is None:
        raise StreamError(f"the shard id {shard_id!r} does not end with a number, so it cannot be a partition")
    return int(found[1])


class Shards:
    """The known shards of a stream, looked up again when one is not known."""

    def __init__(self, client: AwsClient, topic: str, patience_s: float) -> None:
        self._client = client
        self._topic = topic
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._known: dict[int, Shard] = {}

    def refresh(self) -> dict[int, Shard]:
        """All shards whose records have not all expired. Raises UnknownTopicError."""
        listed: list[dict[str, Any]] = []
        request: dict[str, Any] = {"StreamName": self._topic, "MaxResults": _PAGE}
        while True:  # ends: with the last page
            try:
                answer = self._client.call("list_shards", self._patience_s, **request)
            except RefusedError as error:
                if error.code == "ResourceNotFoundException":
                    raise self.unknown() from error
                raise
            listed += answer["Shards"]
            if not answer.get("NextToken"):
                break
            request = {"NextToken": answer["NextToken"], "MaxResults": _PAGE}
        found = {shard.number: shard for shard in map(_shard, listed)}
        with self._lock:
            self._known = found
        return found

    def get(self, number: int) -> Shard:
        """The shard of this partition. UnknownTopicError if the stream has none."""
        shard = self._known.get(number) or self.refresh().get(number)
        if shard is None:
            there = ", ".join(map(str, sorted(self._known)))
            raise UnknownTopicError(f"stream {self._topic!r} has no shard for partition {number}; it has {there}")
        return shard

    def parents(self, number: int) -> Sequence[int]:
        """The parents that still have records, or may have."""
        return [parent for parent in self.get(number).parents if parent in self._known]

    def unknown(self) -> UnknownTopicError:
        return UnknownTopicError(
            f"{self._client.where} has no stream {self._topic!r}: create it (`penstock topics create {self._topic}`), "
            "or check the name, the region and the account"
        )


def _shard(fields: dict[str, Any]) -> Shard:
    numbers = fields["SequenceNumberRange"]
    start, last = int(numbers["StartingSequenceNumber"]), numbers.get("EndingSequenceNumber")
    parents = (fields.get("ParentShardId"), fields.get("AdjacentParentShardId"))
    # Some emulators end a shard with a number that lies before its start.
    end = int(last) + 1 if last is not None and int(last) >= start else None
    return Shard(
        number=shard_number(fields["ShardId"]),
        id=fields["ShardId"],
        parents=tuple(sorted(shard_number(parent) for parent in parents if parent)),
        hash_key=fields["HashKeyRange"]["StartingHashKey"],
        start=start,
        end=end,
        is_open=last is None,
    )
