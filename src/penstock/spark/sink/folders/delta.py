"""Delivery to Delta tables: each commit in Delta's log names its query and batch."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.errors import DeliveryError, MissingExtraError, SchemaMismatchError, StoreUnavailableError
from penstock.spark.sink.publishing import check_order
from penstock.spark.sink.staging import Staged, StagingFolder, stage
from penstock.spark.sink.target import Delivered, QueryIdentity

try:
    import deltalake
    import deltalake.exceptions
except ImportError as error:
    raise MissingExtraError("a folder of format 'delta'", "delta") from error

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 5


class DeltaDelivery:
    """A Delta table opened for one run of a query.

    Each commit carries the query and the batch as Delta's application transaction. Two commits with the same
    transaction conflict: if two drivers deliver a batch, one of them wins, and the other finds it delivered.
    """

    def __init__(self, path: str, partition_by: tuple[str, ...], identity: QueryIdentity, label: str) -> None:
        self._path = path.replace("s3a://", "s3://", 1)
        self._partition_by = list(partition_by)
        self._identity = identity
        self._label = label
        self._application = hashlib.blake2b(identity.id.encode(), digest_size=16).hexdigest()
        self._staging = StagingFolder(identity.staging)
        self._staging.clear()

    def deliver(self, frame: DataFrame, batch_id: int) -> Delivered:
        if self._is_delivered(batch_id):
            return Delivered(0, repeated=True)
        staged = stage(frame, self._staging, batch_id)
        try:
            self._identity.evaluated(batch_id)
            if staged.rows or self._identity.mode == "complete":
                self._commit_with_retries(_in_utc(to_arrow_schema(frame.schema)), staged)
        finally:
            staged.discard()
        return Delivered(staged.rows)

    def close(self) -> None:
        """Do nothing: the table holds no resources."""

    def _is_delivered(self, batch_id: int) -> bool:
        try:
            last = deltalake.DeltaTable(self._path).transaction_version(self._application)
        except deltalake.exceptions.TableNotFoundError:
            return False
        if last is None:
            return False
        check_order(batch_id, last, self._label)
        return last == batch_id

    def _commit_with_retries(self, schema: pa.Schema, staged: Staged) -> None:
        problem: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                self._commit(schema, staged)
                return
            except deltalake.exceptions.SchemaMismatchError as error:
                raise SchemaMismatchError(f"{self._label} rejected the rows: {error}") from error
            except deltalake.exceptions.CommitFailedError as error:
                problem = error
                logger.info("batch %d could not be committed to %s: %s", staged.batch_id, self._label, error)
                if self._is_delivered(staged.batch_id):
                    return
            except (deltalake.exceptions.DeltaError, pa.ArrowInvalid) as error:
                raise DeliveryError(f"{self._label} rejected the rows: {error}") from error
            except OSError as error:
                raise StoreUnavailableError(f"{self._label} cannot be reached: {error}") from error
        raise StoreUnavailableError(f"batch {staged.batch_id} could not be committed to {self._label}: {problem}")

    def _commit(self, schema: pa.Schema, staged: Staged) -> None:
        transaction = deltalake.Transaction(self._application, staged.batch_id)
        deltalake.write_deltalake(
            self._path,
            pa.RecordBatchReader.from_batches(schema, _cast(staged, schema)),
            mode="overwrite" if self._identity.mode == "complete" else "append",
            partition_by=self._partition_by or None,
            commit_properties=deltalake.CommitProperties(app_transactions=[transaction]),
        )


def _in_utc(schema: pa.Schema) -> pa.Schema:
    """The schema with time zones changed to UTC, the only one that Delta supports."""
    return pa.schema(
        field.with_type(pa.timestamp("us", "UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz is not None
        else field
        for field in schema
    )


def _cast(staged: Staged, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in staged.batches():
        yield batch.cast(schema)
