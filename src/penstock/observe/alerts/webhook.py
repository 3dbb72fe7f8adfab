"""Messages posted as JSON to a URL.

A message counts as delivered when the response is a 2xx. Redirects are not followed: configure the new URL, so that
what was meant for one host does not go to another. With a secret, each request is signed:

    Penstock-Signature: t=1800000000,v1=HEX

where HEX is the HMAC-SHA256 with the secret over the time, a dot, and the body. A receiver that checks it and rejects
old times knows that the message is ours and not a replay. `Penstock-Message` is the id of the message, the same for
the same news.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.errors import ConfigError, NotifyError
from penstock.model.addresses import is_loopback
from penstock.model.text import shown_name
from penstock.observe.alerts.messages import Message
from penstock.observe.alerts.settings import WebhookSettings, check_url, secret_of

LONGEST_RETRY_AFTER_S: Final = 3600.0
READ_BYTES: Final = 300


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class WebhookNotifier:
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
