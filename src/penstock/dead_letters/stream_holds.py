"""Hold a topic of letters by signs of life among its records; the log decides which of them count.

A redrive puts a sign into the topic, and another one every few seconds. A stream knows nothing of processes, and clocks
differ, so a death is detected by watching: when no sign has come for long enough, by the watcher's own clock, another
process may put a sign that names the one it takes over from. It counts if that is still the last one. Every reader of
the topic reaches the same answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.dead_letters.holding import DEAD_AFTER_S, running_error
from penstock.dead_letters.stream_encoding import HEADERS, KIND
from penstock.errors import PenstockError
from penstock.model import NewRecord, Record

logger = logging.getLogger(__name__)

KEY: Final = b"penstock-redrive"
"""The key of all signs; no letter has it as its id."""
HOLD: Final = "hold"
SIGN_EVERY_S: Final = DEAD_AFTER_S / 4


class Sign(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a record that says which process redrives."""

    token: str
    """Identifies one redrive."""
    holder: str
    since_ms: int
    number: int = 0
    """Grows from sign to sign."""
    is_last: bool = False
    """The hold was released."""
    instead_of: tuple[str, int] | None = None
    """The token and the number of the sign that it takes over from."""

    @property
    def name(self) -> tuple[str, int]:
        return self.token, self.number


def sign_record(sign: Sign, topic: str, partition: int | None) -> NewRecord:
    headers = ((KIND, HOLD.encode()), (HEADERS, b"0"))
    return NewRecord(topic, msgspec.json.encode(sign), KEY, headers, partition=partition)


def sign_of(record: Record) -> Sign | None:
    """The sign in a record; None for all other records."""
    if record.key != KEY or record.value is None or (KIND, HOLD.encode()) not in record.headers:
        return None
    try:
        return msgspec.json.decode(record.value, type=Sign)
    except msgspec.MsgspecError as error:
        logger.warning("%s is not a sign of a redrive: %s", record.place, error)
        return None


class Holds:
    """The holder of a topic, as far as it has been read."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._read_s = 0.0
        self.last: Sign | None = None
        """The last sign of the holder; None when the topic is not held."""

    def apply(self, sign: Sign) -> None:
        last = self.last
        if last is not None and sign.token != last.token and sign.instead_of != last.name:
            return  # its writer was too late
        self.last = None if sign.is_last else sign
        self._read_s = self._monotonic_s()

    @property
    def silent_s(self) -> float:
        """How long its last sign has been known here."""
        return self._monotonic_s() - self._read_s


class StreamHold:
    """A held topic, with a thread that puts signs. `put` appends one, and `last` returns the last that counts."""

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
        """A redrive that cannot put signs cannot send either, and fails with that error; others consider it dead."""
        try:
            self._put(sign)
        except PenstockError as error:
            logger.warning("could not write to topic %r that it is being redriven: %s", self._topic, error)
