"""Holding a topic of letters: signs of life among its records, of which the log says whose count.

Whoever redrives puts a sign into the topic, and another one every few seconds. A stream knows nothing of processes, and
the clocks of machines differ, so that somebody has died is seen by watching: when no sign has come for long enough, by
the watcher's own clock, another may put a sign that says from which one it takes over. It counts if that is still the
last one. Everybody who reads the topic comes to the same answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.consuming.dead_letters.holding import DEAD_AFTER_S, running_error
from penstock.consuming.dead_letters.stream_encoding import HEADERS, KIND
from penstock.errors import PenstockError
from penstock.model import NewRecord, Record

logger = logging.getLogger(__name__)

KEY: Final = b"penstock-redrive"
"""The key of all signs; no letter has it for an id."""
HOLD: Final = "hold"
SIGN_EVERY_S: Final = DEAD_AFTER_S / 4


class Sign(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record that says who redrives."""

    token: str
    """One redrive, and no other."""
    holder: str
    since_ms: int
    number: int = 0
    """Grows from sign to sign."""
    is_last: bool = False
    """It has let go."""
    instead_of: tuple[str, int] | None = None
    """The token and the number of the sign that it takes over from."""

    @property
    def name(self) -> tuple[str, int]:
        return self.token, self.number


def sign_record(sign: Sign, topic: str, partition: int | None) -> NewRecord:
    headers = ((KIND, HOLD.encode()), (HEADERS, b"0"))
    return NewRecord(topic, msgspec.json.encode(sign), KEY, headers, partition=partition)


def sign_of(record: Record) -> Sign | None:
    """The sign that a record is; None for all other records."""
    if record.key != KEY or record.value is None or (KIND, HOLD.encode()) not in record.headers:
        return None
    try:
        return msgspec.json.decode(record.value, type=Sign)
    except msgspec.MsgspecError as error:
        logger.warning("%s is no sign of a redrive: %s", record.place, error)
        return None


class Holds:
    """Who holds a topic, as far as it has been read."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._read_s = 0.0
        self.last: Sign | None = None
        """The last sign of who holds it; None: nobody does."""

    def apply(self, sign: Sign) -> None:
        last = self.last
        if last is not None and sign.token != last.token and sign.instead_of != last.name:
            return  # who put it was too late
        self.last = None if sign.is_last else sign
        self._read_s = self._monotonic_s()

    @property
    def silent_s(self) -> float:
        """For how long its last sign has been known here."""
        return self._monotonic_s() - self._read_s


class StreamHold:
    """A topic that is held, by a thread that puts signs. `put` appends one, and `last` tells the last that counts."""

    def __init__(self, topic: str, sign: Sign, put: Callable[[Sign], object], last: Callable[[], Sign | None]) -> None:
        self._topic = topic
        self._sign = sign
        self._put = put
        self._last = last
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"redrive-hold-{topic}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        last = self._last()
        if last is not None and last.token != self._sign.token:
            raise running_error(f"topic {self._topic!r}", last.holder, last.since_ms)

    def release(self) -> None:
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._thread.join()
        self._try_to_put(msgspec.structs.replace(self._sign, number=self._sign.number + 1, is_last=True))

    def _run(self) -> None:
        while not self._is_over.wait(SIGN_EVERY_S):
            self._sign = msgspec.structs.replace(self._sign, number=self._sign.number + 1, instead_of=None)
            self._try_to_put(self._sign)

    def _try_to_put(self, sign: Sign) -> None:
        """Who cannot put a sign cannot redrive, either, which tells why; and is taken to be dead after a while."""
        try:
            self._put(sign)
        except PenstockError as error:
            logger.warning("that topic %r is being redriven could not be written down there: %s", self._topic, error)
