"""Where the rules of a stream are kept when nobody says where: with what else its console keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.errors import ConfigError
from penstock.streams.url import KafkaUrl, LogUrl, parse_url

RULES_FILE: Final = "alerts.json"


def rules_path(url: str) -> Path:
    """`console/alerts.json` in the folder of an embedded log; for brokers, a folder of their name in the working
    folder."""
    where = parse_url(url)
    if isinstance(where, LogUrl):
        return where.folder / "console" / RULES_FILE
    if isinstance(where, KafkaUrl):
        host = where.hosts[0]
        name = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in host.name)
        return Path("penstock-console") / f"{name}_{host.port}" / RULES_FILE
    raise ConfigError(f"{url} ends with this process, so it has no alerts: use a log: or kafka: URL")
