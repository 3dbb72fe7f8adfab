"""Every error a user can meet. Each says what happened, to what, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence


class PenstockError(Exception):
    """The root of all errors that Penstock raises on purpose."""


class MissingExtraError(PenstockError):
    """A part was asked for whose optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs packages that are not installed; run: pip install 'penstock[{extra}]'")
        self.extra = extra


class ConfigError(PenstockError):
    """A setting has a name or a value that is not allowed."""


class UrlError(PenstockError):
    """A stream URL cannot be understood."""


class LogError(PenstockError):
    """The root of the storage engine's errors."""


class DataFolderInUseError(LogError):
    """Another process owns the data folder."""


class CorruptBatchError(LogError):
    """A record batch is damaged: its length, its checksum or its contents do not add up."""


class CorruptSegmentError(CorruptBatchError):
    """A stored batch is damaged. It is never served; the records around it still are."""

    def __init__(self, file: str, position: int, offset: int, reason: str) -> None:
        super().__init__(
            f"{file}: the batch at byte {position} (offset {offset}) is damaged: {reason}. "
            "Records before and after it are intact; restore this file from a copy, or continue reading behind it."
        )
        self.file = file
        self.position = position
        self.offset = offset
        self.reason = reason


class RecordTooLargeError(LogError):
    """A batch is larger than the topic's `max.message.bytes`."""


class InvalidTimestampError(LogError):
    """A record's timestamp is further from the broker's clock than the topic allows."""


