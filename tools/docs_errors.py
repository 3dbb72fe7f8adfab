"""The reference of errors: every class of `penstock.errors`, what it means, and what to do.

The meaning is the docstring of the error; the advice is here. The line `<!-- errors -->` in a page becomes the tables,
one for each family; `docs_hooks` calls `on_page_markdown`. An error without advice stops the build, and so does advice
for an error that does not exist.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final

from penstock import errors
from tools.docs_tables import markdown_table

PLACE: Final = "<!-- errors -->"

FAMILIES: Final[Mapping[str, Mapping[str, str]]] = {
    "Configuration": {
        "MissingExtraError": "Run the `pip install` command in the message.",
        "ConfigError": "Correct the setting that the message names; it says what is allowed.",
        "GuaranteeError": "Choose components that support the guarantee together, or a weaker guarantee; see "
        "[Guarantees](../guarantees.md).",
        "HandlerError": "Change the handler as the message says: its parameters, its kind, or where it is defined.",
        "UrlError": "Use one of the URL forms in [Concepts](../concepts.md#urls-choose-the-backend).",
        "SchemaMismatchError": "Rename, add or cast the columns that the message lists.",
        "JavaMissingError": "Install Java 17 or newer, or set `JAVA_HOME` to an installed one.",
        "ConnectorMissingError": "Run `penstock spark jars` once.",
        "ClusterError": "Do what the message says; `penstock cluster status` shows the brokers.",
        "FilterError": "Correct the filter at the position that the message shows.",
        "QueryError": "Correct the query as the message says. Queries only read topics.",
        "QueryStoppedError": "Let the query read less, by a condition on timestamp or partition, or raise its timeout.",
    },
    "Connecting to the stream": {
        "BrokerUnavailableError": "Check that the broker is running and that the address is right; for `log:` URLs the "
        "message contains the broker's last output. A retry may succeed.",
        "ConnectionClosedError": "Use the connection inside its `with` block, or connect again.",
        "ClosedError": "Do not use the object after `close`; open another.",
        "DataFolderInUseError": "Connect to the broker that owns the folder, with the `log:` URL, instead of opening "
        "the folder a second time.",
        "StreamError": "The message contains the broker's reason.",
        "NotAllowedError": "Use another login, or have this one given the permission.",
        "UnknownTopicError": "Create the topic, or correct its name: `penstock topics` lists the topics.",
        "HistoryLostError": "Choose a later moment, or raise the topic's `min.compaction.lag.ms` for what comes from "
        "now on.",
        "TopicExistsError": "Use the existing topic, or another name.",
        "InvalidTopicError": "Use letters, digits, `.`, `_` and `-`, at most 249 of them.",
        "AliasChangedError": "Check the alias with `penstock pipelines`, then switch again.",
        "GroupError": "Stop the members of the group before you change it, or correct its name.",
        "StaleDeliveryError": "Settle sooner, or give the queue a longer visibility timeout: the record was delivered "
        "again.",
    },
    "Sending": {
        "DeliveryError": "If `retriable`, send again; otherwise the record can never be stored, and the message says "
        "why.",
        "BufferFullError": "Send more slowly, make the buffer larger, or choose with `when_full` what may be dropped.",
        "SpoolInUseError": "Stop the other producer, or give this one a spool of its own.",
        "SpoolError": "Keep the folder for analysis, and start with a new one; the message names the file.",
        "RecordTooLargeError": "Make the record smaller, or raise the topic's `max.message.bytes`.",
        "InvalidTimestampError": "Correct the clock of the sender, or the topic's `message.timestamp.before.max.ms` "
        "and `.after.max.ms`.",
        "InvalidRecordError": "Give records of a compacted topic a key; the message says what else is not allowed.",
        "OutOfOrderSequenceError": "Restart the producer: a batch was lost between it and the broker.",
        "InvalidProducerEpochError": "Stop the older producer: a newer one with the same id has taken over.",
        "InvalidTransactionStateError": "Begin a transaction before you send in it, and end it once.",
        "TransactionCoordinatorFencedError": "Nothing: the newer coordinator continues the transaction.",
        "TransactionError": "Let the `with` block end the transaction.",
        "TransactionAbortedError": "Repeat the transaction: nothing of it was stored.",
        "TransactionLostError": "Close the producer and start another with the same `transactional_id`; it ends the "
        "transaction.",
        "OvertakenError": "Run one producer per `transactional_id`, or raise the transaction timeout.",
    },
    "Values": {
        "SerdeError": "When sending: pass a value of the topic's type. When reading: the record became a dead letter; "
        "correct the type or the sender, then redrive.",
        "RegistryError": "Follow the registry's message.",
        "RegistryUnavailableError": "Check that the registry is running. A retry may succeed; the record is valid.",
        "IncompatibleSchemaError": "Give new fields a default, or use another subject.",
    },
    "Handling": {
        "Reject": "Your handler raised it: inspect the dead letter, and redrive or discard it.",
        "WorkerDiedError": "Find out why the record kills the process; after five deaths it is a dead letter.",
        "OffsetOutOfRangeError": "Choose a position inside the range that the message names, or `on_expired`. For a "
        "group: retention deleted records before they were read.",
        "RecordsExpiredError": "Set `on_expired` to say where to continue, and raise `retention.ms` or "
        "`retention.bytes`.",
        "RecordsLostError": "Set `on_expired` to continue without the records of the deleted topic or partition.",
        "BadRowsError": "Look at the rows with `penstock dlq`, fix the program or the input, or raise `max_bad_rows`.",
        "FencedError": "Nothing, if a rebalance took the partition: the new owner continues. Otherwise find the other "
        "process that uses the same name.",
        "RedriveRunningError": "Wait until the other redrive has ended, or stop it where it was started.",
    },
    "Checkpoints": {
        "StoreUnavailableError": "Check that the store is reachable and has space. A retry may succeed; records wait.",
        "OutcomeUnknownError": "Claim the lease again and load the checkpoint before you retry; `App` does this.",
        "CorruptCheckpointError": "Restore the store from a backup, or delete the group's checkpoints and choose where "
        "it starts.",
    },
    "Pipelines": {
        "PipelineError": "The message names the query, the reason and what to do.",
        "CheckpointMismatchError": "Undo the change, or reprocess everything beside it: "
        "[Processing again](../spark/reprocessing.md).",
        "PipelineRunningError": "Stop the other run, or give this one a name or a checkpoint folder of its own.",
        "TopicReplacedError": "Give the pipeline a new name, so that it starts again with the new topic.",
    },
    "Change data capture": {
        "SourceUnavailableError": "Check that the database runs and accepts connections; the capture tries again by "
        "itself.",
        "ChangesLostError": "Take a new snapshot with `--snapshot again`, and raise `max_slot_wal_keep_size`: changes "
        "were lost.",
        "UnsupportedTypeError": "Leave the column out of the publication, or change its type, as the message says.",
    },
    "Event sourcing": {
        "VersionConflictError": "Load the aggregate again, decide again, and append with its version; "
        "`EventStore.change` does so.",
        "EventsLostError": "Set `retention.ms` and `retention.bytes` of the topic to -1, and restore the events from a "
        "copy.",
    },
    "Storage": {
        "StorageError": "Free some space, or replace the disk. After a failed fsync, restart the broker on a healthy "
        "disk.",
        "CorruptBatchError": "Send the batch again; if it was read from a file, see below.",
        "CorruptSegmentError": "Restore the file from a backup, or continue reading behind the damage.",
    },
    "The console and alerts": {
        "ReadOnlyError": "Start the console without `--read-only` if you need to make changes.",
        "AuditError": "Free some space for the audit log, or move it: no change is made without an audit entry.",
        "NotifyError": "Correct the address or the credentials of the notifier; the message contains the answer.",
        "SignInError": "Use the right password or token; after too many attempts, wait as long as the message says.",
    },
}
ROOTS: Final = frozenset({"PenstockError", "LogError"})


def on_page_markdown(markdown: str, **_: object) -> str:
    return markdown.replace(PLACE, tables()) if PLACE in markdown else markdown


def tables() -> str:
    known = classes()
    advised = {name for family in FAMILIES.values() for name in family}
    if missing := sorted(known.keys() - advised - ROOTS):
        raise TypeError(f"tools/docs_errors.py has no advice for {', '.join(missing)}")
    if gone := sorted(advised - known.keys()):
        raise TypeError(f"tools/docs_errors.py has advice for errors that do not exist: {', '.join(gone)}")
    return "\n\n".join(
        f"## {title}\n\n"
        + markdown_table(
            ("error", "what it means", "what to do"),
            [(_named(known[name]), _meaning(known[name]), advice) for name, advice in family.items()],
        )
        for title, family in FAMILIES.items()
    )


def classes() -> dict[str, type[Exception]]:
    """All error classes by name."""
    return {
        name: each
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, errors.PenstockError)
    }


def _named(error: type[Exception]) -> str:
    """The name, and the parent class if users catch that: `except ConfigError` catches both."""
    (parent,) = error.__bases__
    shown = f'<a id="{error.__name__.lower()}"></a>`{error.__name__}`'
    return shown if parent.__name__ in ROOTS else f"{shown}, a `{parent.__name__}`"


def _meaning(error: type[Exception]) -> str:
    if not error.__doc__:
        raise TypeError(f"{error.__name__} needs a docstring")
    return " ".join(error.__doc__.split())
