"""Every error that users can get. Each message says what happened, to what, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class PenstockError(Exception):
    """The base class of all errors that Penstock raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructor, whose parameters differ from `args`."""
        return _restored, (type(self), self.args, vars(self))


def _restored(kind: type[PenstockError], args: tuple[Any, ...], fields: dict[str, Any]) -> PenstockError:
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


class MissingExtraError(PenstockError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs packages that are not installed; run: pip install 'penstock[{extra}]'")
        self.extra = extra


class ConfigError(PenstockError):
    """A setting has an unknown name or an invalid value."""


class UrlError(PenstockError):
    """A stream URL is invalid."""


class LogError(PenstockError):
    """The base class of the storage engine's errors."""


class DataFolderInUseError(LogError):
    """Another process uses the data folder."""


class CorruptBatchError(LogError):
    """A record batch is damaged: its length, checksum or contents are wrong."""


class CorruptSegmentError(CorruptBatchError):
    """A stored batch is damaged. It is never served; the records around it are."""

    def __init__(self, file: str, position: int, offset: int, reason: str) -> None:
        super().__init__(
            f"{file}: the batch at byte {position} (offset {offset}) is damaged: {reason}. "
            "Records before and after it are intact; restore this file from a copy, or continue reading after it."
        )
        self.file = file
        self.position = position
        self.offset = offset
        self.reason = reason


class RecordTooLargeError(LogError):
    """A batch is larger than the topic's `max.message.bytes`."""


class InvalidTimestampError(LogError):
    """A record's timestamp differs more from the broker's clock than the topic allows."""


class InvalidRecordError(LogError):
    """A well-formed record is not allowed here, such as one without a key in a compacted topic."""

    def __init__(self, message: str, records: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)
        """The indexes of the rejected records in their batch; empty if the whole batch was rejected."""


class OffsetOutOfRangeError(LogError):
    """The requested offset is before the log's start (deleted) or past its end."""

    def __init__(self, partition: str, offset: int, start: int, end: int) -> None:
        """`partition` is TOPIC-NUMBER."""
        where = "was deleted by retention" if offset < start else "has not been written yet"
        super().__init__(
            f"{partition}: offset {offset} {where}; the log holds {start} to {end}. Choose earliest, latest, or an "
            "offset in between."
        )
        self.partition = int(partition.rpartition("-")[2])
        self.offset = offset
        self.start = start
        self.end = end


class StorageError(LogError):
    """The disk is full, or an I/O error happened. Nothing that was acknowledged is lost."""


class OutOfOrderSequenceError(LogError):
    """An idempotent producer's batch does not follow the one before it: a batch in between is missing."""


class InvalidProducerEpochError(LogError):
    """A newer instance of this producer exists; the older one may no longer write."""


class InvalidTransactionStateError(LogError):
    """A transactional batch or marker does not belong to an open transaction of its producer."""


class TransactionCoordinatorFencedError(LogError):
    """A transaction marker comes from a coordinator that has been replaced."""


class UnknownTopicError(LogError):
    """The topic or partition does not exist."""


class TopicExistsError(LogError):
    """The topic already exists."""


class InvalidTopicError(LogError):
    """The topic name is not allowed."""


class BrokerUnavailableError(PenstockError):
    """The broker could not be started or reached."""

    def __init__(self, message: str, *, retriable: bool = True) -> None:
        super().__init__(message)
        self.retriable = retriable
        """Whether another attempt with the same settings may succeed."""


class DeliveryError(PenstockError):
    """A record could not be delivered to the stream."""

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable
        """Whether sending the same record again may succeed."""


class ConnectionClosedError(PenstockError):
    """The connection was used after it was closed."""


class StreamError(PenstockError):
    """The stream refused a request, or could not execute it."""


class GroupError(StreamError):
    """The group does not exist, is in use, or is in the wrong state for the request."""


class StaleDeliveryError(StreamError):
    """A queue delivery was settled too late: the record was delivered again."""


class SerdeError(PenstockError):
    """A value cannot be encoded, or bytes cannot be decoded."""


class BufferFullError(PenstockError):
    """The producer's buffer was full and did not get room in time."""


class SpoolInUseError(PenstockError):
    """Another producer uses the spool."""


class StoreUnavailableError(PenstockError):
    """A store of checkpoints or dead letters is unavailable for now. Another attempt may succeed."""


class CorruptCheckpointError(PenstockError):
    """A stored checkpoint is damaged. Restore it, or delete the group's checkpoints and choose where to start."""


class FencedError(PenstockError):
    """Another member owns the partition now. The write of this one was refused; nothing is lost."""


class HandlerError(PenstockError):
    """A handler cannot be used: its parameters, its kind or where it is defined do not fit."""


class GuaranteeError(ConfigError):
    """The chosen parts cannot give the guarantee."""


class WorkerDiedError(PenstockError):
    """The process that handled a record died while handling it."""


class Reject(PenstockError):
    """Raised by a handler for a record that can never succeed: it becomes a dead letter at once."""


class TransactionError(PenstockError):
    """User code began or ended a transaction that Penstock controls."""


