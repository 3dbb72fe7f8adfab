"""The reference of errors: every class of `penstock.errors`, what it means, and what to do.

What an error means is its docstring; what to do about it stands here, as it is advice to people and not a contract. The
line `<!-- errors -->` in a page becomes the tables, one for each family; `docs_hooks` calls `on_page_markdown`. An
error that nobody has given advice for stops the build, and so does advice for one that is gone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final

from penstock import errors
from tools.docs_tables import markdown_table

PLACE: Final = "<!-- errors -->"

FAMILIES: Final[Mapping[str, Mapping[str, str]]] = {
    "Setting things up": {
        "MissingExtraError": "Run the `pip install` that the message names.",
        "ConfigError": "Correct the setting that the message names; it says what is allowed.",
        "GuaranteeError": "Choose parts that can give the guarantee together, or a weaker guarantee; see "
        "[Guarantees](../guarantees.md).",
        "HandlerError": "Change the handler as the message says: its parameters, its kind, where it stands.",
        "UrlError": "Write the URL as one of those in [Concepts](../concepts.md#urls-choose-the-backend).",
        "SchemaMismatchError": "Rename, add or cast the columns that the message lists.",
        "JavaMissingError": "Install Java 17 or newer, or set `JAVA_HOME` to one that is there.",
        "ConnectorMissingError": "Run `penstock spark jars` once.",
        "FilterError": "Correct the filter at the position that the message shows.",
    },
    "Reaching the stream": {
        "BrokerUnavailableError": "See that the broker runs and the address is right; for `log:` URLs the message has "
        "what the broker last said. Trying again may help.",
        "ConnectionClosedError": "Use the connection inside its `with` block, or connect again.",
        "ClosedError": "Do not use it after `close`, or open another.",
        "DataFolderInUseError": "Connect to the broker that owns the folder, with the `log:` URL, instead of opening "
        "it a second time.",
        "StreamError": "The message has the broker's own reason.",
        "UnknownTopicError": "Create the topic, or correct its name: `penstock topics` lists what is there.",
        "TopicExistsError": "Use the one that is there, or another name.",
        "InvalidTopicError": "Use letters, digits, `.`, `_` and `-`, at most 249 of them.",
        "AliasChangedError": "Look again at what the name leads to, `penstock pipelines`, then switch.",
        "GroupError": "Stop the members of the group before it is changed, or correct its name.",
        "StaleDeliveryError": "Settle sooner, or give the queue a longer visibility timeout: the record was handed out "
        "again.",
    },
    "Sending": {
        "DeliveryError": "If `retriable`, send again; else the record can never be stored as it is, and the message "
        "says why.",
        "BufferFullError": "Send more slowly, make the buffer larger, or say with `when_full` what may be dropped.",
        "SpoolInUseError": "Stop the other producer, or give this one a spool of its own.",
        "SpoolError": "Keep the folder for a look, and start with a new one; the message names the file.",
        "RecordTooLargeError": "Make the record smaller, or raise the topic's `max.message.bytes`.",
        "InvalidTimestampError": "Correct the clock of whoever sends, or the topic's "
        "`message.timestamp.before.max.ms` and `.after.max.ms`.",
        "InvalidRecordError": "Give records of a compacted topic a key; the message says what else is not allowed.",
        "OutOfOrderSequenceError": "Start the producer again: a batch was lost between it and the broker.",
        "InvalidProducerEpochError": "Let the older producer end: a newer one of the same id has taken over.",
        "InvalidTransactionStateError": "Begin a transaction before sending in it, and end it once.",
        "TransactionCoordinatorFencedError": "Nothing: the newer coordinator goes on with the transaction.",
        "TransactionError": "Leave the ending of the transaction to its `with` block.",
        "TransactionAbortedError": "Do it again: nothing of it counts.",
    },
    "Values": {
        "SerdeError": "Sending: give a value of the topic's type. Reading: the record is with the dead letters; mend "
        "the type or the sender, then redrive.",
        "RegistryError": "Do as the registry's own message says.",
        "RegistryUnavailableError": "See that the registry runs. No record is at fault; trying again may help.",
        "IncompatibleSchemaError": "Give new fields a default, or use another subject.",
    },
    "Handling": {
        "Reject": "Your handler raised it: look at the dead letter, and redrive or discard it.",
        "WorkerDiedError": "Look at what the record made the process die of; it is with the dead letters after five "
        "deaths.",
        "CircuitOpenError": "Mend what the handler depends on; handling goes on by itself when one record succeeds.",
        "OffsetOutOfRangeError": "Choose a position inside the range that the message names, or `on_expired`. For a "
        "group: retention was quicker than the reader.",
        "RecordsExpiredError": "Say with `on_expired` where to go on, and raise `retention.ms` or `retention.bytes`.",
        "FencedError": "Nothing, when a rebalance took the partition: the new owner goes on. Else see who uses the "
        "same name.",
        "RedriveRunningError": "Wait until the other redrive has ended, or stop it where it was started.",
    },
    "Checkpoints": {
        "StoreUnavailableError": "See that the store can be reached and has room. Trying again may help; records wait.",
        "OutcomeUnknownError": "Claim the lease again and load the checkpoint before doing anything again; `App` does.",
        "CorruptCheckpointError": "Restore the store from a copy, or forget the group and choose where it starts.",
    },
    "Pipelines": {
        "PipelineError": "The message names the query, the reason and what to do.",
        "CheckpointMismatchError": "Undo the change, or process everything again beside it: "
        "[Processing again](../spark/reprocessing.md).",
        "PipelineRunningError": "Stop the other run, or give this one a name or a checkpoint folder of its own.",
        "TopicReplacedError": "Give the pipeline a new name, so that it begins anew with the topic as it is now.",
    },
    "Storage": {
        "StorageError": "Make room, or replace the disk. After a failed sync, restart the broker on a healthy one.",
        "CorruptBatchError": "Send the batch again; when it was read from a file, see below.",
        "CorruptSegmentError": "Restore the file from a copy, or go on reading behind the damage.",
    },
    "The console and alerts": {
        "ReadOnlyError": "Start the console without `--read-only` where changes are wanted.",
        "AuditError": "Make room where the audit log is kept, or give it another place: nothing is changed unseen.",
        "NotifyError": "Correct the address or the credentials of the notifier; the message has the answer.",
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
        raise TypeError(f"tools/docs_errors.py says nothing about what to do about {', '.join(missing)}")
    if gone := sorted(advised - known.keys()):
        raise TypeError(f"tools/docs_errors.py gives advice about errors that are gone: {', '.join(gone)}")
    return "\n\n".join(
        f"## {title}\n\n"
        + markdown_table(
            ("error", "what it means", "what to do"),
            [(_named(known[name]), _meaning(known[name]), advice) for name, advice in family.items()],
        )
        for title, family in FAMILIES.items()
    )


def classes() -> dict[str, type[Exception]]:
    """Every error there is, by its name."""
    return {
        name: each
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, errors.PenstockError)
    }


def _named(error: type[Exception]) -> str:
    """With its own root, where that is one that people catch: `except ConfigError` catches both."""
    (parent,) = error.__bases__
    shown = f'<a id="{error.__name__.lower()}"></a>`{error.__name__}`'
    return shown if parent.__name__ in ROOTS else f"{shown}, a `{parent.__name__}`"


def _meaning(error: type[Exception]) -> str:
    if not error.__doc__:
        raise TypeError(f"{error.__name__} has no docstring, which a reader needs")
    return " ".join(error.__doc__.split())
