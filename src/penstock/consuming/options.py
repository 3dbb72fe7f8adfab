"""The options of a consumer: each with its default and what it trades."""

from __future__ import annotations

import datetime
import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, Literal, TypedDict, TypeVar

from penstock.errors import ConfigError, GuaranteeError
from penstock.model import Guarantee, Ordering, Position, Record
from penstock.model.circuit_breaker import CircuitBreaker
from penstock.model.retry import Retry

IdOf = Callable[[Record], str | None]
"""Returns the idempotency key of a record; None for a record without one."""

Rebalanced = Callable[[Sequence[int]], object]
"""Called with the numbers of partitions. An error it raises stops the consumer."""

OrderChoice = Literal["partition", "key", "none"] | Ordering
GuaranteeChoice = Literal["at-most-once", "at-least-once", "exactly-once"] | Guarantee
PositionChoice = Literal["earliest", "latest"] | datetime.datetime | Position

ASSIGNORS: Final = ("range", "roundrobin", "sticky", "cooperative")
DEFAULT_RETRY: Final = Retry()
DEFAULT_BREAKER: Final = CircuitBreaker()
_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options of a consumer."""

    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    """at-most-once, at-least-once or exactly-once. Stronger guarantees cost more: see the page on guarantees."""
    order: Ordering = Ordering.PARTITION
    """Which records must stay in order: those of one partition, those of one key, or none, as in every queue. Less
    order lets more workers run at once, and lets records pass one that is slow or fails."""
    workers: int = 1
    """How many records are handled at a time: threads, or tasks if the handler is `async def`. With order "partition",
    workers beyond the number of partitions are idle."""
    processes: bool = False
    """Handle records in processes instead of threads, for CPU-bound work. Values are pickled, so the handler takes no
    Context."""
    retry: Retry = DEFAULT_RETRY
    """How often, and after which delays, a failed record is retried. Longer delays hold up records that must not
    overtake it."""
    breaker: CircuitBreaker = DEFAULT_BREAKER
    """When to stop handling instead of giving up record after record. Later means more dead letters of good records."""
    start: Position = Position.EARLIEST
    """Where a group without a checkpoint starts. A group with a checkpoint continues there."""
    end: Position | None = None
    """Where to stop, for runs that end by themselves; resolved when the run starts. None: consume until stopped."""
    on_expired: Position | None = None
    """Where to continue when records were deleted before they were read. None, or "fail": stop with an error, as data
    was lost."""
    commit_interval_s: float = 0.5
    """The longest time, in seconds, between saves of finished records, or before they are settled in their queue; a
    crash repeats what finished since. Less costs more writes. 0: each record, or each list of a `batch` handler, is
    saved before the next of its lane starts, so a crash repeats at most `workers` of them. With at-most-once, records
    are saved before they are handled."""
    in_flight: int = 20_000
    """The most records read and not finished, over all partitions. More takes more memory and waits less for the
    stream. Of a queue, 2 for each worker by default: more leaves fewer to other processes."""
    in_flight_bytes: int = 64 * 1024 * 1024
    """The same in bytes of values, estimated from the records read so far."""
    partition_in_flight: int = 10_000
    """The same for one partition, if there are several. A stuck partition is paused there, so that it does not take the
    room of the others."""
    chunk: int = 500
    """How many records of a lane a worker takes at once, where order allows. After a tenth of a second it returns those
    not started, so slow handlers need no other value; fewer means more overhead for fast ones."""
    drain_s: float = 30.0
    """How long, in seconds, a stopping consumer waits for running handlers. Unfinished records are handled again by the
    next owner."""
    revoke_s: float = 10.0
    """The same for partitions that move to another member of the group, which waits meanwhile."""
    visibility_s: float | None = None
    """With order "none": a record whose handler takes longer, in seconds, is given to another worker, or returned to
    its queue. None: never. If too short, slow records are handled twice."""
    shared: bool = False
    """With order "none": the members of the group divide single records, as with a queue, instead of partitions. More
    members than partitions can work; each settles its records in the store, which costs more."""
    tree_timeout_s: float = 60.0
    """A record whose tasks have not all ended after this many seconds is retried."""
    idempotency_key: IdOf | None = None
    """Records with the same key are handled once within the window: "key", "header:NAME", or a function of the record.
    Costs a lookup in the store for each batch."""
    idempotency_window_s: float = 24 * 3600.0
    """How long, in seconds, an idempotency key is remembered. Longer finds later duplicates and takes more space."""
    assignor: str = "cooperative"
    """How a Kafka group assigns partitions: range, roundrobin, sticky or cooperative. All members need the same. Lease
    groups are always balanced and cooperative, and take no other value."""
    session_timeout_s: float = 10.0
    """A member of the group without a heartbeat for this many seconds counts as dead. Shorter means faster takeover and
    more false alarms."""
    on_assigned: Rebalanced | None = None
    """Called with newly assigned partitions, before any of their records is handled."""
    on_revoked: Rebalanced | None = None
    """Called with revoked partitions, after running handlers have finished and everything is saved."""
    on_lost: Rebalanced | None = None
    """Called with partitions that other members may have owned for a while: nothing of them could be saved."""
    seed: int | None = None
    """Seed for the jitter of retries, for repeatable tests. None: random."""

    def __post_init__(self) -> None:
        for name in ("workers", "in_flight", "in_flight_bytes", "partition_in_flight", "chunk"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}={value!r} must be an integer >= 1")
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
        for name, kind in (("retry", Retry), ("breaker", CircuitBreaker), ("processes", bool), ("shared", bool)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigError(f"{name}={value!r} must be a {kind.__name__}")
        for name in ("on_assigned", "on_revoked", "on_lost"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ConfigError(f"{name}={value!r} must be a function that takes a list of partitions")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise ConfigError(f"seed={self.seed!r} must be an integer")
        if self.visibility_s is not None and self.order is not Ordering.NONE:
            raise ConfigError(
                f"visibility_s needs order='none': with order={str(self.order)!r} no other worker may take the record"
            )
        if self.assignor not in ASSIGNORS:
            raise ConfigError(f"assignor {self.assignor!r} is not one of {', '.join(ASSIGNORS)}")
        if self.guarantee is Guarantee.AT_MOST_ONCE:
            if self.idempotency_key is not None:
                raise GuaranteeError("idempotency_key has no effect with at-most-once: nothing is retried")
            if self.retry != DEFAULT_RETRY:
                raise GuaranteeError("retry has no effect with at-most-once, which never retries: omit one of them")

    def _check_time(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name == "visibility_s":
            return
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(f"{name}={value!r} must be a number of seconds")
        if value == 0 and name in ("session_timeout_s", "visibility_s", "tree_timeout_s"):
            raise ConfigError(f"{name}={value!r} must be a positive number of seconds")


DEFAULTS: Final = ConsumerOptions()


class CommonOptions(TypedDict, total=False):
    """The keyword options of handlers and of `Consumer`. `ConsumerOptions` explains them."""

    breaker: CircuitBreaker
    start: PositionChoice
    end: PositionChoice | None
    on_expired: Literal["fail"] | PositionChoice | None
    commit_interval_s: float
    in_flight: int
    in_flight_bytes: int
    partition_in_flight: int
    revoke_s: float
    visibility_s: float | None
    idempotency_key: str | IdOf | None
    idempotency_window_s: float
    assignor: Literal["range", "roundrobin", "sticky", "cooperative"]
    session_timeout_s: float
    on_assigned: Rebalanced | None
    on_revoked: Rebalanced | None
    on_lost: Rebalanced | None
    seed: int | None


class PollOptions(CommonOptions, total=False):
    """The keyword options of `Consumer`."""

    retry: Retry | int | None


class HandlerOptions(CommonOptions, total=False):
    """The keyword options of `App.handle`, besides those in its signature."""

    processes: bool
    chunk: int
    drain_s: float
    shared: bool
    tree_timeout_s: float


def choice(kind: type[_Choice], value: object, name: str) -> _Choice:
    """A member of an enumeration, given by its value."""
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        allowed = ", ".join(repr(str(member)) for member in kind)
        raise ConfigError(f"{name}={value!r} is not one of {allowed}") from None


def position(value: object, name: str) -> Position:
    """A position given as "earliest", "latest", a datetime, or a Position."""
    if isinstance(value, Position):
        return value
    if isinstance(value, datetime.datetime):
        return Position.at_time(value)
    if value == "earliest":
        return Position.EARLIEST
    if value == "latest":
        return Position.LATEST
    raise ConfigError(
        f'{name}={value!r} is not a position: use "earliest", "latest", a datetime with a zone, Position.at_time(...) '
        "or Position.at_pointer(...)"
    )


def idempotency_key(value: Any) -> IdOf | None:
    """An idempotency key given as "key", "header:NAME", or a function of the record."""
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
    """Check and convert keyword options. ConfigError names the wrong option and what it may be."""
    known = sorted(field.name for field in fields(ConsumerOptions))
    unknown = sorted(set(given) - set(known))
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f": did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"there is no option {unknown[0]!r}{hint}; there are {', '.join(known)}")
    options = dict(given)
    for name, kind in (("guarantee", Guarantee), ("order", Ordering)):
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
    """A policy given as a Retry or a number of attempts."""
    if given is None or isinstance(given, Retry):
        return given
    if isinstance(given, bool) or not isinstance(given, int):
        raise ConfigError(f"retry={given!r}: use Retry(5), or a number of attempts")
    return Retry(given)