class RegistryError(PenstockError):
    """The schema registry refused a request. The cause is the registry or its rules, not one record."""

    def __init__(self, message: str, status: int | None = None, code: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status, if there was an answer."""
        self.code = code
        """The registry's error code, such as 40403: schema not found."""


class RegistryUnavailableError(RegistryError):
    """The schema registry is unavailable for now. Another attempt may succeed; no record is at fault."""


class IncompatibleSchemaError(RegistryError):
    """The schema breaks the compatibility level of its subject: change it, or use another subject."""


class SpoolError(PenstockError):
    """A spool's folder is damaged, or from a version that this one cannot read."""


class ClosedError(PenstockError):
    """An object was used after it was closed."""


class OutcomeUnknownError(StoreUnavailableError):
    """The connection to the store was lost during a commit: it may have happened or not.

    Claim the lease again, which waits for the transaction to end, and load the checkpoint before retrying.
    """


class TransactionAbortedError(StoreUnavailableError):
    """A transaction was aborted: none of its effects is visible. Run it again."""


class JavaMissingError(PenstockError):
    """No Java that Spark can use was found. The message says what was found and what to install."""


class SchemaMismatchError(ConfigError):
    """Rows do not fit their target: columns are missing or have other types."""


class PipelineError(PenstockError):
    """A pipeline failed. The message says which query, why, and what to do."""


class CheckpointMismatchError(PipelineError):
    """A checkpoint belongs to another pipeline, or to an incompatible version of this one."""


class BadRowsError(PipelineError):
    """Rows of a batch failed and may not be left out: too many, or an expectation that stops the query. Fix the program
    or the input, or raise `max_bad_rows`; the batch is repeated at the next start."""


class PipelineRunningError(PipelineError):
    """Another process is running this pipeline with this checkpoint."""


class NotAllowedError(StreamError):
    """The stream denied the request: the client has no permission for it."""


class TransactionLostError(PenstockError):
    """A transaction failed, and its producer cannot be used again; the next one with its transactional id ends it.

    The outcome is known unless the commit was under way: then the next producer waits for it.
    """

    must_abort = False
    """Whether its producer can go on once it has aborted the transaction."""


class OvertakenError(TransactionLostError):
    """Another producer was started with the same transactional id, or the transaction took too long."""


class AliasChangedError(StreamError):
    """Another process switched the alias to another topic in the meantime."""


class RecordsExpiredError(PipelineError):
    """The next records to read were deleted, by retention or by a user."""

    def __init__(self, topic: str, partition: int, wanted: int, earliest: int) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: the next record to read has pointer {wanted}, but the earliest "
            f"that exists has {earliest}: {earliest - wanted} pointers are gone. To continue without them, say "
            'where: on_expired="earliest" (the option onExpired), "latest", or a time; to keep records longer, raise '
            "the topic's retention.ms or retention.bytes"
        )
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.earliest = earliest


class RecordsLostError(PipelineError):
    """A topic or partition was deleted before a query had read all of its records."""


class TopicReplacedError(PipelineError):
    """A topic is not the one read before: it was deleted, recreated, or truncated."""


class ConnectorMissingError(PenstockError):
    """Spark's Kafka connector is missing, or could not be downloaded. The message says what to do."""


class ReadOnlyError(PenstockError):
    """The console was started read-only and refuses every change."""


class AuditError(PenstockError):
    """The audit log cannot be written, so the change was refused."""


class FilterError(ConfigError):
    """A message filter is invalid. The error shows where, and what is allowed there."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position
        """The index of the wrong character, counted from 0."""


class QueryError(PenstockError):
    """A query cannot be run. The message says what is wrong with it, and what is allowed."""


class QueryStoppedError(QueryError):
    """A query was cancelled, or ran for longer than its timeout. Read less, or raise the timeout."""


class RedriveRunningError(PenstockError):
    """These dead letters are being redriven already. The message says by whom, and the progress."""


class NotifyError(PenstockError):
    """An alert notification could not be sent. The message says why."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """How long the receiver asked to wait before the next attempt, if it did."""


class SignInError(PenstockError):
    """The console refused a sign-in: wrong password or token, too many attempts, or signed out."""


class ClusterError(PenstockError):
    """`penstock cluster` cannot do what was asked of its brokers. The message says why, and what to do."""


class SourceUnavailableError(PenstockError):
    """The database that is captured is unavailable for now. Another attempt may succeed; nothing is lost."""


class ChangesLostError(PenstockError):
    """Changes are gone that were not captured yet, or not applied. Capture a new snapshot: `--snapshot again`; repair a
    target: `penstock cdc compare --repair`."""


class UnsupportedTypeError(ConfigError):
    """A column has a type whose values cannot be captured. The message names it, and what to do."""


class HistoryLostError(PenstockError):
    """The topic no longer has the records that tell what a table was at that moment."""


class VersionConflictError(PenstockError):
    """An aggregate has another version than expected: somebody else has appended. Load it again, and decide again."""

    def __init__(self, id: str, expected: int, actual: int) -> None:
        super().__init__(
            f"{id!r} was expected to have version {expected}, and has {actual}; nothing was stored: load it again, "
            "decide again, and append with that version"
        )
        self.id = id
        self.expected = expected
        self.actual = actual


class EventsLostError(StreamError):
    """Events of an aggregate are missing from their topic. The message says which."""
