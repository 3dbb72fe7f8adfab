"""From the settings of a notifier to something that sends, or raises NotifyError."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final, Protocol, TextIO

from penstock.errors import NotifyError
from penstock.observe.alerts.messages import Message
from penstock.observe.alerts.settings import EmailSettings, LogSettings, NotifierSettings, WebhookSettings

LONGEST_SECRET_BYTES: Final = 64 * 1024


class Notifier(Protocol):
    def send(self, message: Message) -> str | None:
        """Say it. Returns when the other side has taken it, and raises NotifyError when it has not, within the timeout
        of the settings. What it gives back is what was wrong all the same, such as one of several addresses. Called by
        one thread at a time."""


def make_notifier(settings: NotifierSettings, log_to: TextIO | None = None) -> Notifier:
    """What sends by these settings. `log_to` is where a log without a file goes, by default standard error."""
    if isinstance(settings, WebhookSettings):
        from penstock.observe.alerts.webhook import WebhookNotifier

        return WebhookNotifier(settings)
    if isinstance(settings, EmailSettings):
        from penstock.observe.alerts.mail import EmailNotifier

        return EmailNotifier(settings)
    return LogNotifier(settings, log_to)


class LogNotifier:
    """A line for each alert, to standard error or to a file, which is opened anew each time, as it may be rotated."""

    def __init__(self, settings: LogSettings, log_to: TextIO | None = None) -> None:
        self._settings = settings
        self._log_to = log_to

    def send(self, message: Message) -> str | None:
        lines = "".join(f"{line}\n" for line in message.lines())
        try:
            if self._settings.file is not None:
                path = Path(self._settings.file).expanduser()
                path.parent.mkdir(parents=True, exist_ok=True)
                with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(lines)
            elif (stream := self._log_to or sys.stderr) is not None:
                stream.write(lines)
                stream.flush()
            else:
                raise NotifyError("this process has no standard error: give the notifier a file")
        except (OSError, ValueError) as error:  # ValueError: it was closed
            raise NotifyError(f"{self._settings.target}: {error}") from error
        return None


def secret_of(what: str, env: str | None, file: str | None) -> str | None:
    """A secret by where it is kept, read each time so that a new one is taken up; None where none is named."""
    if env is not None:
        value = os.environ.get(env)
        if not value:
            raise NotifyError(f"{what}: the environment variable {env} is not set")
        return value
    if file is None:
        return None
    try:
        with open(Path(file).expanduser(), encoding="utf-8") as opened:
            secret = opened.read(LONGEST_SECRET_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NotifyError(f"{what}: the secret in {file} cannot be read: {error}") from error
    if not secret:
        raise NotifyError(f"{what}: {file} is empty")
    return secret
