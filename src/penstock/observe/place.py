"""Where what is kept about a stream stands when nobody says: history, rules of alerts, what else a console keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.streams.url import KafkaUrl, LogUrl, parse_url

HISTORY_FILE: Final = "history.db"
RULES_FILE: Final = "alerts.json"


def state_folder(url: str) -> Path | None:
    """`console` in the folder of an embedded log; for brokers, a folder of their name in the working folder; None for a
    stream that ends with this process."""
    where = parse_url(url)
    if isinstance(where, LogUrl):
        return where.folder / "console"
    if isinstance(where, KafkaUrl):
        host = where.hosts[0]
        name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in host.name)
        return Path("penstock-console") / f"{name}_{host.port}"
    return None
