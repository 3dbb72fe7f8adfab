"""What all cases for channels share: two sides that find each other, records with numbers, and ports."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
import tempfile
import time
import unittest
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from penstock.abc import Acknowledging, Channel, Features
from penstock.model import NewRecord, Record
from penstock.testing.conformance.child import Child, Work
from penstock.testing.conformance.outages import RECOVERY_S, UNAVAILABLE, answers_or_raises
from penstock.testing.conformance.suite import Opener, Suite, takes_a_folder
from penstock.testing.tcp_proxy import LOOPBACK

COME_S: Final = 60.0
"""How long a record may take to arrive."""
BRIEF_S: Final = 0.3
"""How long to wait for what should not happen."""
PROBE_S: Final = 0.1
LARGE_BYTES: Final = 100_000
PROBE: Final = b"probe"


class Sender(Protocol):
    """The sending side: a channel, or a stand-in."""

    def send(self, records: Sequence[NewRecord]) -> None: ...

    def close(self) -> None: ...


class Listener(Protocol):
    """The listening side: a channel, or a stand-in."""

    def listen(self, limit: int, wait_s: float) -> Sequence[Record]: ...

    def close(self) -> None: ...


Message = Callable[[bytes, int], NewRecord]
"""Makes a record that the transport can carry, from the mark of a case and a number."""
NumberOf = Callable[[bytes, Record], int | None]
"""The number in a record that was made with this mark; None for any other record."""


def plain_message(mark: bytes, number: int) -> NewRecord:
    return NewRecord("channel", b"%b %d " % (mark, number))


def plain_number(mark: bytes, record: Record) -> int | None:
    found, number, _ = [*(record.value or b"").split(b" ", 2), b"", b""][:3]
    return int(number) if found == mark else None


def succeeds(call: Callable[..., object], *arguments: Any) -> bool:
    """Whether a call returns; False when it says that the other side is unavailable. Anything else is raised."""
    try:
        call(*arguments)
    except UNAVAILABLE:
        return False
    return True


class ChannelSuite(Suite[Any]):
    """The base of all cases for channels. Records carry a mark that distinguishes them from those of other cases."""

    sender_factory: ClassVar[Any] = None
    limited_factory: ClassVar[Any] = None
    ordered: ClassVar[bool] = True
    timestamps: ClassVar[bool] = True
    has_network: ClassVar[bool] = False
    large_bytes: ClassVar[int] = LARGE_BYTES
    too_large_bytes: ClassVar[int | None] = None
    answer_s: ClassVar[float | None] = None
    message: ClassVar[Any] = None
    number_in: ClassVar[Any] = None

    def setUp(self) -> None:
        assert self.factory is not None, "these cases need a channel: use penstock.testing.conformance.channel"
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-channel-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.opener = self._opener(self.factory)
        self.sender_opener = self._opener(self.sender_factory)
        self.mark = self.fresh_name("case").encode()
        self._probes = itertools.count()

    def _opener(self, factory: Callable[..., Any]) -> Opener[Any]:
        return Opener(factory, self.folder if takes_a_folder(factory) else None)

    @property
    def features(self) -> Features:
        """Features of the listening side, or of the sending side if a stand-in listens."""
        if self.declared is None:
            for opener in (self.opener, self.sender_opener):
                side = opener()
                side.close()
                if isinstance(side, Channel):
                    type(self).declared = side.features
                    break
        assert self.declared is not None, "neither the listening nor the sending side is a penstock.abc.Channel"
        return self.declared

    def open_listener(self, factory: Callable[..., Any] | None = None) -> Any:
        """Open the listening side. It is closed when the case ends."""
        listener = (self.opener if factory is None else self._opener(factory))()
        self.addCleanup(listener.close)
        return listener

    def open_sender(self) -> Any:
        """Open the sending side. It is closed when the case ends."""
        sender = self.sender_opener()
        self.addCleanup(sender.close)
        return sender

    def open_channel(self, opener: Opener[Any], side: str) -> Channel:
        """Open a side that is a channel; a stand-in skips the case."""
        channel = opener()
        self.addCleanup(channel.close)
        if not isinstance(channel, Channel):
            raise unittest.SkipTest(f"does not apply: the {side} is a stand-in")
        return channel

    def sending_child(self, work: Work, *arguments: Any) -> Child:
        """Another process that runs `work(sender, parent, *arguments)`."""
        return Child(self.sender_opener, work, *arguments)

    def connected(self, factory: Callable[..., Any] | None = None) -> tuple[Any, Any]:
        """Both sides, once a record has passed from one to the other."""
        listener, sender = self.open_listener(factory), self.open_sender()
        self.join(listener, sender, "a record arrives while somebody listens")
        return listener, sender

    def join(self, listener: Listener, sender: Sender, what: str, timeout_s: float | None = None) -> None:
        """Send probes until one of them arrives, and all that were sent before it."""
        deadline_s = time.monotonic() + (RECOVERY_S if timeout_s is None else timeout_s)
        last: object = "nothing came"
        arrived: set[int | None] = set()
        sent = self.in_background(self._probe, sender)
        while time.monotonic() < deadline_s:
            try:
                arrived.update(map(self.probe_number, self.take_once(listener, 100, PROBE_S)))
            except UNAVAILABLE as error:
                last = repr(error)
                time.sleep(PROBE_S)  # the other side may not be there yet
                continue
            if sent.done():
                if sent.exception() is not None:
                    last = repr(sent.exception())
                elif sent.result() in arrived:
                    self._drain_probes(listener)
                    return
                sent = self.in_background(self._probe, sender)
        raise AssertionError(f"{what}: not in time; last: {last}")

    def _probe(self, sender: Sender) -> int:
        number = next(self._probes)
        sender.send([self.made(number, PROBE + self.mark)])
        return number

    def _drain_probes(self, listener: Listener) -> None:
        while answers_or_raises(lambda: self.take_once(listener, 100, PROBE_S)):  # ends: no more probes are sent
            pass

    def made(self, number: int, mark: bytes | None = None) -> NewRecord:
        record: NewRecord = self.message(self.mark if mark is None else mark, number)
        return record

    def number_of(self, record: Record) -> int | None:
        number: int | None = self.number_in(self.mark, record)
        return number

    def probe_number(self, record: Record) -> int | None:
        number: int | None = self.number_in(PROBE + self.mark, record)
        return number

    def numbers_of(self, records: Sequence[Record]) -> list[int]:
        return [number for number in map(self.number_of, records) if number is not None]

    def put(self, sender: Sender, numbers: Sequence[int]) -> Future[None]:
        """Send numbered records in the background, as `send` may wait for answers."""
        return self.put_records(sender, [self.made(number) for number in numbers])

    def put_records(self, sender: Sender, records: Sequence[NewRecord]) -> Future[None]:
        return self.in_background(sender.send, records)

    def sent(self, future: Future[None], why: str = "send returns") -> None:
        self.result_of(future, why, COME_S)

    def take_once(self, listener: Listener, limit: int, wait_s: float, *, answer: bool = True) -> Sequence[Record]:
        records = listener.listen(limit, wait_s)
        assert len(records) <= limit, f"at most {limit} records were asked for, and {len(records)} came"
        if answer and records and isinstance(listener, Acknowledging):
            listener.acknowledge(records)
        return records

    def take(self, listener: Listener, count: int, why: str, *, answer: bool = True) -> list[Record]:
        """Listen until `count` records of this case have come. What other cases left is skipped."""
        taken: list[Record] = []
        deadline_s = time.monotonic() + COME_S
        while len(taken) < count:  # ends: at the latest with the deadline
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"{why}: {len(taken)} of {count} records came within {COME_S:g} s, {self.shown(taken)}"
            records = self.take_once(listener, 100, left_s, answer=False)
            ours = [record for record in records if self.number_of(record) is not None]
            taken += ours
            if isinstance(listener, Acknowledging):
                others = records if answer else [record for record in records if record not in ours]
                if others:
                    listener.acknowledge(others)
        return taken

    def passed(self, listener: Listener, sender: Sender, records: Sequence[NewRecord], why: str) -> list[Record]:
        """Send these records, and return what came of them once `send` has returned."""
        sending = self.put_records(sender, records)
        taken = self.take(listener, len(records), why)
        self.sent(sending)
        return taken

    def passed_numbers(self, listener: Listener, sender: Sender, numbers: Sequence[int], why: str) -> list[int]:
        return self.numbers_of(self.passed(listener, sender, [self.made(number) for number in numbers], why))

    def take_other(self, listener: Listener, why: str) -> Record:
        """The next record, whatever its value is. It is acknowledged."""
        deadline_s = time.monotonic() + COME_S
        while (left_s := deadline_s - time.monotonic()) > 0:  # ends with the deadline
            for record in self.take_once(listener, 1, left_s):
                if self.probe_number(record) is None:
                    return record
        raise AssertionError(f"{why}: nothing came within {COME_S:g} s")

    def shown(self, records: Sequence[Record]) -> str:
        numbers = self.numbers_of(records)
        return str(numbers) if len(numbers) <= 20 else f"{numbers[:10]}...{numbers[-10:]}"

    def check_nothing_comes(self, listener: Listener, why: str) -> None:
        numbers = self.numbers_of(self.take_once(listener, 10, BRIEF_S))
        assert not numbers, f"{why}, and yet records {numbers} came"

    def carries_any_bytes(self) -> None:
        if self.message is not plain_message:
            raise unittest.SkipTest("does not apply: the values of this channel have a format of their own")


def port_to_bind(folder: Path) -> int:
    """A free port of loopback for the side that binds: the same one for all calls with this folder."""
    chosen = folder / "port"
    with contextlib.suppress(FileNotFoundError):
        return int(chosen.read_text())
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind((LOOPBACK, 0))
        port: int = tcp.getsockname()[1]
        udp.bind((LOOPBACK, port))
    chosen.write_text(str(port))
    return port


def port_to_connect(folder: Path) -> int:
    """The port for the side that connects: the same one, or that of a proxy in the cases that break the network."""
    with contextlib.suppress(FileNotFoundError):
        return int(proxy_file(folder).read_text())
    return port_to_bind(folder)


def proxy_file(folder: Path) -> Path:
    return folder / "proxy-port"
