"""What the tests of ZeroMQ and nng share: both sides of a channel by URL, for the suite and for tests of both."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.abc import Channel
from penstock.channels import open_channel
from penstock.errors import BrokerUnavailableError
from penstock.model import NewRecord, Record
from penstock.testing import conformance
from tests.consuming.eventually import wait_until
from tests.systems.killed_gateway import COUNT, send_through_a_killed_gateway

ANSWER_S: Final = 3.0
WAIT_S: Final = 30.0
TOO_LARGE: Final = 17 << 20
REQUEST: Final = f"pattern=request&answer_timeout_s={ANSWER_S}"


def bound(scheme: str, settings: str, folder: Path) -> Channel:
    """Over TCP, at the port of the folder."""
    return open_channel(f"{scheme}+tcp://127.0.0.1:{conformance.port_to_bind(folder)}/ticks?{settings}")


def connected(scheme: str, settings: str, folder: Path) -> Channel:
    return open_channel(f"{scheme}+tcp://127.0.0.1:{conformance.port_to_connect(folder)}/ticks?{settings}")


def ipc(scheme: str, settings: str, folder: Path) -> Channel:
    return open_channel(f"{scheme}+ipc://{folder}/ticks?{settings}")


def take(channel: Channel, count: int) -> list[Record]:
    """So many records, however many calls it takes."""
    records: list[Record] = []
    wait_until(lambda: len(records.__iadd__(channel.listen(count - len(records), 1.0))) == count, WAIT_S)
    return records


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def check_that_a_full_buffer_holds_senders_back(scheme: str, folder: Path) -> None:
    listener: Any = ipc(scheme, "pattern=request&buffer=3", folder)
    listener.listen(1, 0.0)
    sender = ipc(scheme, "pattern=request", folder)
    threads = [
        threading.Thread(
            target=sender.send, args=([NewRecord("ticks", b"%d %d" % (number, each)) for each in range(2)],)
        )
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    records: list[Record] = []
    while len(records) < 40:
        taken = listener.listen(1, WAIT_S)
        assert taken, f"{len(records)} of 40 records came, and then none"
        listener.acknowledge(taken)
        records += taken
    for thread in threads:
        thread.join(WAIT_S)
    assert not any(thread.is_alive() for thread in threads)
    assert len(set(values(records))) == 40
    sender.close()
    listener.close()


def check_that_plain_requests_are_answered(scheme: str, folder: Path, send: Any, receive: Any) -> None:
    """`send` and `receive` are those of a plain REQ socket, connected to `ticks` in the folder."""
    listener: Any = ipc(scheme, "pattern=request&format=plain", folder)
    listener.listen(1, 0.0)
    for message in (b"1", b""):
        send(message)
        records = take(listener, 1)
        assert values(records) == [message]
        listener.acknowledge(records)
        assert receive() == b"OK"
    for again, answer in ((True, b"AGAIN the disk is full"), (False, b"REFUSED the disk is full")):
        send(b"2")
        listener.refuse(take(listener, 1), "the disk is full", again=again)
        assert receive() == answer
    listener.close()


def check_that_an_address_is_taken_only_for_now(scheme: str, folder: Path) -> None:
    first, second = (bound(scheme, "pattern=pipeline", folder) for _ in range(2))
    first.listen(1, 0.0)
    with pytest.raises(
        BrokerUnavailableError, match=rf"{scheme}\+tcp://127.0.0.1:\d+/ticks cannot be bound: .*process"
    ):
        second.listen(1, 0.0)
    first.close()
    wait_until(lambda: _listens(second), WAIT_S)
    second.close()


def _listens(channel: Channel) -> bool:
    try:
        channel.listen(1, 0.0)
    except BrokerUnavailableError:
        return False
    return True


def check_that_a_killed_gateway_loses_nothing(scheme: str, folder: Path) -> None:
    source = f"{scheme}+tcp://127.0.0.1:{conformance.port_to_bind(folder)}/ticks?pattern=request"
    sender = open_channel(source, answer_timeout_s=10.0)
    delivered = send_through_a_killed_gateway(source, sender, folder)
    sender.close()
    assert sorted(set(delivered)) == list(range(COUNT))
