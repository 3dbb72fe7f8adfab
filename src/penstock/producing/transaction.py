"""A transaction of a producer: what is sent inside is delivered together, or not at all."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.errors import ConfigError, DeliveryError
from penstock.model import NewRecord, Receipt


@dataclass(slots=True)
class Staged:
    """What was sent in a transaction that is still open. It is in no buffer yet."""

    records: list[NewRecord] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)


class OpenTransactions:
    """The open transaction of each thread and task, of one producer."""

    def __init__(self) -> None:
        self.count = 0
        """How many are open, in all threads."""
        self._lock = threading.Lock()
        self._current: contextvars.ContextVar[Staged | None] = contextvars.ContextVar("transaction", default=None)

    @property
    def current(self) -> Staged | None:
        return self._current.get()

    @contextmanager
    def open(self) -> Iterator[Staged]:
        if self._current.get() is not None:
            raise ConfigError("a transaction is open already: they cannot be nested")
        staged = Staged()
        token = self._current.set(staged)
        with self._lock:
            self.count += 1
        try:
            yield staged
        except BaseException as error:
            for receipt in staged.receipts:
                if receipt.done:
                    continue
                receipt.seen = True
                receipt.settle(
                    -1,
                    -1,
                    DeliveryError(
                        f"a record for topic {receipt.topic!r} was not sent: its transaction ended with "
                        f"{type(error).__name__}: {error}"
                    ),
                )
            raise
        finally:
            self._current.reset(token)
            with self._lock:
                self.count -= 1
