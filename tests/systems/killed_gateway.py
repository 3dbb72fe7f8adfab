"""A gateway whose process is killed while others send to its channel: nothing that was acknowledged is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import penstock as ps
from penstock.abc import Channel
from penstock.errors import BrokerUnavailableError, DeliveryError
from penstock.gateway import Gateway
from penstock.model import NewRecord
from tests.consuming.eventually import wait_until
from tests.forking import FORKING

WAIT_S: Final = 60.0
COUNT: Final = 60


def run_gateway(source: str, folder: Path) -> None:
    Gateway(source, f"sqlite:{folder}/sink.db#ticks", inbox=f"log:{folder}/inbox").run()


def send_through_a_killed_gateway(source: str, sender: Channel, folder: Path) -> list[int]:
    """Send numbers 0 to 59, each until it is acknowledged, and kill the gateway on the way.

    Returns what it delivered.
    """
    gateways = [FORKING.Process(target=run_gateway, args=(source, folder))]
    gateways[0].start()
    try:
        for number in range(COUNT):
            if number == COUNT // 2:
                gateways[0].kill()
                gateways[0].join(WAIT_S)
                gateways.append(FORKING.Process(target=run_gateway, args=(source, folder)))
                gateways[1].start()
            wait_until(lambda number=number: is_acknowledged(sender, number), WAIT_S)  # type: ignore[misc]
        wait_until(lambda: set(delivered(folder)) == set(range(COUNT)), WAIT_S)
    finally:
        for gateway in gateways:
            gateway.terminate()
            gateway.join(WAIT_S)
    return delivered(folder)


def is_acknowledged(sender: Channel, number: int) -> bool:
    try:
        sender.send([NewRecord("ticks", b"%d" % number, b"key", (("n", b"%d" % number),), 1_700_000_000_000)])
    except (BrokerUnavailableError, DeliveryError):
        return False
    return True


def delivered(folder: Path) -> list[int]:
    if not (folder / "sink.db").exists():
        return []
    with ps.connect(f"sqlite:{folder}/sink.db") as stream:
        if "ticks" not in stream.topics():
            return []
        return [int(record.value or b"") for record in stream.read("ticks")]
