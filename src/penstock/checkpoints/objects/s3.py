"""Checkpoints in S3, or a compatible store with conditional writes."""

from __future__ import annotations

import importlib
import itertools
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final, TypeVar

from penstock.checkpoints.objects.aws import client as aws_client
from penstock.checkpoints.objects.aws import options_in, quoted, translated_errors, unquoted
from penstock.checkpoints.objects.manifests import Stamp
from penstock.checkpoints.objects.store import VersionedCheckpoints
from penstock.errors import ConfigError, StoreUnavailableError
from penstock.model.retry import Retry
from penstock.streams.adapting.aws import code_of

AT_ONCE: Final = 8
"""How many objects are read or removed at the same time."""
CONFLICTS: Final = 6
"""How often to try a write that S3 refuses because of a concurrent one."""
_AGAIN: Final = Retry(CONFLICTS, first_delay_s=0.02)

NOT_AS_EXPECTED: Final = frozenset({"PreconditionFailed", "412", "NoSuchKey", "404"})
CONFLICT: Final = frozenset({"ConditionalRequestConflict", "409", "OperationAborted"})
NOT_THERE: Final = frozenset({"NoSuchKey", "404"})
NOT_KNOWN: Final = frozenset({"NotImplemented", "501", "InvalidArgument", "InvalidRequest"})

T = TypeVar("T")
R = TypeVar("R")


class S3Objects:
    """An `ObjectStore` in a bucket, below a prefix."""

    inline_bytes = 8 * 1024
    new_bytes = 128 * 1024

    def __init__(self, client: Any, bucket: str, prefix: str, endpoint: str | None) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        self.where = f"s3://{bucket}/{self._prefix}" + (f" at {endpoint}" if endpoint else "")
        self._refused: type[Exception] = importlib.import_module("botocore.exceptions").ClientError
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="penstock-s3")
        self._read: dict[str, tuple[bytes, Stamp]] = {}
        """Manifests as last read, so that only those with another stamp in the listing are read again."""
        self.can_remove_manifests = False

    def probe(self) -> None:
        """Check that conditions are honoured: without them two owners could both write."""
        key = f"{self._prefix}probe/{secrets.token_hex(8)}"
        with self._errors():
            stamp = self._put(key, b"1", IfNoneMatch="*")
            try:
                if stamp is None:
                    raise self._unconditional("refused to write an object that did not exist")
                if self._put(key, b"2", IfNoneMatch="*") is not None:
                    raise self._unconditional("overwrote an object despite If-None-Match")
                other = '"00000000000000000000000000000000"'
                if self._put(key, b"3", IfMatch=other) is not None:
                    raise self._unconditional("overwrote an object whose ETag did not match")
                if self._put(key, b"4", IfMatch=stamp) is None:
                    raise self._unconditional("refused to overwrite an object whose ETag matched")
                self.can_remove_manifests = self._refuses_to_delete(key, other)
            finally:
                self._client.delete_object(Bucket=self._bucket, Key=key)

    def read_manifest(self, group: str, name: str) -> tuple[bytes, Stamp] | None:
        with self._errors():
            return self._get(self._manifest_key(group, name))

    def manifests(self, group: str, prefix: str = "") -> Mapping[str, tuple[bytes, Stamp]]:
        folder, asked = self._manifest_key(group, ""), self._manifest_key(group, prefix)
        with self._errors():
            listed = {entry["Key"]: entry["ETag"] for entry in self._list(asked)}
            with self._lock:
                known = {key: self._read[key] for key in listed if key in self._read}
            stale = [key for key, stamp in listed.items() if key not in known or known[key][1] != stamp]
            fresh = dict(zip(stale, self._each(self._get, stale), strict=True))
        now = {key: fresh[key] if key in fresh else known[key] for key in listed}
        found = {key: manifest for key, manifest in now.items() if manifest is not None}
        with self._lock:
            for key in [key for key in self._read if key.startswith(asked)]:
                del self._read[key]
            self._read.update(found)
        return {unquoted(key.removeprefix(folder)): manifest for key, manifest in found.items()}

    def swap_manifest(self, group: str, name: str, stamp: Stamp | None, data: bytes) -> Stamp | None:
        condition = {"IfNoneMatch": "*"} if stamp is None else {"IfMatch": stamp}
        with self._errors():
            return self._put(self._manifest_key(group, name), data, **condition)

    def remove_manifest(self, group: str, name: str, stamp: Stamp) -> None:
        with self._errors():
            try:
                self._client.delete_object(Bucket=self._bucket, Key=self._manifest_key(group, name), IfMatch=stamp)
            except self._refused as error:
                if code_of(error) not in NOT_AS_EXPECTED | CONFLICT:
                    raise

    def groups(self) -> Sequence[str]:
        folder = f"{self._prefix}heads/"
        with self._errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=folder, Delimiter="/"
            )
            names = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
        return [unquoted(name.removeprefix(folder).rstrip("/")) for name in names]

    def put_part(self, group: str, name: str, part: str, data: bytes) -> None:
        with self._errors():
            self._client.put_object(Bucket=self._bucket, Key=self._part_key(group, name, part), Body=data)

    def get_part(self, group: str, name: str, part: str) -> bytes | None:
        with self._errors():
            found = self._get(self._part_key(group, name, part))
        return None if found is None else found[0]

    def parts(self, group: str, name: str) -> Sequence[str]:
        folder = self._part_key(group, name, "")
        with self._errors():
            return [entry["Key"].removeprefix(folder) for entry in self._list(folder)]

    def remove_parts(self, group: str, name: str, parts: Collection[str]) -> None:
        with self._errors():
            keys = [self._part_key(group, name, part) for part in parts]
            self._each(lambda key: self._client.delete_object(Bucket=self._bucket, Key=key), keys)

    def close(self) -> None:
        self._pool.shutdown()
        self._client.close()

    def _get(self, key: str) -> tuple[bytes, Stamp] | None:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=key)
        except self._refused as error:
            if code_of(error) in NOT_THERE:
                return None
            raise
        with answer["Body"] as body:
            return body.read(), answer["ETag"]

    def _put(self, key: str, data: bytes, **condition: str) -> Stamp | None:
        for delay_s in itertools.islice(_AGAIN.delays_s(), CONFLICTS):
            try:
                answer = self._client.put_object(Bucket=self._bucket, Key=key, Body=data, **condition)
                return str(answer["ETag"])
            except self._refused as error:
                if code_of(error) in NOT_AS_EXPECTED:
                    return None
                if code_of(error) not in CONFLICT:
                    raise
            time.sleep(delay_s)
        raise StoreUnavailableError(f"{self.where}: other writers keep changing the same object")

    def _refuses_to_delete(self, key: str, other: Stamp) -> bool:
        """Whether conditional removal works, too; not all stores with conditional writes have it."""
        try:
            self._client.delete_object(Bucket=self._bucket, Key=key, IfMatch=other)
        except self._refused as error:
            if code_of(error) in NOT_KNOWN:
                return False
            if code_of(error) not in NOT_AS_EXPECTED:
                raise
            return self._get(key) is not None
        return False

    def _list(self, prefix: str) -> Iterator[Any]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix):
            yield from page.get("Contents", ())

    def _each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        return list(self._pool.map(function, items))

    def _unconditional(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.where} {what}: it does not honour If-Match and If-None-Match, so it cannot fence owners. "
            "Use Amazon S3 or a store with conditional writes"
        )

    def _manifest_key(self, group: str, name: str) -> str:
        return f"{self._prefix}heads/{quoted(group)}/{quoted(name)}"

    def _part_key(self, group: str, name: str, part: str) -> str:
        return f"{self._prefix}parts/{quoted(group)}/{quoted(name)}/{part}"

    def _errors(self) -> AbstractContextManager[None]:
        return translated_errors(
            self.where,
            missing=f"Create the bucket {self._bucket!r}, or check its name and region",
            denied="Allow s3:ListBucket on the bucket; s3:GetObject, s3:PutObject and s3:DeleteObject on its objects",
        )


