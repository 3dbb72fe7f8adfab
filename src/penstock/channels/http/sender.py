"""The client of a channel that sends: one request for each record, or for a batch of them.

| answer | what `send` does |
|---|---|
| 2xx | goes on |
| 408, 425, 429, 5xx, none | tries again, with backoff and as `Retry-After` asks; then raises an error that may pass |
| 3xx, 401, 403, 404, 405, 407, 410 | raises BrokerUnavailableError: the URL or the login is wrong, not the record |
| other 4xx | raises a DeliveryError that is not retriable: the receiver refuses this record |
"""

from __future__ import annotations

import asyncio
import base64
import email.utils
import hashlib
import importlib
import io
import ipaddress
import random
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from penstock.abc import Clock
from penstock.channels.http import messages
from penstock.channels.http.receiver import import_aiohttp
from penstock.channels.http.settings import HttpSettings, client_tls
from penstock.channels.http.signatures import Secrets, sign, token_of
from penstock.errors import BrokerUnavailableError, ConfigError, DeliveryError, PenstockError, RecordTooLargeError
from penstock.model import NewRecord
from penstock.model.circuit_breaker import BreakerState, Circuit, CircuitBreaker
from penstock.model.retry import Retry
from penstock.model.text import duration_text, shown_name
from penstock.streams.adapting.loop_thread import LoopThread
from penstock.streams.backend_url import BackendUrl

_AGAIN: Final = frozenset({408, 425, 429})
_WRONG_PLACE: Final = frozenset({401, 403, 404, 405, 407, 410})
_NO_RECEIVER: Final = frozenset({502, 504})
"""A proxy's word for a receiver that does not answer."""
_REDIRECTS: Final = frozenset({307, 308})
_READ_BYTES: Final = 1_000
_LARGE_BYTES: Final = 500_000
_LONGEST_RETRY_AFTER_S: Final = 3_600.0
_BREAKER_PAUSES_S: Final = (1.0, 60.0)
_SPARE_S: Final = 60.0
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One request to send."""

    id: str
    body: bytes
    headers: Sequence[tuple[str, str]]
    expected: bytes = b""
    """What the answer must contain."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request was not accepted."""

    error: PenstockError
    again: bool
    """Whether another attempt may help."""
    status: int | None = None
    """The receiver's answer, if there was one."""
    wait_s: float | None = None
    """How long the receiver asked to wait."""


class PrivateAddressError(OSError):
    """A URL leads to an address that is not public."""


def request_target(url: BackendUrl, path: str, query: str) -> str:
    """The URL of requests, without login and settings. `path` is as it stands in the URL."""
    return f"{url.scheme}://{url.host}{path or '/'}" + (f"?{query}" if query else "")


class HttpSender:
    """Sends to one URL. Any thread may call `send`; everything else runs in the event loop."""

    def __init__(self, url: BackendUrl, target: str, settings: HttpSettings, thread: LoopThread, clock: Clock) -> None:
        self._settings = settings
        self._thread = thread
        self._shown = url.shown
        self._login = _login(url, settings)
        self.endpoint = HttpEndpoint(url.shown, target, settings, Secrets(settings), clock, self._login)
        self._chance = random.Random()
        self._slots: asyncio.Semaphore | None = None

    def send(self, records: Sequence[NewRecord]) -> None:
        messages = self._messages(records)
        settings = self._settings
        longest_s = len(records) * settings.attempts * (settings.timeout_s + settings.max_delay_s)
        self._thread.run(self._send(messages), longest_s + _SPARE_S)

    async def close(self) -> None:
        await self.endpoint.close()

    def _messages(self, records: Sequence[NewRecord]) -> list[list[Message]]:
        """Requests in lanes; those of a lane keep their order. Raises RecordTooLargeError, before anything is sent."""
        size = self._settings.batch
        if size > 1:
            return [[self._batch(records[start : start + size]) for start in range(0, len(records), size)]]
        lanes: dict[object, list[Message]] = {}
        for record in records:
            message_id = messages.message_id(record)
            headers = messages.request_headers(record, message_id, self._settings.content_type)
            message = Message(message_id, self._checked(record.value or b""), headers)
            lanes.setdefault(message if record.key is None else record.key, []).append(message)
        return list(lanes.values())

    def _batch(self, records: Sequence[NewRecord]) -> Message:
        for record in records:
            try:
                msgspec.json.decode(record.value or b"null")
            except (msgspec.DecodeError, RecursionError) as error:
                raise DeliveryError(
                    f"a record for {self._shown} is not JSON ({error}), and batch={self._settings.batch} sends JSON "
                    "arrays: send JSON, or omit batch"
                ) from error
        body = b"[" + b",".join(record.value or b"null" for record in records) + b"]"
        ids = "\n".join(messages.message_id(record) for record in records)
        message_id = hashlib.sha256(ids.encode()).hexdigest()
        headers = [("idempotency-key", message_id), ("webhook-id", message_id), ("content-type", "application/json")]
        return Message(message_id, self._checked(body), headers)

    def _checked(self, body: bytes) -> bytes:
        if len(body) > self._settings.max_body_bytes:
            raise RecordTooLargeError(
                f"a request to {self._shown} would have {len(body):,} bytes, and max_body_bytes="
                f"{self._settings.max_body_bytes} allows no more: raise it if the receiver takes them"
            )
        return body

    async def _send(self, lanes: Sequence[Sequence[Message]]) -> None:
        if self._slots is None:
            self._slots = asyncio.Semaphore(self._settings.concurrency)
        found = await asyncio.gather(*(self._send_lane(lane, self._slots) for lane in lanes))
        errors = [error for each in found for error in each]
        if errors:
            # What may pass comes first: everything is sent again then, with the same ids where records have one.
            raise min(errors, key=lambda error: isinstance(error, DeliveryError) and not error.retriable)

    async def _send_lane(self, lane: Sequence[Message], slots: asyncio.Semaphore) -> list[PenstockError]:
        """Send the requests of a lane in turn. A refused record does not stop the next ones; an unavailable receiver
        does."""
        errors: list[PenstockError] = []
        for message in lane:
            error = await self._deliver(message, slots)
            if error is not None:
                errors.append(error)
                if not isinstance(error, DeliveryError) or error.retriable:
                    break
        return errors

    async def _deliver(self, message: Message, slots: asyncio.Semaphore) -> PenstockError | None:
        settings = self._settings
        retry = Retry(settings.attempts, settings.first_delay_s, max_delay_s=settings.max_delay_s)
        for attempt in range(1, settings.attempts + 1):
            async with slots:
                failure = await self.endpoint.post(message)
            if failure is None:
                return None
            wait_s = max(failure.wait_s or 0.0, retry.backoff_s(attempt, self._chance))
            is_last = attempt == settings.attempts or wait_s > settings.max_delay_s
            if not failure.again or is_last or self.endpoint.is_paused:
                return failure.error
            await asyncio.sleep(wait_s)
        raise AssertionError("attempts is at least 1")


