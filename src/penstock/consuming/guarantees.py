"""Guarantees: how each is kept, and whether the chosen stream, store and handler can keep it."""

from __future__ import annotations

from enum import Enum
from typing import TypeGuard

from penstock.abc import CheckpointStore, Feature, Grouping, TopicStream, TransactionalStore
from penstock.consuming.handlers import Handler, HandlerArgument
from penstock.consuming.options import DEFAULTS, ConsumerOptions
from penstock.errors import ConfigError, GuaranteeError
from penstock.model import Guarantee, Ordering


class CommitMode(Enum):
    """How effects and checkpoint are committed together."""

    CHECKPOINT = "the checkpoint alone"
    SQL = "effect and checkpoint in one SQL transaction"
    STREAM = "outputs and checkpoint in one transaction of the stream"
    KEY = "an idempotency key"


def commit_mode_of(
    handler: Handler, options: ConsumerOptions, store: CheckpointStore, stream: TopicStream
) -> CommitMode:
    """How the guarantee is kept. GuaranteeError says what is missing."""
    if options.idempotency_key is not None and Feature.DEDUPLICATION not in store.features:
        raise GuaranteeError(
            f"{handler.name}: idempotency_key needs a store that remembers keys; {type(store).__name__} has no "
            f"{Feature.DEDUPLICATION}"
        )
    if options.guarantee is not Guarantee.EXACTLY_ONCE:
        return CommitMode.CHECKPOINT
    if options.processes:
        raise GuaranteeError(f"{handler.name}: exactly-once does not work with processes=True: use threads")
    if handler.to is not None:
        return _by_stream(handler, store, stream)
    if options.idempotency_key is not None:
        return CommitMode.KEY
    if isinstance(store, TransactionalStore) and Feature.TRANSACTIONS in store.features:
        if HandlerArgument.CONTEXT not in handler.wants:
            raise GuaranteeError(
                f"{handler.name}: for exactly-once its effect must be in the transaction of its checkpoint: take a "
                "Context and use `with ctx.transaction() as db`; or pass idempotency_key, or to=TOPIC"
            )
        if handler.is_async:
            raise GuaranteeError(
                f"{handler.name} is async: exactly-once in an SQL transaction needs a plain def, because the database "
                "connection belongs to one thread"
            )
        return CommitMode.SQL
    raise GuaranteeError(
        f"{handler.name}: exactly-once needs one of: checkpoints in the database of the effect "
        "(checkpoints='sqlite:./orders.db' or 'postgresql://...', and `with ctx.transaction() as db`); to=TOPIC on a "
        f"stream with transactions; or idempotency_key=... It has none: {type(store).__name__} has no "
        f"{Feature.TRANSACTIONS}, and no key is declared"
    )


def _by_stream(handler: Handler, store: CheckpointStore, stream: TopicStream) -> CommitMode:
    if Feature.TRANSACTIONS not in stream.features:
        raise GuaranteeError(
            f"{handler.name}: exactly-once from topic to topic needs transactions, and the stream of {stream.topic!r} "
            f"has no {Feature.TRANSACTIONS}"
        )
    if not hasattr(store, "begin"):
        raise GuaranteeError(
            f"{handler.name}: exactly-once from topic to topic keeps its checkpoints in the stream itself, in the "
            "transaction of the outputs: omit `checkpoints` for this handler, or pass checkpoints='kafka:'"
        )
    return CommitMode.STREAM


def check_batch(handler: Handler) -> None:
    """Raise GuaranteeError for a batch handler that is not supported."""
    if handler.is_async and handler.batch is not None:
        raise GuaranteeError(f"{handler.name} is async and takes batches, which is not supported: take one value")


def keeps_groups(stream: TopicStream) -> TypeGuard[Grouping]:
    """Whether the stream assigns the partitions of a group itself. Where it does not, leases do."""
    return Feature.GROUPS in stream.features and isinstance(stream, Grouping)


def check_effects(handler: Handler, options: ConsumerOptions, stream: TopicStream) -> None:
    """Raise ConfigError for an option that would change nothing for this handler and stream."""
    if options.assignor != DEFAULTS.assignor and not keeps_groups(stream):
        raise ConfigError(
            f"{handler.name}: assignor={options.assignor!r} has no effect: the stream of {stream.topic!r} has no "
            f"{Feature.GROUPS}, so leases assign its partitions, balanced and cooperatively. Omit assignor"
        )
    if options.chunk != DEFAULTS.chunk and handler.batch is not None:
        raise ConfigError(f"{handler.name}: chunk has no effect with batch={handler.batch}: omit one of them")


def check_snapshots(handler: Handler, options: ConsumerOptions, store: CheckpointStore, wanted: bool) -> None:
    """Raise GuaranteeError when the handler's own state cannot be saved together with the checkpoint."""
    if not wanted:
        return
    if Feature.STATE not in store.features:
        raise GuaranteeError(f"{handler.name}: snapshots need a store for state; {type(store).__name__} has none")
    if options.order is not Ordering.PARTITION or handler.is_async or options.processes:
        raise GuaranteeError(
            f"{handler.name}: snapshots need order='partition' and a plain def in threads: state that several "
            "records change at once never matches a checkpoint. Use ctx.state, which is kept by key"
        )
    if options.guarantee is not Guarantee.AT_LEAST_ONCE:
        raise GuaranteeError(f"{handler.name}: snapshots need at-least-once, which they make exact for the state")
