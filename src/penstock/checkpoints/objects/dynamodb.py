"""Checkpoints in a DynamoDB table."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from penstock.checkpoints.objects.aws import client as aws_client
from penstock.checkpoints.objects.aws import options_in, quoted, translated_errors
from penstock.checkpoints.objects.manifests import Stamp
from penstock.checkpoints.objects.store import VersionedCheckpoints
from penstock.errors import ConfigError, StoreUnavailableError
from penstock.model.retry import Retry
from penstock.streams.adapting.aws import code_of

PIECE_BYTES: Final = 380 * 1000
BATCH: Final = 25
"""How many items one request may write."""
BATCH_ATTEMPTS: Final = 8
_AGAIN: Final = Retry(BATCH_ATTEMPTS, first_delay_s=0.05)
ACTIVE_TIMEOUT_S: Final = 120.0
INDEX: Final = "groups"
"""The partition key of the list of groups."""

Item = dict[str, dict[str, Any]]


class DynamoObjects:
    """An `ObjectStore` in one table, whose items have a partition key `place` and a sort key `name`."""

    # Writes are billed by the kilobyte, so manifests stay small, and little is written again with every version.
    inline_bytes = 3 * 1024
    new_bytes = 16 * 1024
    can_remove_manifests = True

    def __init__(self, client: Any, table: str, region: str, endpoint: str | None) -> None:
        self._client = client
        self._table = table
        self.where = f"the DynamoDB table {table!r} in {region}" + (f" at {endpoint}" if endpoint else "")
        self._refused: type[Exception] = importlib.import_module("botocore.exceptions").ClientError

    def open(self, create: bool) -> None:
        """Check that the table exists with the right keys; with `create`, create a missing one first."""
        with self._errors():
            try:
                table = self._client.describe_table(TableName=self._table)["Table"]
            except self._refused as error:
                if not create or code_of(error) != "ResourceNotFoundException":
                    raise
                self._create()
                table = self._client.describe_table(TableName=self._table)["Table"]
            keys = {each["KeyType"]: each["AttributeName"] for each in table["KeySchema"]}
            if keys != {"HASH": "place", "RANGE": "name"}:
                raise ConfigError(
                    f"{self.where} has the keys {keys}, but must have the partition key 'place' and the sort key "
                    "'name', both strings: it is a table for something else. Use another one, or let it be created"
                )
            if table["TableStatus"] not in ("ACTIVE", "UPDATING"):
                self._wait_until_active(ACTIVE_TIMEOUT_S)

    def read_manifest(self, group: str, name: str) -> tuple[bytes, Stamp] | None:
        with self._errors():
            key = _key(_manifest_place(group), name)
            item = self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True).get("Item")
        return None if item is None else _manifest(item)

    def manifests(self, group: str, prefix: str = "") -> Mapping[str, tuple[bytes, Stamp]]:
        with self._errors():
            return {item["name"]["S"]: _manifest(item) for item in self._query(_manifest_place(group), prefix)}

    def swap_manifest(self, group: str, name: str, stamp: Stamp | None, data: bytes) -> Stamp | None:
        new = hashlib.blake2b(data, digest_size=16).hexdigest()
        item = _key(_manifest_place(group), name) | {"stamp": {"S": new}, "data": {"B": data}}
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(stamp)"}
        if stamp is not None:
            condition = {"ConditionExpression": "stamp = :stamp", "ExpressionAttributeValues": {":stamp": {"S": stamp}}}
        with self._errors():
            if stamp is None:
                # First the group, then its manifest: an extra group in the list is harmless, as its manifests are
                # looked up.
                self._client.put_item(TableName=self._table, Item=_key(INDEX, group))
            try:
                self._client.put_item(TableName=self._table, Item=item, **condition)
            except self._refused as error:
                if code_of(error) == "ConditionalCheckFailedException":
                    return None
                raise
        return new

    def remove_manifest(self, group: str, name: str, stamp: Stamp) -> None:
        with self._errors():
            try:
                self._client.delete_item(
                    TableName=self._table,
                    Key=_key(_manifest_place(group), name),
                    ConditionExpression="stamp = :stamp",
                    ExpressionAttributeValues={":stamp": {"S": stamp}},
                )
            except self._refused as error:
                if code_of(error) != "ConditionalCheckFailedException":
                    raise

    def groups(self) -> Sequence[str]:
        with self._errors():
            return [item["name"]["S"] for item in self._query(INDEX)]

    def put_part(self, group: str, name: str, part: str, data: bytes) -> None:
        place = _part_place(group, name)
        pieces = [data[first : first + PIECE_BYTES] for first in range(0, max(len(data), 1), PIECE_BYTES)]
        items = [
            _key(place, _piece(part, number)) | {"data": {"B": piece}, "pieces": {"N": str(len(pieces))}}
            for number, piece in enumerate(pieces)
        ]
        with self._errors():
            self._write([{"PutRequest": {"Item": item}} for item in items])

    def get_part(self, group: str, name: str, part: str) -> bytes | None:
        with self._errors():
            items = list(self._query(_part_place(group, name), f"{part}/"))
        if not items or int(items[0]["pieces"]["N"]) != len(items):
            return None
        return b"".join(item["data"]["B"] for item in items)

    def parts(self, group: str, name: str) -> Sequence[str]:
        with self._errors():
            names = [item["name"]["S"] for item in self._query(_part_place(group, name), "", "#name")]
        return sorted({each.partition("/")[0] for each in names})

    def remove_parts(self, group: str, name: str, parts: Collection[str]) -> None:
        place = _part_place(group, name)
        with self._errors():
            names = [item["name"]["S"] for part in parts for item in self._query(place, f"{part}/", "#name")]
            self._write([{"DeleteRequest": {"Key": _key(place, each)}} for each in names])

    def close(self) -> None:
        self._client.close()

    def _query(self, place: str, begins_with: str = "", attributes: str | None = None) -> Iterator[Item]:
        question: dict[str, Any] = {
            "TableName": self._table,
            "ConsistentRead": True,
            "KeyConditionExpression": "place = :place",
            "ExpressionAttributeValues": {":place": {"S": place}},
        }
        if begins_with:
            question["KeyConditionExpression"] += " AND begins_with(#name, :name)"
            question["ExpressionAttributeValues"][":name"] = {"S": begins_with}
        if attributes:
            question["ProjectionExpression"] = attributes
        if begins_with or attributes:
            question["ExpressionAttributeNames"] = {"#name": "name"}
        for page in self._client.get_paginator("query").paginate(**question):
            yield from page["Items"]

    def _write(self, requests: list[dict[str, Any]]) -> None:
        """Write or remove items in batches, and repeat those that DynamoDB did not process."""
        for first in range(0, len(requests), BATCH):
            left = {self._table: requests[first : first + BATCH]}
            for delay_s in itertools.islice(_AGAIN.delays_s(), BATCH_ATTEMPTS):
                left = self._client.batch_write_item(RequestItems=left).get("UnprocessedItems") or {}
                if not left:
                    break
                time.sleep(delay_s)
            else:
                raise StoreUnavailableError(f"{self.where} throttles the writes. Raise its capacity")

    def _create(self) -> None:
        names = ("place", "name")
        try:
            self._client.create_table(
                TableName=self._table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
                KeySchema=[
                    {"AttributeName": name, "KeyType": kind}
                    for name, kind in zip(names, ("HASH", "RANGE"), strict=True)
                ],
            )
        except self._refused as error:
            if code_of(error) != "ResourceInUseException":  # another process is creating it
                raise
        self._wait_until_active(ACTIVE_TIMEOUT_S)

    def _wait_until_active(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while self._client.describe_table(TableName=self._table)["Table"]["TableStatus"] != "ACTIVE":
            if time.monotonic() > deadline_s:
                raise StoreUnavailableError(f"{self.where} did not become active within {timeout_s:g} s")
            time.sleep(0.5)

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(
            self.where,
            missing="Create it, with the partition key 'place' and the sort key 'name', both strings; or write "
            "create=true into the URL. Check the region, too",
            denied="Allow dynamodb:DescribeTable, GetItem, Query, PutItem, DeleteItem and BatchWriteItem on it, and "
            "CreateTable for create=true",
        )


def _manifest_place(group: str) -> str:
    return f"heads/{quoted(group)}"


def _part_place(group: str, name: str) -> str:
    return f"parts/{quoted(group)}/{quoted(name)}"


def _piece(part: str, number: int) -> str:
    return f"{part}/{number:06}"


def _key(place: str, name: str) -> Item:
    return {"place": {"S": place}, "name": {"S": name}}


def _manifest(item: Item) -> tuple[bytes, Stamp]:
    return bytes(item["data"]["B"]), item["stamp"]["S"]


OPTIONS: Final = frozenset({"create", "endpoint"})
CREATE: Final = {"true": True, "false": False}


class DynamoCheckpoints(VersionedCheckpoints):
    """Checkpoints in a table: `dynamodb://REGION/TABLE?create=true&endpoint=...`.

    With `create=true`, a missing table is created, billed on demand. Otherwise it must exist, with the partition key
    `place` and the sort key `name`, both strings. Credentials come from the usual AWS chain; or pass a boto3 `client`,
    which is closed with this store. `timeout_s` (10 s) is for a connection, and for an answer; requests are tried four
    times. Longer throttling raises StoreUnavailableError.

    Each lease is an item, which is written only if it has not changed since it was read; all reads are consistent. A
    checkpoint of up to 3 KB is in that item, so that saving it is one small write. A larger one, with any number of
    finished records, is first written to items of its own, of at most 400 KB each, and takes effect when the item of
    the lease refers to them; the old ones are removed afterwards.

    Not for a global table that is written in several regions: conditions hold only within one region.
    """

    def __init__(self, url: str, *, client: Any = None, timeout_s: float = 10.0) -> None:
        region, table, options = options_in(url, "dynamodb", OPTIONS)
        if not region or not table or "/" in table:
            raise ConfigError(f"{url!r} names no region and table: write dynamodb://REGION/TABLE")
        if options.get("create", "true") not in CREATE:
            raise ConfigError(f"{url!r}: create must be true or false")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s={timeout_s:g} must be positive")
        endpoint = options.get("endpoint")
        if client is None:
            client = aws_client("dynamodb", region, endpoint, timeout_s)
        elif endpoint is not None:
            raise ConfigError(f"{url!r} names an endpoint, but the given client has its own: omit one of them")
        objects = DynamoObjects(client, table, region, endpoint)
        try:
            objects.open(CREATE[options.get("create", "false")])
        except BaseException:
            objects.close()
            raise
        super().__init__(objects)
