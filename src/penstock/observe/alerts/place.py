"""Where the rules of a stream are kept when nobody says where: with what else its console keeps."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import ConfigError
from penstock.observe.place import RULES_FILE, state_folder


def rules_path(url: str) -> Path:
    folder = state_folder(url)
    if folder is None:
        raise ConfigError(f"{url} ends with this process, so it has no alerts: use a log: or kafka: URL")
    return folder / RULES_FILE
