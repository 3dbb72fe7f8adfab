"""Answers that AWS gives and its stand-ins do not, by botocore's hooks: throttling, refused records and the like."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import penstock
from penstock.model import Pointer
from penstock.streams.kinesis import KinesisStream

OK, BAD_REQUEST = 200, 400


def refuse(events: Any, operation: str, code: str, times: int) -> Callable[[], int]:
    """Let the next requests of a kind fail, `kinesis.GetRecords`. Returns how many are left to fail."""
    left = times

    def answer(**_: Any) -> Any:
        nonlocal left
        if not left:
            return None
        left -= 1
        return SimpleNamespace(status_code=BAD_REQUEST), {
            "Error": {"Code": code, "Message": "injected"},
            "ResponseMetadata": {"HTTPStatusCode": BAD_REQUEST},
        }

    events.register(f"before-call.{operation}", answer)
    return lambda: left


class RefusedRecords:
    """Refuses some records of each PutRecords, or SendMessageBatch, at random: the others are stored."""

    def __init__(self, events: Any, operation: str, entries: str, rng: random.Random, share: float) -> None:
        self.refused = 0
        self.largest = 0
        """The most records that a request held."""
        self._entries = entries
        self._rng = rng
        self._share = share
        self._given: list[dict[str, Any]] = []
        self._kept: list[int] = []
        events.register(f"before-parameter-build.{operation}", self._choose)
        events.register(f"before-call.{operation}", self._refuse_all)
        events.register(f"after-call.{operation}", self._add_failures)

    def _choose(self, params: dict[str, Any], **_: Any) -> None:
        self._given = params[self._entries]
        self.largest = max(self.largest, len(self._given))
        self._kept = [index for index in range(len(self._given)) if self._rng.random() >= self._share]
        self.refused += len(self._given) - len(self._kept)
        if self._kept:
            params[self._entries] = [self._given[index] for index in self._kept]

    def _refuse_all(self, **_: Any) -> Any:
        if self._kept:
            return None
        parsed: dict[str, Any] = {"ResponseMetadata": {"HTTPStatusCode": OK}}
        self._merge(parsed)
        return SimpleNamespace(status_code=OK), parsed

    def _add_failures(self, parsed: dict[str, Any], **_: Any) -> None:
        if self._kept:
            self._merge(parsed)

    def _merge(self, parsed: dict[str, Any]) -> None:
        missing = [index for index in range(len(self._given)) if index not in self._kept]
        if self._entries == "Records":
            stored = dict(zip(self._kept, parsed.get("Records", ()), strict=True))
            refused = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "injected"}
            parsed["Records"] = [stored.get(index, refused) for index in range(len(self._given))]
        else:
            parsed.setdefault("Failed", []).extend(
                {"Id": self._given[index]["Id"], "Code": "InternalError", "SenderFault": False} for index in missing
            )


def backend_of(connection: penstock.Connection) -> KinesisStream:
    backend = connection.backend
    assert isinstance(backend, KinesisStream)
    return backend


def events_of(connection: penstock.Connection) -> Any:
    """Where botocore lets others change what is asked and answered."""
    return client_of(connection).meta.events


def client_of(connection: penstock.Connection) -> Any:
    """The boto3 client: another program, as far as records go."""
    return backend_of(connection)._client._client


def expire(connection: penstock.Connection, topic: str, partition: int, before: Pointer) -> None:
    """As AWS does it: who asks for what is gone gets the first record that is left."""

    def change(params: dict[str, Any], **_: Any) -> None:
        number = params.get("StartingSequenceNumber", "0")
        is_old = params["ShardIteratorType"] == "TRIM_HORIZON" or int(number) < before
        if params["StreamName"] == topic and int(params["ShardId"][-12:]) == partition and is_old:
            params.update(ShardIteratorType="AT_SEQUENCE_NUMBER", StartingSequenceNumber=str(before))

    events_of(connection).register("before-parameter-build.kinesis.GetShardIterator", change)
