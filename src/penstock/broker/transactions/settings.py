"""Settings of transactions. Names, defaults and meaning are Kafka's, with underscores for dots."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.log.configs.setting import whole_number


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    # A dead producer hides everything after its open transaction from `read_committed` readers for this long.
    transaction_max_timeout_ms: int = whole_number(
        "transaction.max.timeout.ms", 900_000, "the longest transaction timeout that a producer may ask for"
    )
    # A forgotten id may be used again, but earlier instances of its producer are then no longer fenced.
    transactional_id_expiration_ms: int = whole_number(
        "transactional.id.expiration.ms",
        604_800_000,
        "how long a transactional id without an open transaction is remembered after its last use",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = whole_number(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        10_000,
        "how often to look for transactions past their timeout, and abort them",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = whole_number(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3_600_000,
        "how often to look for expired transactional ids, and remove them",
    )
