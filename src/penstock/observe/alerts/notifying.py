"""Notifiers, made from their settings. They raise NotifyError."""

from __future__ import annotations

import email.utils
import hashlib
import hmac
import http.client
import smtplib
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Final, Protocol, TextIO

import msgspec

from penstock.errors import ConfigError, NotifyError
from penstock.model.addresses import is_loopback
from penstock.model.text import shown_name
from penstock.observe.alerts.messages import Message
from penstock.observe.alerts.settings import (
    PORTS,
    EmailSettings,
    LogSettings,
    NotifierSettings,
    WebhookSettings,
    check_url,
    secret_of,
)

LONGEST_RETRY_AFTER_S: Final = 3600.0
READ_BYTES: Final = 300


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class WebhookNotifier:
    """Posts messages as JSON to a URL.

    A message counts as delivered when the response is a 2xx. Redirects are not followed: configure the new URL, so that
    what was meant for one host does not go to another. With a secret, each request is signed:

        Penstock-Signature: t=1800000000,v1=HEX

    where HEX is the HMAC-SHA256 with the secret over the time, a dot, and the body. A receiver that checks it and
    rejects old times knows that the message is ours and not a replay. `Penstock-Message` is the id of the message, the
    same for the same news.
    """

    def __init__(self, settings: WebhookSettings, wall_s: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._wall_s = wall_s

    def send(self, message: Message) -> str | None:
        what = f"notifier {self._settings.name}"
        url = self._settings.url or secret_of(what, self._settings.url_env, None) or ""
        try:
            check_url(url, what)
        except ConfigError as error:
            raise NotifyError(str(error)) from error
        body = msgspec.json.encode(message.document())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "penstock-alerts",
            "Penstock-Message": message.id,
        }
        secret = secret_of(what, self._settings.secret_env, self._settings.secret_file)
        if secret is not None:
            headers["Penstock-Signature"] = signature(secret, int(self._wall_s()), body)
        self._post(urllib.request.Request(url, body, headers, method="POST"))
        return None

    def _post(self, request: urllib.request.Request) -> None:
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if is_loopback(urllib.parse.urlsplit(request.full_url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))  # a proxy's loopback is not ours
        opener = urllib.request.build_opener(*handlers)
        target = self._settings.target
        try:
            with opener.open(request, timeout=self._settings.timeout_s):
                pass
        except urllib.error.HTTPError as error:
            with error:
                raise NotifyError(f"{target} answered {_told(error)}", _retry_after_s(error)) from error
        except urllib.error.URLError as error:
            raise NotifyError(f"{target} cannot be reached: {error.reason}") from error
        except TimeoutError as error:
            raise NotifyError(f"{target} did not answer within {self._settings.timeout_s:g} s") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NotifyError(f"{target} cannot be reached: {type(error).__name__}: {error}") from error


def signature(secret: str, at_s: int, body: bytes) -> str:
    """The header that lets the receiver verify the message."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def _told(error: urllib.error.HTTPError) -> str:
    if 300 <= error.code < 400:
        return f"{error.code}: it has moved; configure its new URL"
    try:
        said = shown_name(error.read(READ_BYTES).decode("utf-8", errors="replace").strip())
    except (OSError, http.client.HTTPException):
        said = ""
    return f"{error.code} {shown_name(str(error.reason))}" + (f": {said}" if said else "")


def _retry_after_s(error: urllib.error.HTTPError) -> float | None:
    """Only the form in seconds; a date would need synchronised clocks."""
    told = error.headers.get("Retry-After", "")
    return min(float(told), LONGEST_RETRY_AFTER_S) if told.isascii() and told.isdecimal() else None


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
