"""Ending what a page has left running."""

from __future__ import annotations

from pathlib import Path

from tests.streams.embedded import stop_broker


def stop_brokers(folder: Path) -> None:
    """End the brokers of all data folders in this one: they would end by themselves, but only after a while."""
    for address in folder.rglob("broker.json"):
        stop_broker(address.parent)
