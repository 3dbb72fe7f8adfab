"""How a consumer behaves: every option with its default and what it trades."""

from __future__ import annotations

import datetime
import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, TypeVar

from penstock.consuming.breaker import Breaker
from penstock.consuming.retry import Retry
from penstock.errors import ConfigError, GuaranteeError
from penstock.model import Guarantee, Order, Position, Record

IdOf = Callable[[Record], str | None]
"""The idempotency key of a record; None for a record that has none."""

Rebalanced = Callable[[Sequence[int]], object]
"""Hears of partitions, by their numbers. What it raises stops the consumer."""

ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative")
DEFAULT_RETRY: Final = Retry()
DEFAULT_BREAKER: Final = Breaker()
_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """What a consumer takes beside its handler."""

    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    """at-most-once, at-least-once or exactly-once. Each step costs: see the page on guarantees."""
    order: Order = Order.PARTITION
    """What must not overtake what: records of one partition, records of one key, or none. Less order lets more workers
    work at once, and lets others pass a record that is slow or fails."""
    workers: int = 1
    """How many records are handled at a time: threads, or tasks where the handler is `async def`. With order
    "partition", more than there are partitions have nothing to do."""
    processes: bool = False
    """Handle in processes instead of threads: for work that keeps the processor busy. Values cross between processes,
    so the handler takes no Context."""
    retry: Retry = DEFAULT_RETRY
    """How often, and after which waits, a record that failed is tried again. Longer waits hold up whatever may not
    overtake it."""
    breaker: Breaker = DEFAULT_BREAKER
    """When to stop handling instead of giving record after record up. Later means more dead letters of good records."""
    start: Position = Position.EARLIEST
    """Where a group begins that has no checkpoint. One that has goes on where it was, whatever this says."""
    end: Position | None = None
    """Where to stop, for runs that end by themselves; it is looked up when a partition is begun. None: go on with what
    comes."""
    on_expired: Position | None = None
    """Where to go on when records were deleted before they were read. None, or "fail": stop with an error, as data was
    lost."""
    commit_interval_s: float = 0.5
    """How often finished records are saved, in seconds, at least; what finished since is repeated after a crash. Less
    costs more writes."""
    in_flight: int = 20_000
    """Records that are read and not finished, in all partitions together. More is more memory, and less waiting for the
    stream."""
    in_flight_bytes: int = 64 * 1024 * 1024
    """The same in bytes of their values, as estimated from those that came."""
    partition_in_flight: int = 10_000
    """The same for one partition, where there are several. One that is stuck is paused there, so that it does not take
    the room of the others."""
    chunk: int = 500
    """Records of a lane that a worker takes at once, where order allows. It gives back what it has not begun after a
    tenth of a second, so slow handlers need no other value; fewer means more overhead for quick ones."""
    drain_s: float = 30.0
    """How long a consumer that stops waits for handlers to finish, in seconds. What is not finished is handled again by
    who comes next."""
    revoke_s: float = 10.0
    """The same for partitions that go to another member of the group, who waits meanwhile."""
    visibility_s: float | None = None
    """With order "none": a record whose handler takes longer, in seconds, is given to another worker. None: never. Too
    short, and slow records are handled twice."""
    shared: bool = False
    """With order "none": the members of the group divide the records one by one, as those of a queue do, instead of the
    partitions. More members than partitions can work; each settles its records in the store, which costs more."""
    tree_timeout_s: float = 60.0
    """A record whose tasks have not all ended after so many seconds is tried again."""
    idempotency_key: IdOf | None = None
    """Records of one key are handled once, within the window: "key", "header:NAME", or a function of the record. Costs
    a look into the store for each batch."""
    idempotency_window_s: float = 24 * 3600.0
    """How long, in seconds, an idempotency key is remembered. Longer finds later duplicates, and takes more room."""
    assignor: str = "cooperative"
    """How a Kafka group shares partitions out: range, roundrobin, sticky or cooperative. All members need the same.
    Groups by lease are always balanced and cooperative."""
    session_timeout_s: float = 10.0
    """A member of the group that is not heard of for so many seconds is taken for dead. Shorter is a quicker takeover,
    and more false alarms."""
    on_assigned: Rebalanced | None = None
    """Called with the partitions that this member gets, before any of their records is handled."""
    on_revoked: Rebalanced | None = None
    """Called with partitions that go to others, when what was in hand is finished and saved."""
    on_lost: Rebalanced | None = None
    """Called with partitions that others may have had for a while: nothing of them could be saved."""
    seed: int | None = None
    """For the jitter of retries, so that a test can repeat it. None: by chance."""

    def __post_init__(self) -> None:
        for name in ("workers", "in_flight", "in_flight_bytes", "partition_in_flight", "chunk"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} is no number of 1 or more")
        for name in (
            "commit_interval_s",
            "drain_s",
            "revoke_s",
            "session_timeout_s",
            "idempotency_window_s",
            "tree_timeout_s",
            "visibility_s",
        ):
            self._check_time(name)
        for name, kind in (("retry", Retry), ("breaker", Breaker), ("processes", bool), ("shared", bool)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigError(f"{name}={value!r} is no {kind.__name__}")
        if self.visibility_s is not None and self.order is not Order.NONE:
            raise ConfigError(
                f"visibility_s needs order='none': with order={str(self.order)!r} nobody else may have the record"
            )
        if self.assignor not in ASSIGNORS:
            raise ConfigError(f"assignor {self.assignor!r} is not one of {', '.join(ASSIGNORS)}")
        if self.guarantee is Guarantee.AT_MOST_ONCE and self.idempotency_key is not None:
            raise GuaranteeError("an idempotency key says nothing with at-most-once: nothing is tried again")

    def _check_time(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name == "visibility_s":
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"{name}={value!r} is no time in seconds")
        if value == 0 and name in ("session_timeout_s", "visibility_s", "tree_timeout_s"):
            raise ConfigError(f"{name}={value!r} is no time in seconds: it must be above 0")


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
        f'{name}={value!r} is no position: use "earliest", "latest", a datetime with a zone, Position.at_time(...) or '
        "Position.at_pointer(...)"
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
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"there is no option {unknown[0]!r}{hint}; there are {', '.join(known)}")
    options = dict(given)
    for name, kind in (("guarantee", Guarantee), ("order", Order)):
        if name in options:
            options[name] = choice(kind, options[name], name)
    policy = retry_of(retry)
    if policy is not None:
        options["retry"] = policy
    if options.get("on_expired") == "fail":
        options["on_expired"] = None
    for name in ("start", "end", "on_expired"):
        if name in options and (options[name] is not None or name == "start"):
            options[name] = position(options[name], name)
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
