"""Whether a program that has ended is started again, after which delay, and when it is hopeless."""

from __future__ import annotations

import enum
import random
import re
import signal
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import (
    BrokerUnavailableError,
    CheckpointMismatchError,
    ConfigError,
    ConnectorMissingError,
    DataFolderInUseError,
    HandlerError,
    IncompatibleSchemaError,
    JavaMissingError,
    MissingExtraError,
    PipelineRunningError,
    RegistryUnavailableError,
    SourceUnavailableError,
    StoreUnavailableError,
    TopicReplacedError,
    UrlError,
)
from penstock.model.retry import Retry
from penstock.model.text import count_text

INCURABLE: Final[tuple[type[BaseException], ...]] = (
    ConfigError,
    UrlError,
    MissingExtraError,
    HandlerError,
    JavaMissingError,
    ConnectorMissingError,
    CheckpointMismatchError,
    IncompatibleSchemaError,
    TopicReplacedError,
    SyntaxError,
    ImportError,
)
"""Errors that a restart cannot cure: somebody must change the program, its settings or the machine."""
UNAVAILABLE: Final[tuple[type[BaseException], ...]] = (
    BrokerUnavailableError,
    StoreUnavailableError,
    SourceUnavailableError,
    RegistryUnavailableError,
    PipelineRunningError,
    DataFolderInUseError,
    ConnectionError,
)
"""Errors of what the program needs, not of the program: it is started again for as long as they last."""
INCURABLE_CODES: Final = {2: "wrong usage", 78: "a configuration error", 126: "it cannot be run", 127: "not found"}
"""Exit codes that a restart cannot cure: 78 is EX_CONFIG of sysexits.h."""


class Cause(enum.StrEnum):
    """What kind of error ended a program."""

    INCURABLE = "incurable"
    UNAVAILABLE = "unavailable"
    OTHER = "other"


def cause_of(error: BaseException) -> Cause:
    """The kind of an error, by its class."""
    if isinstance(error, BrokerUnavailableError) and not error.retriable:
        return Cause.INCURABLE
    if isinstance(error, UNAVAILABLE):
        return Cause.UNAVAILABLE
    return Cause.INCURABLE if isinstance(error, INCURABLE) else Cause.OTHER


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When a program is started again."""

    backoff: Retry = field(default_factory=lambda: Retry(None, first_delay_s=1.0, max_delay_s=60.0))
    """The delays between a death and the next start; they begin again after progress."""
    give_up_after: int = 10
    """Give up after this many deaths in a row without progress. An app needs six starts until a record that kills its
    process each time is with the dead letters."""
    same_error: int = 3
    """Give up after the same error this often in a row, each time before the program was ready."""
    steady_s: float = 300.0
    """A program that ran for this long is not in a loop, even if there was nothing for it to do."""
    at_once_s: float = 10.0
    """A program that made progress and ran for this long is started again without a delay."""

    def __post_init__(self) -> None:
        for name in ("give_up_after", "same_error"):
            if getattr(self, name) < 1:
                raise ConfigError(f"RestartPolicy({name}={getattr(self, name)!r}): must be an integer >= 1")


@dataclass(frozen=True, slots=True)
class Ending:
    """How one run of a program ended."""

    code: int
    """The exit code; negative: the signal that killed it."""
    error: str | None
    """What it reported, or its last line."""
    cause: Cause
    has_progressed: bool
    """Whether it has finished records or batches."""
    ran_s: float
    was_ready: bool = False
    """Whether it had reported that nothing keeps it from working."""

    @property
    def is_good(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        how = f"exit code {self.code}" if self.code >= 0 else f"killed by {signal_name(-self.code)}"
        return f"{how}: {self.error}" if self.error and not self.is_good else how


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with a program that has died."""

    delay_s: float | None
    """Start it again after this delay; None: give up."""
    why: str
    """Why it is given up; empty if it is not."""


class Attempts:
    """Decides after each death of one program."""

    def __init__(self, policy: RestartPolicy, chance: random.Random) -> None:
        self._policy = policy
        self._chance = chance
        self._in_row = 0
        self._fruitless = 0
        self._same = 0
        self._last: str | None = None

    def after(self, ending: Ending) -> Decision:
        """What to do after this ending, which was not a good one."""
        policy = self._policy
        if ending.cause is Cause.INCURABLE or ending.code in INCURABLE_CODES:
            what = INCURABLE_CODES.get(ending.code, "a configuration error")
            return Decision(None, f"{what}, which a restart cannot cure")
        is_fresh = ending.has_progressed or ending.ran_s >= policy.steady_s
        self._in_row = 1 if is_fresh else self._in_row + 1
        if ending.cause is Cause.UNAVAILABLE:
            return Decision(policy.backoff.backoff_s(self._in_row, self._chance), "")
        self._fruitless = 0 if is_fresh else self._fruitless + 1
        is_early = not is_fresh and not ending.was_ready and ending.code > 0 and ending.error is not None
        error = _without_numbers(ending.error or "")
        self._same = (self._same + 1 if error == self._last else 1) if is_early else 0
        self._last = error if is_early else None
        if self._same >= policy.same_error:
            return Decision(None, f"the same error {self._same} times in a row, before it was ready")
        if not is_fresh and self._fruitless >= policy.give_up_after:
            return Decision(None, f"{count_text(self._fruitless, 'death')} in a row without progress")
        if ending.has_progressed and ending.ran_s >= policy.at_once_s:
            return Decision(0.0, "")
        return Decision(policy.backoff.backoff_s(self._in_row, self._chance), "")


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _without_numbers(text: str) -> str:
    """The error without the parts that differ each time: ports, offsets, process ids, addresses of objects."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)
