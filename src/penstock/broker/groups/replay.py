"""Reading `__consumer_offsets` from its beginning: what the coordinator knew when the broker stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from penstock.broker.contracts import StoredBatch
from penstock.broker.groups.fields import DamagedRecordError
from penstock.broker.groups.offsets import OffsetStore
from penstock.broker.groups.records import (
    GroupKey,
    OffsetKey,
    StoredGroup,
    UnknownKey,
    read_group_value,
    read_key,
    read_offset_value,
)

logger = logging.getLogger(__name__)


def replay(
    batches: Iterable[StoredBatch], offsets: OffsetStore, partition_of: Callable[[str], int]
) -> dict[str, StoredGroup]:
    """Fill `offsets` and return the groups that the topic holds.

    A record that is damaged, or of a kind that this broker does not know, is reported with its place and passed over:
    what it would have changed stays as it was before, which for an offset means that records are read again.
    """
    groups: dict[str, StoredGroup] = {}
    keys: dict[bytes, OffsetKey | GroupKey | UnknownKey] = {}
    for batch in batches:
        if batch.control is not None:
            here = batch.partition
            concerned = {
                group for group in offsets.groups_in_transaction(batch.producer_id) if partition_of(group) == here
            }
            offsets.end_transaction(batch.producer_id, commit=batch.control == "commit", groups=concerned)
            continue
        for position, (key, value) in enumerate(batch.records):
            try:
                what = keys.get(key) or keys.setdefault(key, read_key(key))
                _apply(batch, what, value, offsets, groups)
            except DamagedRecordError as error:
                logger.warning(
                    "Skipped record %d of the batch at offset %d in partition %d of the group topic: it is damaged: %s",
                    position,
                    batch.base_offset,
                    batch.partition,
                    error,
                )
    return groups


def _apply(
    batch: StoredBatch,
    what: OffsetKey | GroupKey | UnknownKey,
    value: bytes | None,
    offsets: OffsetStore,
    groups: dict[str, StoredGroup],
) -> None:
    match what:
        case OffsetKey(group, topic, partition):
            if value is None:
                offsets.remove(group, (topic, partition))
            elif batch.transactional:
                offsets.commit_pending(batch.producer_id, group, (topic, partition), read_offset_value(value))
            else:
                offsets.commit(group, (topic, partition), read_offset_value(value))
        case GroupKey(group):
            if value is None:
                groups.pop(group, None)
            else:
                groups[group] = read_group_value(value)
        case UnknownKey(version):
            logger.warning(
                "Skipped a record in the batch at offset %d in partition %d of the group topic: it is of kind %d (%s)",
                batch.base_offset,
                batch.partition,
                version,
                what.name,
            )
