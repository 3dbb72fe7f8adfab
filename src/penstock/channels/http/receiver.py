"""The server of a channel that listens: one request is one record, and is answered when the record is stored.

| answer | when |
|---|---|
| 200 | the record is stored, now or by an earlier request with the same idempotency key |
| 400, 408, 413, 415 | the body cannot be decompressed, took too long, is too large, or has another content encoding |
| 401 | the signature, token or password is missing or wrong |
| 404, 405 | another path, or a method other than POST and PUT |
| 422 | the record was refused for good, or its idempotency key was used with another body |
| 503 | not stored: too many requests, or the record was refused for now. With `Retry-After` |
| 504 | not answered in time: whether the record is stored is unknown |
"""

from __future__ import annotations

import asyncio
import base64
import errno
import hmac
import importlib
import logging
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from penstock.abc import Clock
from penstock.channels.answers import Refusal
from penstock.channels.http import messages
from penstock.channels.http.repeats import Repeats, digest_of
from penstock.channels.http.settings import HttpSettings, server_tls
from penstock.channels.http.signatures import Secrets, problem_with, token_of
from penstock.channels.receive_buffer import ReceiveBuffer
from penstock.errors import BrokerUnavailableError, ConfigError, MissingExtraError
from penstock.model import Record
from penstock.model.addresses import check_exposure
from penstock.streams.adapting.loop_thread import LoopThread
from penstock.streams.backend_url import BackendUrl

logger = logging.getLogger(__name__)

_METHODS: Final = ("POST", "PUT")
_CHUNK_BYTES: Final = 65_536
_BACKLOG: Final = 512
_HANDSHAKE_S: Final = 10.0
_START_S: Final = 30.0
_DRAIN_S: Final = 2.0
_LOG_EVERY_S: Final = 10.0
_MOST_UNANSWERED: Final = 100_000
_CLOSING: Final = Refusal("the receiver was closed: whether this is stored is unknown; send it again", again=True)
_BUSY: Final = "too many requests: send it again later"