OPTIONS: Final = frozenset({"endpoint", "region"})


class S3Checkpoints(VersionedCheckpoints):
    """Checkpoints in a bucket: `s3://BUCKET/PREFIX?region=...&endpoint=...`.

    The bucket must exist. Credentials come from the usual AWS chain; or pass a boto3 `client`, which is closed with
    this store. `timeout_s` (10 s) is for a connection, and for an answer; requests are tried four times.

    Each lease has a small object, the manifest, which is written only if it has not changed since it was read
    (`If-Match`, `If-None-Match`). Opening checks that the store honours these conditions, and raises ConfigError if
    not. A small checkpoint is in the manifest, so that saving it is one request; for a larger one another object is
    written first. State, history and idempotency keys are kept as a snapshot and later changes, which are merged when
    they have grown. Old versions are removed, at the latest by the next owner. If the bucket itself keeps versions,
    give it a lifecycle rule that expires them.

    Every save and every renewal is a request that S3 bills, and takes some tens of milliseconds: save every second or
    so, not after every record.
    """

    def __init__(self, url: str, *, client: Any = None, timeout_s: float = 10.0) -> None:
        bucket, prefix, options = options_in(url, "s3", OPTIONS)
        if not bucket:
            raise ConfigError(f"{url!r} names no bucket: write s3://BUCKET/PREFIX")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s={timeout_s:g} must be positive")
        endpoint = options.get("endpoint")
        if client is None:
            client = aws_client("s3", options.get("region"), endpoint, timeout_s)
        elif options:
            raise ConfigError(f"{url!r} has options, but the given client has its own: omit one of them")
        objects = S3Objects(client, bucket, prefix, endpoint)
        try:
            objects.probe()
        except BaseException:
            objects.close()
            raise
        super().__init__(objects)
