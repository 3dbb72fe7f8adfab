"""The HTTP interface by which receivers register.

| request | effect |
|---|---|
| `POST /webhooks`, `{"url": ..., "events": ["order.*"], "secret": ...}` | registers, once a challenge came back |
| `GET /webhooks`, `GET /webhooks/ID` | shows all receivers, or one |
| `DELETE /webhooks/ID` | removes a receiver |
| `POST /webhooks/ID/enable` | sends to a disabled receiver again, once a challenge came back |
| `POST /webhooks/ID/rotate` | gives it a new secret |
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Any, Final

import msgspec

from penstock.abc import Clock
from penstock.channels.http.receiver import import_aiohttp
from penstock.channels.http.settings import HttpSettings, server_tls
from penstock.channels.http.signatures import check_secret, new_secret, token_of
from penstock.channels.webhooks.delivery import verify
from penstock.channels.webhooks.registry import RegisteredReceiver, Registry, check_events, check_url
from penstock.channels.webhooks.settings import WebhooksSettings
from penstock.errors import BrokerUnavailableError, ConfigError, PenstockError
from penstock.model.addresses import check_exposure, host_and_port

_PATH: Final = "/webhooks"
_LONGEST_BODY_BYTES: Final = 20_000
_BODY_S: Final = 10.0
_AT_ONCE: Final = 20
"""How many registrations are verified at a time."""


class RegistrationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request to register."""

    url: str
    events: list[str] = msgspec.field(default_factory=lambda: ["*"])
    secret: str | None = None


class _Problem(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class RegistrationServer:
    """Serves `settings.register`. Everything but the constructor runs in the loop."""

    def __init__(self, registry: Registry, settings: WebhooksSettings, clock: Clock) -> None:
        assert settings.register is not None
        self._web = import_aiohttp().web
        self._registry = registry
        self._settings = settings
        self._clock = clock
        self._host, self._port = host_and_port(settings.register, "register", "127.0.0.1:8090")
        http = HttpSettings(token_env=settings.token_env, cert_file=settings.cert_file, key_file=settings.key_file)
        self._token = token_of(http)
        self._tls = None if settings.cert_file is None else server_tls(http, settings.register)
        check_exposure(
            self._host,
            what=f"register={settings.register}",
            exposes="register for your records",
            allow="add cert_file, key_file and token_env, or insecure=true",
            insecure=settings.insecure or (self._tls is not None and self._token is not None),
        )
        self._verifying = asyncio.Semaphore(_AT_ONCE)
        self._http: Any = None
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._http = self._web.Server(self._handle, access_log=None, keepalive_timeout=_BODY_S)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._http, self._host, self._port, ssl=self._tls, reuse_address=True
            )
        except OSError as error:
            raise BrokerUnavailableError(
                f"receivers cannot register at {self._settings.register}: {error.strerror or error}"
            ) from error

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._http.shutdown(1.0)

    async def _handle(self, request: Any) -> Any:
        try:
            self._check_login(request.headers.get("Authorization", ""))
            status, found = await self._answer(request)
        except _Problem as problem:
            status, found = problem.status, {"error": str(problem)}
        except ConfigError as error:
            status, found = 422, {"error": str(error)}
        except PenstockError as error:
            status, found = 503, {"error": str(error)}
        body = b"" if found is None else msgspec.json.encode(found)
        return self._web.Response(status=status, body=body, content_type="application/json")

    def _check_login(self, given: str) -> None:
        if self._token is None:
            return
        if not hmac.compare_digest(f"Bearer {self._token}".encode(), given.encode("utf-8", "surrogateescape")):
            raise _Problem(401, "the token is missing or wrong")

    async def _answer(self, request: Any) -> tuple[int, Any]:
        parts = request.path.removeprefix(_PATH).strip("/").split("/")
        if not request.path.startswith(_PATH) or len(parts) > 2:
            raise _Problem(404, "there is nothing at this path")
        receiver_id, what = parts[0], parts[1] if len(parts) == 2 else ""
        if not receiver_id:
            if request.method == "GET":
                return 200, [each.shown() for each in await asyncio.to_thread(self._registry.receivers)]
            if request.method == "POST":
                return 201, await self._register(await self._body(request))
            raise _Problem(405, f"{request.method} is not allowed here")
        try:
            receiver = await asyncio.to_thread(self._registry.receiver, receiver_id)
        except ConfigError:
            raise _Problem(404, "no such receiver is registered") from None
        return await self._change(request.method, what, receiver)

    async def _body(self, request: Any) -> RegistrationRequest:
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.content.read(_LONGEST_BODY_BYTES)
                while not request.content.at_eof() and len(body) < _LONGEST_BODY_BYTES:
                    body += await request.content.read(_LONGEST_BODY_BYTES - len(body))
            return msgspec.json.decode(body, type=RegistrationRequest)
        except TimeoutError:
            raise _Problem(408, "the body took too long") from None
        except msgspec.DecodeError as error:
            raise _Problem(400, f"the body is not a registration: {error}") from error

    async def _register(self, asked: RegistrationRequest) -> dict[str, Any]:
        async with self._verifying:
            receiver = await register(self._registry, self._settings, self._clock, asked)
        return {**receiver.shown(), "secret": receiver.secrets[0]}

    async def _change(self, method: str, what: str, receiver: RegisteredReceiver) -> tuple[int, Any]:
        if not what and method == "GET":
            return 200, receiver.shown()
        if not what and method == "DELETE":
            await asyncio.to_thread(self._registry.remove, receiver.id)
            return 204, None
        if what == "enable" and method == "POST":
            async with self._verifying:
                await enable(self._registry, self._settings, self._clock, receiver)
            return 200, (await asyncio.to_thread(self._registry.receiver, receiver.id)).shown()
        if what == "rotate" and method == "POST":
            return 200, {"secret": await asyncio.to_thread(self._registry.rotate, receiver.id)}
        raise _Problem(404 if what not in ("", "enable", "rotate") else 405, f"{method} is not allowed here")


async def register(
    registry: Registry, settings: WebhooksSettings, clock: Clock, asked: RegistrationRequest
) -> RegisteredReceiver:
    """Register a receiver that the settings allow, once it has returned a challenge. Raises ConfigError."""
    check_url(asked.url, allow_http=settings.allow_http)
    check_events(asked.events)
    secret = asked.secret or new_secret()
    check_secret("standard", secret, "the registration")
    await _challenge(asked.url, (secret,), settings, clock)
    return await asyncio.to_thread(registry.register, asked.url, asked.events, secret, settings.max_receivers)


async def enable(registry: Registry, settings: WebhooksSettings, clock: Clock, receiver: RegisteredReceiver) -> None:
    """Send to a disabled receiver again, once it has returned a challenge. Raises ConfigError."""
    await _challenge(receiver.url, receiver.secrets, settings, clock)
    await asyncio.to_thread(registry.enable, receiver.id)


async def _challenge(url: str, secrets: tuple[str, ...], settings: WebhooksSettings, clock: Clock) -> None:
    if settings.verify and (problem := await verify(url, secrets, settings, clock)):
        raise ConfigError(f"the receiver did not return the challenge: {problem}")