class HttpEndpoint:
    """One receiver: connections to it, its circuit breaker, and the time until which it wants no requests."""

    def __init__(
        self,
        shown: str,
        target: str,
        settings: HttpSettings,
        secrets: Secrets | Sequence[str],
        clock: Clock,
        login: str = "",
    ) -> None:
        self._aiohttp = import_aiohttp()
        self._url_type: Any = importlib.import_module("yarl").URL
        self._shown = shown
        self._settings = settings
        self._secrets = secrets
        self._clock = clock
        self._login = login
        try:
            self._target = self._url_type(target, encoded=True)
        except ValueError as error:
            raise ConfigError(f"{shown} is not a URL that requests can be sent to: {error}") from error
        self._tls = client_tls(settings, shown)
        first_s, longest_s = _BREAKER_PAUSES_S
        self._breaker = BreakerState(CircuitBreaker(settings.breaker_after, first_s, longest_s), clock)
        self._is_trying = False
        self._not_before_s = 0.0
        self._session: Any = None

    @property
    def is_paused(self) -> bool:
        return self._breaker.circuit is Circuit.OPEN or self._clock.monotonic_s() < self._not_before_s

    async def post(self, message: Message) -> Failure | None:
        """Send one request. None if it was accepted, else why not."""
        pause_s = max(self._breaker.opens_again_in_s, self._not_before_s - self._clock.monotonic_s())
        is_trial = not self._breaker.is_open() and self._breaker.circuit is Circuit.TRYING
        if pause_s > 0 or (is_trial and self._is_trying):
            reason = self._breaker.reason or "it asked for a pause"
            error = BrokerUnavailableError(
                f"{self._shown} gets no requests for {duration_text(max(pause_s, 0.1))}: {reason}"
            )
            return Failure(error, again=False)
        self._is_trying = is_trial
        try:
            failure = await self._post(message)
        finally:
            self._is_trying = False
        if failure is None or (failure.status is not None and not failure.again):
            self._breaker.succeeded()
        else:
            self._breaker.may_give_up(str(failure.error))
            if failure.wait_s is not None and failure.wait_s > self._settings.max_delay_s:
                self._not_before_s = self._clock.monotonic_s() + failure.wait_s
        return failure

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _post(self, message: Message) -> Failure | None:
        target = self._target
        for _ in range(self._settings.redirects + 1):
            try:
                self._check_address(target)
                async with self._open_session().request(
                    self._settings.method,
                    target,
                    data=message.body if len(message.body) < _LARGE_BYTES else io.BytesIO(message.body),
                    headers=self._headers(message, target),
                    allow_redirects=False,
                ) as response:
                    if 200 <= response.status < 300:
                        if message.expected and message.expected not in await response.content.read(_READ_BYTES):
                            return Failure(DeliveryError(f"{self._shown} answered something else"), False, 200)
                        return None
                    place = response.headers.get("Location", "")
                    if response.status in _REDIRECTS and place and self._settings.redirects:
                        target = self._redirected(target, place)
                        continue
                    return await self._refused(response)
            except TimeoutError:
                return self._away(f"it did not answer within {self._settings.timeout_s:g} s")
            except (self._aiohttp.ClientError, OSError, ValueError) as error:
                return self._failed(error)
        return self._away(f"it redirects more than {self._settings.redirects} times", is_final=True)

    def _open_session(self) -> Any:
        if self._session is None:
            settings, aiohttp = self._settings, self._aiohttp
            resolver = None if settings.private_addresses else _public_resolver(aiohttp)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=settings.concurrency, ssl=self._tls, resolver=resolver),
                timeout=aiohttp.ClientTimeout(total=settings.timeout_s, sock_connect=settings.connect_timeout_s),
                headers={"User-Agent": "penstock"},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    def _headers(self, message: Message, target: Any) -> list[tuple[str, str]]:
        headers = list(message.headers)
        secrets = self._secrets.current() if isinstance(self._secrets, Secrets) else self._secrets
        if secrets:
            at_s = self._clock.wall_ms() // 1000
            signed = sign(self._settings.signature, secrets, message.id, at_s, message.body)
            headers = [(name, value) for name, value in headers if name not in signed] + list(signed.items())
        if self._login and target.origin() == self._target.origin():
            headers.append(("Authorization", self._login))
        return headers

    def _redirected(self, target: Any, place: str) -> Any:
        found = target.join(self._url_type(place))
        if found.scheme not in ("http", "https") or (target.scheme == "https" and found.scheme == "http"):
            raise ValueError(f"it redirects to {shown_name(place)}, which is not safe")
        return found

    def _check_address(self, target: Any) -> None:
        if self._settings.private_addresses or not target.host:
            return
        try:
            address = ipaddress.ip_address(target.host)
        except ValueError:
            return  # a name: the resolver checks it
        if not is_public(address):
            raise PrivateAddressError(f"{address} is not a public address")

    async def _refused(self, response: Any) -> Failure:
        said = shown_name((await response.content.read(_READ_BYTES)).decode("utf-8", errors="replace").strip())
        status = response.status
        told = f"{status} {shown_name(response.reason or '')}".strip() + (f": {said}" if said else "")
        wait_s = retry_after_s(response.headers.get("Retry-After", ""), self._clock.wall_ms() / 1000)
        error: PenstockError
        if status in _NO_RECEIVER:
            error = BrokerUnavailableError(f"{self._shown} answered {told}")
            return Failure(error, True, status, wait_s)
        if status in _AGAIN or status >= 500:
            error = DeliveryError(f"{self._shown} answered {told}; send it again later", retriable=True)
            return Failure(error, True, status, wait_s)
        if status in _WRONG_PLACE or status < 400:
            advice = "it has moved; use its new URL" if 300 <= status < 400 else "check the URL and the login"
            error = BrokerUnavailableError(f"{self._shown} answered {told}: {advice}", retriable=False)
            return Failure(error, False, status)
        return Failure(DeliveryError(f"{self._shown} refused a record: {told}"), False, status)

    def _failed(self, error: Exception) -> Failure:
        reason = getattr(error, "os_error", None) or error
        if isinstance(reason, PrivateAddressError) or isinstance(error, PrivateAddressError):
            return self._away(f"{reason}, and private_addresses=false", is_final=True)
        is_certificate = isinstance(error, ssl.SSLError | self._aiohttp.ClientSSLError)
        is_final = is_certificate or isinstance(error, ValueError)
        return self._away(f"{shown_name(str(reason)) or type(error).__name__}", is_final=is_final)

    def _away(self, reason: str, *, is_final: bool = False) -> Failure:
        error = BrokerUnavailableError(f"{self._shown} is unavailable: {reason}", retriable=not is_final)
        return Failure(error, again=not is_final)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether this address means the same machine everywhere on the internet."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            address = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        elif address.ipv4_mapped is not None or address.sixtofour is not None:
            address = address.ipv4_mapped or address.sixtofour or address
    return address.is_global and not address.is_multicast


def retry_after_s(text: str, now_s: float) -> float | None:
    """The seconds that `Retry-After` asks to wait, given as a number or a date, but at most an hour. None if it is
    missing or invalid."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), _LONGEST_RETRY_AFTER_S)
    try:
        at_s = email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, at_s - now_s), _LONGEST_RETRY_AFTER_S)


def _login(url: BackendUrl, settings: HttpSettings) -> str:
    token = token_of(settings)
    if token is not None:
        return f"Bearer {token}"
    if url.user is None:
        return ""
    return "Basic " + base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()


def _public_resolver(aiohttp: Any) -> Any:
    """A resolver that refuses names of non-public addresses. Connections use the addresses it returned, so a name
    cannot change in between."""

    class PublicResolver(aiohttp.abc.AbstractResolver):  # type: ignore[misc]
        def __init__(self) -> None:
            self._inner = aiohttp.ThreadedResolver()

        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> Any:
            found = await self._inner.resolve(host, port, family)
            for each in found:
                if not is_public(ipaddress.ip_address(each["host"].partition("%")[0])):
                    raise PrivateAddressError(f"{host} has the address {each['host']}, which is not public")
            return found

        async def close(self) -> None:
            await self._inner.close()

    return PublicResolver()
