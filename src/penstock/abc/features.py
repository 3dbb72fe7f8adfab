"""What a backend may or may not be able to do."""

from __future__ import annotations

from enum import StrEnum


class Feature(StrEnum):
    """What a backend may or may not be able to do. The text completes "... cannot do this: it has no ..."."""

    PARTITIONS = "more than one partition"
    CHOSEN_PARTITION = "way to choose the partition of a record"
    OFFSETS = "offsets that count records"
    """Pointers are offsets: they fit into 64 bits, and consecutive records of a partition have consecutive pointers,
    except for gaps where records were removed. So two pointers tell about how many records lie between them."""
    KEYS = "keys"
    HEADERS = "headers"
    TIMES = "positions at a time"
    IDEMPOTENCE = "protection against a record being stored twice"
    GROUPS = "groups of its own"
    TRANSACTIONS = "transactions"
    ADMIN = "administration of topics and groups"
    DURABLE = "memory beyond the process"
    """What was acknowledged is there after every client was killed."""
    LEASES = "leases that several processes can compete for"
    STATE = "place for keyed state"
    HISTORY = "history"
    DEDUPLICATION = "memory of idempotency keys"
    REDELIVERY = "redelivery"
    DELAYED_REDELIVERY = "delayed redelivery"
    DELIVERY_COUNT = "count of deliveries"
    """For a queue: `Delivery.attempt` counts every delivery that was not released."""
    DEAD_LETTERS = "dead letters of its own"
    """For a queue: it keeps records that are settled with REJECT."""
    ANSWERS = "answers to its senders"
    """For a channel: it has `Acknowledging`, and `send` returns when the receiver has taken the records."""
    LOSS_COUNT = "count of lost records"
    """For a channel: it has `CountingLosses`. A channel without it and without ANSWERS is best effort."""


Features = frozenset[Feature]
