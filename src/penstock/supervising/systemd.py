"""Unit files of systemd that run the supervisor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.errors import ConfigError

_KEPT: Final = (
    "PENSTOCK_URL",
    "PENSTOCK_KAFKA_CONFIG",
    "PENSTOCK_CACHE",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "JAVA_HOME",
    "PATH",
)
"""Variables that the programs find in the unit as they are now."""
_MARGIN_S: Final = 20
"""How much longer than its programs the supervisor may take to end."""


def unit_file(
    command: Sequence[str],
    names: Sequence[str],
    drain_s: float,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """A unit that runs the supervisor with this command, in `folder` (the working folder), with what programs need of
    the environment.

    systemd restarts a supervisor that was killed. It does not restart one that has ended by itself: that has given up
    programs, or was started wrongly. SIGTERM goes to the supervisor alone, which ends its programs.
    """
    variables = os.environ if environment is None else environment
    kept = [
        f"Environment={quoted(f'{name}={variables[name]}', in_command=False)}" for name in _KEPT if variables.get(name)
    ]
    return "\n".join(
        [
            "[Unit]",
            f"Description=Penstock: {_plain(', '.join(names))}",
            "Wants=network-online.target",
            "After=network-online.target",
            "",
            "[Service]",
            "Type=exec",
            f"WorkingDirectory={_path(folder or Path.cwd())}",
            *kept,
            f"ExecStart={' '.join(quoted(word) for word in command)}",
            "Restart=on-failure",
            "RestartPreventExitStatus=1 2",
            "RestartSec=5",
            "KillMode=mixed",
            f"TimeoutStopSec={drain_s + _MARGIN_S:g}",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def quoted(word: str, *, in_command: bool = True) -> str:
    """A word as systemd reads it back: specifiers, quotes and, in a command, variables are escaped."""
    if "\n" in word or "\0" in word:
        raise ConfigError(f"{word!r} contains a line break, which a unit file cannot hold")
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text.replace("$", "$$") if in_command else text}"'


def _path(folder: Path) -> str:
    """A path for a line of its own, which needs no quotes."""
    if "\n" in str(folder):
        raise ConfigError(f"{str(folder)!r} contains a line break, which a unit file cannot hold")
    return str(folder).replace("%", "%%")


def _plain(text: str) -> str:
    return text.replace("%", "%%")
