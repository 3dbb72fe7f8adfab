"""Notifiers, made from their settings. They raise NotifyError."""

from __future__ import annotations

import email.utils
import smtplib
import ssl
import sys
from email.message import EmailMessage
from pathlib import Path
from typing import Protocol, TextIO

from penstock.errors import NotifyError
from penstock.observe.alerts.messages import Message
from penstock.observe.alerts.settings import (
    PORTS,
    EmailSettings,
    LogSettings,
    NotifierSettings,
    WebhookSettings,
    secret_of,
)
from penstock.observe.alerts.webhook import WebhookNotifier


class EmailNotifier:
    """`trusted` is the TLS context that checks certificates; by default the machine's."""

    def __init__(self, settings: EmailSettings, trusted: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._trusted = trusted

    def send(self, message: Message) -> str | None:
        settings = self._settings
        password = secret_of(f"notifier {settings.name}", settings.password_env, settings.password_file)
        where = f"{settings.host}:{settings.port or PORTS[settings.security]}"
        try:
            with self._connected() as server:
                if settings.security == "starttls":
                    server.starttls(context=self._context())
                if settings.user is not None and password is not None:
                    server.login(settings.user, password)
                refused = server.send_message(self._letter(message))
        except smtplib.SMTPNotSupportedError as error:
            raise NotifyError(
                f"{where} does not support what is configured ({error}): check security and user"
            ) from error
        except smtplib.SMTPAuthenticationError as error:
            raise NotifyError(f"{where} rejected the user {settings.user} with this password") from error
        except smtplib.SMTPResponseException as error:
            raise NotifyError(f"{where} answered {error.smtp_code} {_plain(error.smtp_error)}") from error
        except smtplib.SMTPRecipientsRefused as error:
            raise NotifyError(f"{where} refuses {_refused(error.recipients)}") from error
        except TimeoutError as error:
            raise NotifyError(f"{where} did not answer within {settings.timeout_s:g} s") from error
        except (OSError, smtplib.SMTPException) as error:
            raise NotifyError(f"{where} cannot be reached: {error}") from error
        # Sending it again would reach the others again.
        return f"{where} refused {_refused(refused)}; the others received the message" if refused else None

    def _connected(self) -> smtplib.SMTP:
        settings = self._settings
        port = settings.port or PORTS[settings.security]
        if settings.security == "ssl":
            return smtplib.SMTP_SSL(settings.host, port, timeout=settings.timeout_s, context=self._context())
        return smtplib.SMTP(settings.host, port, timeout=settings.timeout_s)

    def _context(self) -> ssl.SSLContext:
        return self._trusted or ssl.create_default_context()

    def _letter(self, message: Message) -> EmailMessage:
        letter = EmailMessage()
        letter["Subject"] = message.subject
        letter["From"] = self._settings.sender
        letter["To"] = ", ".join(self._settings.to)
        letter["Date"] = email.utils.formatdate(message.at_ms / 1000)
        domain = self._settings.sender.rpartition("@")[2]
        letter["Message-ID"] = f"<{message.id}@{domain}>"
        letter["Auto-Submitted"] = "auto-generated"
        letter.set_content(
            "\n\n".join([*message.lines(), f"stream: {message.stream}" if message.stream else ""]).strip()
        )
        return letter


def _refused(recipients: dict[str, tuple[int, bytes]]) -> str:
    return "; ".join(f"{address} ({code} {_plain(why)})" for address, (code, why) in recipients.items())


def _plain(told: bytes | str) -> str:
    return told.decode("utf-8", errors="replace") if isinstance(told, bytes) else told


class Notifier(Protocol):
    def send(self, message: Message) -> str | None:
        """Send a message, within the timeout of the settings. Raises NotifyError when the receiver did not accept it.
        Returns partial problems, such as one bad address among several. Called by one thread at a time."""


def make_notifier(settings: NotifierSettings, log_to: TextIO | None = None) -> Notifier:
    """The notifier for these settings. `log_to` is where a log without a file goes, by default standard error."""
    if isinstance(settings, WebhookSettings):
        return WebhookNotifier(settings)
    if isinstance(settings, EmailSettings):
        return EmailNotifier(settings)
    return LogNotifier(settings, log_to)


class LogNotifier:
    """A line per alert, to standard error or to a file, which is reopened each time, as it may be rotated."""

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
                raise NotifyError("this process has no standard error: configure a file for the notifier")
        except (OSError, ValueError) as error:  # ValueError: it was closed
            raise NotifyError(f"{self._settings.target}: {error}") from error
        return None
