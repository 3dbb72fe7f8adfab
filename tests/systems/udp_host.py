"""`python -m tests.systems.udp_host listen|send URL COUNT FILE`: one end of a UDP channel, on a host of its own.

The listener writes the number of each record into the file, and at the end how many were lost. The sender writes how
many it has sent, and continues when the network is away.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from penstock.channels import open_channel
from penstock.errors import BrokerUnavailableError
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
        try:
            channel.send(numbered(range(sent, sent + 10)))
            sent += 10
        except BrokerUnavailableError:
            file.with_suffix(".refused").touch()
        file.write_text(str(sent))
        time.sleep(0.002)  # as a feed of prices would
    channel.close()


if __name__ == "__main__":
    {"listen": listen, "send": send}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
