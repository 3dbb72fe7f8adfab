"""Messages as letters by SMTP. The mail server's certificate is checked; nothing secret goes out in the clear."""

from __future__ import annotations

import email.utils
import smtplib
import ssl
from email.message import EmailMessage

from penstock.errors import NotifyError
from penstock.observe.alerts.messages import Message
from penstock.observe.alerts.notifying import secret_of
from penstock.observe.alerts.settings import PORTS, EmailSettings


class EmailNotifier:
    """`trusted` is the context by which certificates are checked; by default those of the machine are trusted."""

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
            raise NotifyError(f"{where} cannot do what is asked ({error}): see security and user") from error
        except smtplib.SMTPAuthenticationError as error:
            raise NotifyError(f"{where} does not take the user {settings.user} with this password") from error
        except smtplib.SMTPResponseException as error:
            raise NotifyError(f"{where} answered {error.smtp_code} {_plain(error.smtp_error)}") from error
        except smtplib.SMTPRecipientsRefused as error:
            raise NotifyError(f"{where} refuses {_refused(error.recipients)}") from error
        except TimeoutError as error:
            raise NotifyError(f"{where} did not answer within {settings.timeout_s:g} s") from error
        except (OSError, smtplib.SMTPException) as error:
            raise NotifyError(f"{where} cannot be reached: {error}") from error
        # Sent again, it would reach the others again.
        return f"{where} refuses {_refused(refused)}; the others have got the letter" if refused else None

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
