"""What can be set about transactions. Names, defaults and meaning are Kafka's, with underscores for the dots."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    transaction_max_timeout_ms: int = 900_000
    """The longest `transaction.timeout.ms` that a producer may ask for, in ms (15 minutes).

    An open transaction holds back everything behind it from `read_committed` readers. More lets slow producers finish;
    less bounds how long a dead one can block readers. A producer that asks for more gets INVALID_TRANSACTION_TIMEOUT.
    """

    transactional_id_expiration_ms: int = 604_800_000
    """How long a transactional id without an open transaction is remembered after its last use, in ms (7 days).

    A forgotten id may be used again, but an instance of the producer from before is then no longer told that it was
    replaced. Less keeps `__transaction_state` small where ids are made up anew for each run.
    """

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    """How often transactions that outlived their timeout are looked for and aborted, in ms."""

    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    """How often transactional ids that have expired are looked for and removed, in ms (1 hour)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 1:
                raise ConfigError(f"{field.name.replace('_', '.')} is {value}; use a number of milliseconds from 1 up")
