"""Signatures of webhooks: HMAC-SHA256 with a secret that sender and receiver share.

Three styles, each as its documents specify it:

- Standard Webhooks: `webhook-signature: v1,BASE64 ...` over `ID.TIME.BODY`, with `webhook-id` and `webhook-timestamp`.
  A secret is base64, with or without `whsec_` before it.
- GitHub: `X-Hub-Signature-256: sha256=HEX` over the body.
- Stripe: `Stripe-Signature: t=TIME,v1=HEX,...` over `TIME.BODY`.

Times are in seconds since 1970. Secrets are never logged, and compared in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from penstock.channels.http.settings import HttpSettings, SignatureStyle
from penstock.errors import ConfigError

STANDARD_ID: Final = "webhook-id"
STANDARD_TIME: Final = "webhook-timestamp"
STANDARD_SIGNATURE: Final = "webhook-signature"
GITHUB_SIGNATURE: Final = "x-hub-signature-256"
STRIPE_SIGNATURE: Final = "stripe-signature"
_PREFIX: Final = "whsec_"
_LONGEST_FILE_BYTES: Final = 100_000
_MOST_SIGNATURES: Final = 20


def sign(style: SignatureStyle, secrets: Sequence[str], message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers of a signed request, one signature for each secret where the style allows it."""
    if style == "standard":
        found = [f"v1,{base64.b64encode(_standard(each, message_id, str(at_s), body)).decode()}" for each in secrets]
        return {STANDARD_ID: message_id, STANDARD_TIME: str(at_s), STANDARD_SIGNATURE: " ".join(found)}
    if style == "github":
        return {GITHUB_SIGNATURE: f"sha256={_hmac(secrets[0].encode(), body).hex()}"}
    return {STRIPE_SIGNATURE: ",".join([f"t={at_s}", *(f"v1={_stripe(each, str(at_s), body)}" for each in secrets)])}


def problem_with(
    style: SignatureStyle,
    secrets: Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    now_s: float,
    tolerance_s: float,
) -> str:
    """Why a request must not be trusted; "" if one of the secrets signed it. The names of `headers` are in lower
    case, or found in any case."""
    if style == "github":
        given = headers.get(GITHUB_SIGNATURE, "")
        return _matching(style, [f"sha256={_hmac(each.encode(), body).hex()}" for each in secrets], [given])
    if style == "standard":
        message_id, time = headers.get(STANDARD_ID, ""), headers.get(STANDARD_TIME, "")
        signatures = headers.get(STANDARD_SIGNATURE, "").split(" ")
        if not message_id:
            return f"there is no header {STANDARD_ID}"
    else:
        fields = [field.strip().partition("=") for field in headers.get(STRIPE_SIGNATURE, "").split(",")]
        time = next((value for name, _, value in fields if name == "t"), "")
        signatures = [value for name, _, value in fields if name == "v1"]
    if not (time.isascii() and time.isdecimal() and len(time) <= 15):
        return "the signature has no time"
    if abs(now_s - int(time)) > tolerance_s:
        return f"the time of the signature differs by more than {tolerance_s:g} s from the clock of this server"
    if style == "standard":
        expected = [f"v1,{base64.b64encode(_standard(each, message_id, time, body)).decode()}" for each in secrets]
    else:
        expected = [_stripe(each, time, body) for each in secrets]
    return _matching(style, expected, signatures)


def _matching(style: SignatureStyle, expected: Sequence[str], given: Sequence[str]) -> str:
    matches = [
        hmac.compare_digest(each.encode(), other.encode("utf-8", "surrogateescape"))
        for each in expected
        for other in given[:_MOST_SIGNATURES]
    ]
    return "" if any(matches) else f"there is no valid {style} signature"


def _standard(secret: str, message_id: str, time: str, body: bytes) -> bytes:
    return _hmac(base64.b64decode(secret.removeprefix(_PREFIX)), f"{message_id}.{time}.".encode() + body)


def _stripe(secret: str, time: str, body: bytes) -> str:
    return _hmac(secret.encode(), f"{time}.".encode() + body).hex()


def _hmac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, hashlib.sha256)


def new_secret() -> str:
    """A random secret of 24 bytes, as Standard Webhooks recommends."""
    return _PREFIX + base64.b64encode(os.urandom(24)).decode()


def check_secret(style: SignatureStyle, secret: str, whose: str) -> None:
    """Raise ConfigError unless a secret can be used. The message does not show it."""
    if style == "standard":
        try:
            base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError) as error:
            raise ConfigError(
                f"{whose} holds a secret that is not base64, as Standard Webhooks requires (whsec_...); for another "
                "style, add signature=github or signature=stripe"
            ) from error


class Secrets:
    """The secrets of a channel: from the environment, or from a file that is read again when it changes."""

    def __init__(self, settings: HttpSettings) -> None:
        self._style = settings.signature
        self._file = None if settings.secret_file is None else Path(settings.secret_file).expanduser()
        self._changed_ns = -1
        self._lock = threading.Lock()
        self._secrets: tuple[str, ...] = ()
        if settings.secret_env is not None:
            self._secrets = self._parsed(os.environ.get(settings.secret_env, ""), f"${settings.secret_env}")
        self.current()

    def current(self) -> tuple[str, ...]:
        """The current secrets; none if requests are not signed. If the file has become unusable, the last ones that
        were read."""
        if self._file is None:
            return self._secrets
        with self._lock:
            try:
                changed_ns = self._file.stat().st_mtime_ns
                if changed_ns != self._changed_ns:
                    with open(self._file, encoding="utf-8") as opened:
                        self._secrets = self._parsed(opened.read(_LONGEST_FILE_BYTES), str(self._file))
                    self._changed_ns = changed_ns
            except (OSError, UnicodeDecodeError) as error:
                if not self._secrets:
                    raise ConfigError(f"the secret in {self._file} cannot be read: {error}") from error
            except ConfigError:
                if not self._secrets:
                    raise
            return self._secrets

    def _parsed(self, text: str, whose: str) -> tuple[str, ...]:
        found = tuple(text.split())
        if not found:
            raise ConfigError(f"{whose} holds no secret: set it, or omit the setting")
        for secret in found:
            check_secret(self._style, secret, whose)
        return found


def token_of(settings: HttpSettings) -> str | None:
    """The bearer token in the variable `token_env`; None without that setting. ConfigError if it holds no token."""
    if settings.token_env is None:
        return None
    token = os.environ.get(settings.token_env, "").strip()
    if not token or any(character.isspace() for character in token):
        raise ConfigError(f"${settings.token_env} holds no token: set it, or omit token_env")
    return token