@dataclass(slots=True, eq=False)
class _Waiting:
    """A record whose listener has not answered yet."""

    key: bytes | None
    size_bytes: int
    outcome: asyncio.Future[Refusal | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Answer(Exception):
    """Ends a request before it becomes a record."""

    def __init__(self, status: int, text: str, **headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class HttpReceiver:
    """Serves one path of one address. `records` are for the thread that listens; all else runs in the loop."""

    def __init__(self, name: str, url: BackendUrl, settings: HttpSettings, thread: LoopThread, clock: Clock) -> None:
        self._web = import_aiohttp().web
        self._url = url
        self._settings = settings
        self._thread = thread
        self._clock = clock
        self.records = ReceiveBuffer(name, settings.buffer)
        self._path = f"/{url.path}"
        if settings.health_path == self._path:
            raise ConfigError(f"health_path={settings.health_path!r} is the path of {url.shown}: choose another one")
        self._tls = server_tls(settings, url.shown) if url.scheme == "https" else None
        self._secrets = Secrets(settings)
        self._token = token_of(settings)
        self._reader = messages.RecordReader(settings)
        self._check_exposure()
        self._waiting: dict[int, _Waiting] = {}
        self._repeats: Repeats[_Waiting] = Repeats(settings.idempotency_keys, settings.idempotency_window_s)
        self._held_bytes = 0
        self._is_closing = False
        self._log_again_s = 0.0
        self._unlogged = 0
        self._http: Any = None
        self._server: asyncio.Server | None = None

    # Called by any thread.

    def start(self) -> None:
        self._thread.run(self._start(), _START_S)

    def settle(self, records: Sequence[Record], refusal: Refusal | None) -> None:
        offsets = [record.offset for record in records]
        self._thread.loop.call_soon_threadsafe(self._settle, offsets, refusal)

    def remember(self, records: Sequence[Record]) -> None:
        """Take these stored records into account: a request that brings one of them again is a repeat."""
        found = [(self._reader.record_id(each), digest_of(each.value)) for each in records]
        keys = [(digest_of(key), digest) for key, digest in found if key is not None]
        self._thread.loop.call_soon_threadsafe(self._remember, keys)

    async def close(self) -> None:
        """Stop accepting requests, and tell those who wait for an answer to send again."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        self._settle(list(self._waiting), _CLOSING)
        if self._http is not None:
            await self._http.shutdown(_DRAIN_S)

    # Called in the loop.

    async def _start(self) -> None:
        settings, host = self._settings, self._url.host
        server = _limited_server(self._web, settings.max_connections, settings.retry_after_s, settings.idle_timeout_s)
        self._http = server(
            self._handle,
            access_log=None,
            logger=_quiet_logger(),
            auto_decompress=False,
            keepalive_timeout=settings.idle_timeout_s,
            lingering_time=_DRAIN_S,
        )
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._http, host.name, host.port, ssl=self._tls, backlog=_BACKLOG, reuse_address=True,
                ssl_handshake_timeout=_HANDSHAKE_S if self._tls is not None else None,
            )  # fmt: skip
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
                raise BrokerUnavailableError(
                    f"cannot listen at {self._url.shown}: {os.strerror(error.errno)}. Stop the program that uses the "
                    "address, or choose another one"
                ) from error
            raise ConfigError(f"cannot listen at {self._url.shown}: {error.strerror or error}") from error

    async def _handle(self, request: Any) -> Any:
        self._http.began(request.protocol)
        try:
            if request.path == self._settings.health_path and self._settings.health_path:
                return self._health(request)
            return await self._record(request)
        except _Answer as answer:
            return self._response(answer.status, str(answer), answer.headers)
        except Exception:
            logger.exception("a request to %s failed", self._url.shown)
            return self._response(500, "the receiver failed: send it again later")

    def _health(self, request: Any) -> Any:
        if request.method not in ("GET", "HEAD"):
            raise _Answer(405, f"{request.method} is not allowed here", Allow="GET, HEAD")
        if self._is_busy():
            return self._response(503, _BUSY, {"Retry-After": str(self._settings.retry_after_s)})
        return self._response(200, "accepting records")

    async def _record(self, request: Any) -> Any:
        if request.path != self._path:
            raise _Answer(404, "there is nothing at this path")
        if request.method not in _METHODS:
            raise _Answer(405, f"{request.method} is not allowed here", Allow=", ".join(_METHODS))
        self._check_login(request.headers)
        if self._is_busy():
            raise self._busy(_BUSY)
        sent = await self._body(request)
        self._held_bytes += len(sent)
        try:
            body = self._decoded(request.headers.get("Content-Encoding", "").strip().lower(), sent)
            self._check_signature(request.headers, sent, body)
            return await self._stored(request.headers, body)
        finally:
            self._held_bytes -= len(sent)

    def _is_busy(self) -> bool:
        return self._is_closing or self._held_bytes >= self._settings.buffer_bytes

    def _check_login(self, headers: Any) -> None:
        expected = []
        if self._token is not None:
            expected.append(f"Bearer {self._token}")
        if self._url.user is not None:
            login = f"{self._url.user}:{self._url.password or ''}".encode()
            expected.append(f"Basic {base64.b64encode(login).decode()}")
        if not expected:
            return
        given = headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not any(hmac.compare_digest(each.encode(), given) for each in expected):
            self._log_refused("a wrong or missing token or password")
            raise _Answer(401, "the token or password is missing or wrong", WWW_Authenticate=expected[0].split()[0])

    async def _body(self, request: Any) -> bytes:
        limit = self._settings.max_body_bytes
        too_large = _Answer(413, f"the body is larger than {limit} bytes", Connection="close")
        if (request.content_length or 0) > limit:
            raise too_large
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # nothing of the answer has been sent
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.idle_timeout_s):
                while chunk := await request.content.read(_CHUNK_BYTES):
                    size += len(chunk)
                    if size > limit:
                        raise too_large
                    if self._held_bytes + size > self._settings.buffer_bytes:
                        raise self._busy(_BUSY)
                    chunks.append(chunk)
        except TimeoutError:
            raise _Answer(
                408, f"the body took longer than {self._settings.idle_timeout_s:g} s", Connection="close"
            ) from None
        except (self._web.RequestPayloadError, ConnectionError) as error:
            raise _Answer(400, f"the body is incomplete or malformed: {error}", Connection="close") from error
        return b"".join(chunks)

    def _decoded(self, encoding: str, sent: bytes) -> bytes:
        if encoding in ("", "identity"):
            return sent
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise _Answer(415, f"the content encoding {encoding} is not supported", Accept_Encoding="gzip, deflate")
        limit = self._settings.max_body_bytes
        try:
            inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # the header says which of the two it is
            body = inflate.decompress(sent, limit + 1)
        except zlib.error as error:
            raise _Answer(400, f"the body cannot be decompressed: {error}") from error
        if len(body) > limit:
            raise _Answer(413, f"the decompressed body is larger than {limit} bytes")
        if not inflate.eof or inflate.unused_data:
            raise _Answer(400, "the compressed body ends too early, or goes on after its end")
        return body

    def _check_signature(self, headers: Any, sent: bytes, body: bytes) -> None:
        secrets = self._secrets.current()
        if not secrets:
            return
        settings, now_s = self._settings, self._clock.wall_ms() / 1000
        problem = problem_with(settings.signature, secrets, headers, sent, now_s, settings.tolerance_s)
        if problem and body is not sent:  # most senders that compress sign what they compressed
            problem = problem_with(settings.signature, secrets, headers, body, now_s, settings.tolerance_s)
        if problem:
            self._log_refused(problem)
            raise _Answer(401, problem)

    async def _stored(self, given: Any, body: bytes) -> Any:
        value = None if given.get(messages.NULL) == "true" and not body else body
        headers = self._reader.headers(given)
        sent_id = self._reader.request_id(given, body) if self._settings.idempotency_keys else None
        repeat_key = None if sent_id is None else digest_of(sent_id)  # which are short, however long the ids are
        digest = b""
        if repeat_key is not None:
            digest = digest_of(value)
            known = self._repeats.find(repeat_key, self._clock.monotonic_s())
            if known is not None:
                if known.digest != digest:
                    raise _Answer(422, "the idempotency key was used before, with another body")
                if known.under_way is None:
                    return self._response(200, "stored before")
                return await self._outcome(known.under_way)
        if len(self._waiting) >= _MOST_UNANSWERED:  # the listener does not answer
            self._settle([next(iter(self._waiting))], Refusal("no answer", again=True))
        waiting = _Waiting(repeat_key, len(body))

        def wait_for(records: Sequence[Record]) -> None:
            self._waiting[records[0].offset] = waiting

        arrived = (value, self._reader.key(given, body), headers, messages.timestamp_ms(given, self._clock.wall_ms()))
        if not self.records.put_request([arrived], wait_for):
            raise self._busy(_BUSY)
        self._held_bytes += waiting.size_bytes
        if repeat_key is not None:
            self._repeats.begin(repeat_key, digest, waiting)
        return await self._outcome(waiting)

    async def _outcome(self, waiting: _Waiting) -> Any:
        timeout_s = self._settings.answer_timeout_s
        if not waiting.outcome.done():
            await asyncio.wait([waiting.outcome], timeout=timeout_s)
        if not waiting.outcome.done():
            raise _Answer(504, f"not answered within {timeout_s:g} s: whether it is stored is unknown; send it again")
        refusal = waiting.outcome.result()
        if refusal is None:
            return self._response(200, "stored")
        if refusal is _CLOSING:
            raise _Answer(504, refusal.reason, Retry_After=str(self._settings.retry_after_s))
        if refusal.again:
            raise self._busy(f"not stored: {refusal.reason}; send it again later")
        raise _Answer(422, refusal.reason)

    def _settle(self, offsets: Sequence[int], refusal: Refusal | None) -> None:
        now_s = self._clock.monotonic_s()
        for offset in offsets:
            waiting = self._waiting.pop(offset, None)
            if waiting is None:
                continue
            self._held_bytes -= waiting.size_bytes
            if waiting.key is not None:
                if refusal is None:
                    self._repeats.stored(waiting.key, now_s)
                else:
                    self._repeats.failed(waiting.key)
            waiting.outcome.set_result(refusal)

    def _remember(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        now_s = self._clock.monotonic_s()
        for key, digest in keys:
            self._repeats.add(key, digest, now_s)

    def _busy(self, text: str) -> _Answer:
        return _Answer(503, text, Retry_After=str(self._settings.retry_after_s))

    def _response(self, status: int, text: str, headers: dict[str, str] | None = None) -> Any:
        body = msgspec.json.encode({"status" if status < 300 else "error": text})
        response = self._web.Response(status=status, body=body, headers=headers, content_type="application/json")
        if headers is not None and headers.get("Connection") == "close":
            response.force_close()
        return response

    def _log_refused(self, problem: str) -> None:
        """Log one line for all requests refused in a while, so that a stranger cannot fill the log."""
        self._unlogged += 1
        now_s = self._clock.monotonic_s()
        if now_s >= self._log_again_s:
            logger.warning("%s refused %d requests, the last one for %s", self._url.shown, self._unlogged, problem)
            self._log_again_s = now_s + _LOG_EVERY_S
            self._unlogged = 0

    def _check_exposure(self) -> None:
        settings = self._settings
        has_login = settings.is_signed or self._token is not None or self._url.user is not None
        is_safe = self._tls is not None and (has_login or settings.ca_file is not None)
        check_exposure(
            self._url.host.name,
            what=f"listening at {self._url.shown}",
            exposes="send records here, or read them under way",
            allow="use https: with a certificate and a secret (secret_env, token_env or ca_file), or add insecure=true",
            insecure=settings.insecure or is_safe,
        )


def _quiet_logger() -> logging.Logger:
    """A logger for aiohttp that leaves out tracebacks of malformed requests, of which strangers may send any number."""
    quiet = logging.getLogger(f"{__name__}.malformed")
    quiet.setLevel(logging.CRITICAL)
    return quiet


def import_aiohttp() -> Any:
    try:
        importlib.import_module("aiohttp.web")
        return importlib.import_module("aiohttp")
    except ImportError as error:
        raise MissingExtraError("a channel on http: or https:", "http") from error


def _limited_server(web: Any, most: int, retry_after_s: int, head_timeout_s: float) -> Any:
    """aiohttp's server with a limit of connections, and of the time until the first request of each.

    Every version of aiohttp closes connections that are idle after a request; not every version closes those that never
    send one.
    """
    answer = (
        f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: {retry_after_s}\r\nContent-Length: 0\r\n"
        "Connection: close\r\n\r\n"
    ).encode()

    class LimitedServer(web.Server):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._timers: dict[Any, asyncio.TimerHandle] = {}

        def connection_made(self, handler: Any, transport: Any) -> None:
            super().connection_made(handler, transport)
            if len(self.connections) > most:
                transport.write(answer)
                transport.close()
            else:
                timer = asyncio.get_running_loop().call_later(head_timeout_s, transport.close)
                self._timers[handler] = timer

        def connection_lost(self, handler: Any, error: BaseException | None = None) -> None:
            self.began(handler)
            super().connection_lost(handler, error)

        def began(self, handler: Any) -> None:
            """A request arrived on this connection."""
            timer = self._timers.pop(handler, None)
            if timer is not None:
                timer.cancel()

    return LimitedServer
