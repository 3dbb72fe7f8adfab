"""How a consumer behaves: every option with its default and what it trades."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, TypeVar

from penstock.consuming.breaker import Breaker
from penstock.consuming.retry import Retry
from penstock.errors import ConfigError, GuaranteeError
from penstock.model import Guarantee, Order, Position, Record

IdOf = Callable[[Record], str | None]
"""The idempotency key of a record; None for a record that has none."""

ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative")
DEFAULT_RETRY: Final = Retry()
DEFAULT_BREAKER: Final = Breaker()
_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """What a consumer takes beside its handler."""

    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    order: Order = Order.PARTITION
    workers: int = 1
    """How many records are handled at a time: threads, or tasks where the handler is `async def`."""
    processes: bool = False
    """Handle in processes instead of threads, for work that keeps the processor busy."""
    retry: Retry = DEFAULT_RETRY
    breaker: Breaker = DEFAULT_BREAKER
    start: Position = Position.EARLIEST
    """Where a group begins that has no checkpoint."""
    end: Position | None = None
    """Where to stop; None goes on with what comes."""
    on_expired: Position | None = None
    """Where to go on when records were deleted before they were read. None: stop with an error, as data was lost."""
    commit_interval_s: float = 0.5
    """How often finished records are saved, at least; what finished since is repeated after a crash."""
    in_flight: int = 20_000
    """Records that are read and not finished, in all partitions together."""
    in_flight_bytes: int = 64 * 1024 * 1024
    partition_in_flight: int = 10_000
    """The same for one partition. One that is stuck is paused there, so that it does not take the room of others."""
    chunk: int = 500
    """Records of a lane that a worker takes at once, where order allows."""
    drain_s: float = 30.0
    """How long a consumer that stops waits for handlers to finish."""
    revoke_s: float = 10.0
    """The same for partitions that go to another member of the group."""
    visibility_s: float | None = None
    """With order "none": a record whose handler takes longer is given to another worker."""
    tree_timeout_s: float = 60.0
    """A record whose tasks have not all ended after so long is tried again."""
    idempotency_key: IdOf | None = None
    """Records of one key are handled once, within the window."""
    idempotency_window_s: float = 24 * 3600.0
    assignor: str = "cooperative"
    session_timeout_s: float = 10.0
    """A member of the group that is not heard of for so long is taken for dead."""
    seed: int | None = None
    """For the jitter of retries."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("in_flight", 1), ("in_flight_bytes", 1), ("chunk", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"{name}={value!r} is no number of {least} or more")
        for name in (
            "commit_interval_s",
            "drain_s",
            "revoke_s",
            "session_timeout_s",
            "idempotency_window_s",
            "tree_timeout_s",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ConfigError(f"{name}={value!r} is no time in seconds")
        if self.visibility_s is not None and self.order is not Order.NONE:
            raise ConfigError(
                f"visibility_s needs order='none': with order={str(self.order)!r} nobody else may have the record"
            )
        if self.visibility_s is not None and self.visibility_s <= 0:
            raise ConfigError(f"visibility_s={self.visibility_s!r} is no time in seconds")
        if self.assignor not in ASSIGNORS:
            raise ConfigError(f"assignor {self.assignor!r} is not one of {', '.join(ASSIGNORS)}")
        if self.guarantee is Guarantee.AT_MOST_ONCE and self.idempotency_key is not None:
            raise GuaranteeError("an idempotency key says nothing with at-most-once: nothing is tried again")


def choice(kind: type[_Choice], value: object, name: str) -> _Choice:
    """One of an enumeration's values, as users write it."""
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        allowed = ", ".join(repr(str(member)) for member in kind)
        raise ConfigError(f"{name}={value!r} is not one of {allowed}") from None


def position(value: object, name: str) -> Position:
    """A position as users write it: "earliest", "latest", a datetime, or a Position."""
    if isinstance(value, Position):
        return value
    if isinstance(value, datetime.datetime):
        return Position.at_time(value)
    if value == "earliest":
        return Position.EARLIEST
    if value == "latest":
        return Position.LATEST
    raise ConfigError(
        f'{name}={value!r} is no position: use "earliest", "latest", a datetime with a zone, or a Position'
    )


def idempotency_key(value: Any) -> IdOf | None:
    """An idempotency key as users write it: "key", "header:NAME", or a function of the record."""
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    if value == "key":
        return lambda record: None if record.key is None else record.key.hex()
    if isinstance(value, str) and value.startswith("header:"):
        wanted = value.removeprefix("header:")

        def from_header(record: Record) -> str | None:
            for name, data in record.headers:
                if name == wanted and data is not None:
                    return data.decode(errors="backslashreplace")
            return None

        return from_header
    raise ConfigError(f'idempotency_key={value!r}: use "key", "header:NAME", or a function of the record')


def options_from(*, retry: Retry | int | None = None, **given: Any) -> ConsumerOptions:
    """The options as users write them, checked. ConfigError names the one that is wrong, and what it may be."""
    known = sorted(field.name for field in fields(ConsumerOptions))
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(f"there is no option {unknown[0]!r}; there are {', '.join(known)}")
    options = dict(given)
    for name, kind in (("guarantee", Guarantee), ("order", Order)):
        if name in options:
            options[name] = choice(kind, options[name], name)
    policy = retry_of(retry)
    if policy is not None:
        options["retry"] = policy
    for name in ("start", "end", "on_expired"):
        if options.get(name) is not None:
            options[name] = None if options[name] == "fail" and name == "on_expired" else position(options[name], name)
    if "idempotency_key" in options:
        options["idempotency_key"] = idempotency_key(options["idempotency_key"])
    return ConsumerOptions(**options)


def retry_of(given: Retry | int | None) -> Retry | None:
    """A policy as users write it: a Retry, or a number of attempts."""
    if given is None or isinstance(given, Retry):
        return given
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"retry={given!r}: use Retry(5), or a number of attempts")
    return Retry(given)
