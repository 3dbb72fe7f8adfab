"""Asking consumers how they stand, without making whoever scrapes wait for a broker that is away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Final, Protocol

from penstock.consuming.health import Health

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 1.0
"""How long a scrape waits for all answers together. Then it takes what was last known."""
_KNOWN_FOR_S: Final = 60.0
"""How long an answer may be told as true."""


class Asked(Protocol):
    """A consumer."""

    def health(self) -> Health: ...


class _Question:
    """What one consumer was asked, and what it last said."""

    def __init__(self, consumer: Asked) -> None:
        self.consumer = consumer
        self.answered = threading.Event()
        self.answered.set()
        self.health: Health | None = None
        self.at_s = 0.0
        self._told = ""

    def ask(self) -> None:
        if self.answered.is_set():  # else it is being asked still
            self.answered.clear()
            threading.Thread(target=self._ask, name="penstock-metrics-health", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.health = self.consumer.health()
            self.at_s = time.monotonic()
            self._told = ""
        except Exception as error:
            if self._told != str(error):
                self._told = str(error)
                logger.warning("a consumer could not say how it stands: %s", error)
        finally:
            self.answered.set()


class Asking:
    """Asks each consumer in a thread of its own, and remembers what it said."""

    def __init__(self) -> None:
        self._questions: dict[Asked, _Question] = {}
        self._lock = threading.Lock()

    def ask(self, consumers: Iterable[Asked], patience_s: float = PATIENCE_S) -> list[Health | None]:
        """How each stands, in their order; None where nobody knows."""
        with self._lock:
            known = self._questions
            asked = [known[each] if each in known else _Question(each) for each in consumers]
            self._questions = {question.consumer: question for question in asked}
        for question in asked:
            question.ask()
        until_s = time.monotonic() + patience_s
        for question in asked:
            question.answered.wait(max(0.0, until_s - time.monotonic()))
        now_s = time.monotonic()
        return [each.health if now_s - each.at_s < _KNOWN_FOR_S else None for each in asked]
