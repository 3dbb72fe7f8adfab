"""The default paths of what is kept about a stream: history, alert rules, and the console's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from penstock.errors import ConfigError
from penstock.streams.connecting import check_url
from penstock.streams.url import is_memory, kafka_url, log_folder, without_password


def rules_path(url: str) -> Path:
    folder = state_folder(url)
    if folder is None:
        raise ConfigError(f"{url} ends with this process, so it has no alerts: use a log: or kafka: URL")
    return folder / RULES_FILE


HISTORY_FILE: Final = "history.db"
RULES_FILE: Final = "alerts.json"


def state_folder(url: str) -> Path | None:
    """`console` in the folder of an embedded log; for other streams, a folder of their name in the working folder; None
    for a stream that ends with this process."""
    check_url(url)
    folder = log_folder(url)
    if folder is not None:
        return folder / "console"
    if is_memory(url):
        return None
    kafka = kafka_url(url)
    name = f"{kafka.hosts[0].name}_{kafka.hosts[0].port}" if kafka is not None else without_password(url)
    return Path("penstock-console") / "".join(letter if letter.isalnum() or letter in ".-_" else "_" for letter in name)