class InvalidRecordError(LogError):
    """A record is well formed but not allowed here, such as one without a key in a compacted topic."""

    def __init__(self, message: str, records: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.records = tuple(records)
        """Which records of their batch, counted from 0, where it is they and not the batch."""


class OffsetOutOfRangeError(LogError):
    """The offset asked for is before the log's start (deleted) or past its end."""

    def __init__(self, partition: str, offset: int, start: int, end: int) -> None:
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
    """The disk refused: it is full, or an I/O error happened. Nothing that was acknowledged is lost."""


class OutOfOrderSequenceError(LogError):
    """An idempotent producer's batch does not follow the one before it: a batch in between is missing."""


class InvalidProducerEpochError(LogError):
    """A newer instance of this producer exists; the older one may not write any more."""


class InvalidTransactionStateError(LogError):
    """A transactional batch or marker does not belong to an open transaction of its producer."""


class TransactionCoordinatorFencedError(LogError):
    """A transaction marker comes from a coordinator that has been replaced since."""


class UnknownTopicError(LogError):
    """No such topic or partition."""


class TopicExistsError(LogError):
    """A topic of that name exists already."""


class InvalidTopicError(LogError):
    """A topic name is not allowed."""


class BrokerUnavailableError(PenstockError):
    """The broker could not be started or reached."""


class DeliveryError(PenstockError):
    """A record could not be delivered to the stream."""

    def __init__(self, message: str, *, retriable: bool = False) -> None:
        super().__init__(message)
        self.retriable = retriable
        """Whether sending it again, as it is, may help."""


class ConnectionClosedError(PenstockError):
    """A connection was used after it had been closed."""


class StreamError(PenstockError):
    """The stream refused a request, or could not carry it out."""


class GroupError(StreamError):
    """A group is not there, or in use, or not as the request needs it."""


class StaleDeliveryError(StreamError):
    """A delivery of a queue was settled too late: it has been handed out again."""


class SerdeError(PenstockError):
    """A value has no form in bytes, or bytes are no such value."""


class BufferFullError(PenstockError):
    """The producer's buffer had no room, and did not get any in time."""


class SpoolInUseError(PenstockError):
    """Another producer owns the spool."""


class StoreUnavailableError(PenstockError):
    """A store of checkpoints or dead letters cannot be reached, or refused for now. Trying again may help."""


class CorruptCheckpointError(PenstockError):
    """A stored checkpoint is damaged. It is not guessed at: restore it, or forget the group and choose its start."""


class FencedError(PenstockError):
    """Somebody else owns the partition now. What this owner wanted to write was refused, and nothing is lost."""


class HandlerError(PenstockError):
    """A handler is not one that can be called: its parameters, its kind, or its place do not fit."""


class GuaranteeError(ConfigError):
    """A guarantee that these parts cannot give together."""


class WorkerDiedError(PenstockError):
    """The process that handled a record ended in the middle of it."""


class CircuitOpenError(PenstockError):
    """Too many records in a row were about to be given up: it is the handler or what it needs, not the records."""


class Reject(PenstockError):  # users raise it, and it reads as what they say
    """Raised by a handler: this record can never succeed. It goes to the dead letters at once."""


class TransactionError(PenstockError):
    """A transaction that belongs to Penstock was begun twice, or ended by somebody else."""


class RegistryError(PenstockError):
    """The schema registry refused a request. It is about the registry and its rules, not about one record."""

    def __init__(self, message: str, status: int | None = None, code: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status of the answer, if there was one."""
        self.code = code
        """The registry's own number for what is wrong, such as 40403: no such schema."""

    def __reduce__(self) -> tuple[type[RegistryError], tuple[str, int | None, int | None]]:
        return type(self), (str(self), self.status, self.code)


class RegistryUnavailableError(RegistryError):
    """The schema registry cannot be reached, or is in trouble. Trying again may help; no record is at fault."""


class IncompatibleSchemaError(RegistryError):
    """The schema breaks the compatibility that the registry demands of its subject: change it, or start another."""


class SpoolError(PenstockError):
    """A spool's folder holds something that is damaged, or that this version cannot read."""


class ClosedError(PenstockError):
    """Something was used after it had been closed."""


class OutcomeUnknownError(StoreUnavailableError):
    """The store was lost while a transaction was being committed: it counts, or it does not. Claim the lease again,
    which waits for its end, and load the checkpoint, before anything is done again."""


class TransactionAbortedError(StoreUnavailableError):
    """A transaction could not be committed. Nothing of it counts, and nobody has seen any of it: do it again."""


class JavaMissingError(PenstockError):
    """There is no Java that Spark can run on. The message says what was found, and what to install."""


class SchemaMismatchError(ConfigError):
    """Rows do not fit where they are to go: columns are missing, or of other types."""


class PipelineError(PenstockError):
    """A pipeline cannot go on. The message says which query, why, and what to do."""


class CheckpointMismatchError(PipelineError):
    """A checkpoint belongs to another pipeline, or to a version of it whose state this one cannot read."""


class PipelineRunningError(PipelineError):
    """Another process runs this pipeline with this checkpoint."""


class AliasChangedError(StreamError):
    """A name leads to another topic than whoever wanted to switch it had seen."""


class RecordsExpiredError(PipelineError):
    """The records that come next were deleted before they were read: by retention, or by somebody's hand."""

    def __init__(self, topic: str, partition: int, wanted: int, earliest: int) -> None:
        super().__init__(
            f"topic {topic!r}, partition {partition}: the next record to read has pointer {wanted}, and the earliest "
            f"that is still there has {earliest}: {earliest - wanted} pointers are gone. To go on without them, say "
            'where: on_expired="earliest" (the option onExpired), "latest", or a time; to have more time, raise the '
            "topic's retention.ms or retention.bytes"
        )
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.earliest = earliest

    def __reduce__(self) -> tuple[type[RecordsExpiredError], tuple[str, int, int, int]]:
        return type(self), (self.topic, self.partition, self.wanted, self.earliest)


class TopicReplacedError(PipelineError):
    """A topic is not the one that was read before: it was deleted, and perhaps created anew, or its end went back."""


class ConnectorMissingError(PenstockError):
    """Spark's Kafka connector is needed and not there, or could not be fetched. The message says what to do."""


class ReadOnlyError(PenstockError):
    """The console only looks: it was started read-only, and refuses every change."""


class AuditError(PenstockError):
    """The audit log cannot be written. Nothing is changed that nobody could look up afterwards."""


class FilterError(ConfigError):
    """A filter of messages cannot be understood. The message shows where, and what can be written there."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position
        """The character, counted from 0, where the mistake is."""


class RedriveRunningError(PenstockError):
    """Somebody is redriving these dead letters already. The message says who, and how far it has come."""


class NotifyError(PenstockError):
    """A message about alerts did not reach those whom a notifier tells. The message says why."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        """For how long the other side wants to be left alone, if it said so."""


class SignInError(PenstockError):
    """Whoever wants to come into the console may not: a wrong password or token, too many attempts, or signed out."""
