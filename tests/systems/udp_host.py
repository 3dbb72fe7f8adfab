"""`python -m tests.systems.udp_host listen|send URL COUNT FILE`: one end of a UDP channel, on a host of its own.

The listener writes the number of each record into the file, and at the end how many were lost. The sender writes how
many it has sent, and continues when the network is away.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.abc import Channel
from penstock.channels import open_channel
from penstock.errors import BrokerUnavailableError
from tests.consuming.eventually import wait_until
from tests.systems.udp_sender import listening, numbered, numbers_of


def listen(url: str, count: int, file: Path) -> None:
    channel = listening(url)
    file.write_text("")
    seen = 0
    while seen < count:  # ends: at the latest when the test kills it
        numbers = numbers_of(channel.listen(1_000, 1.0))
        seen += len(numbers)
        with file.open("a") as out:
            out.write("".join(f"{number}\n" for number in numbers))
    with file.open("a") as out:
        out.write(f"lost {channel.lost}\n")
    channel.close()


def send(url: str, count: int, file: Path) -> None:
    channel = open_channel(url)
    sent = 0
    while sent < count:
        wait_until(functools.partial(is_sent, channel, range(sent, sent + 10), file.with_suffix(".refused")))
        sent += 10
        file.write_text(str(sent))
    channel.close()


def is_sent(channel: Channel, numbers: Sequence[int], refused: Path) -> bool:
    try:
        channel.send(numbered(numbers))
    except BrokerUnavailableError:
        refused.touch()
        return False
    return True


if __name__ == "__main__":
    {"listen": listen, "send": send}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
