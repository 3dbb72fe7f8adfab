"""A connection to NATS: nats-py in an event loop that runs in a thread of its own, and its errors in our words.

nats-py does not reconnect here. A connection that breaks fails everything that waits for it, at once, and the next call
makes a new one: so every call is bounded, and nobody waits for an answer that was lost with an old connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import secrets
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from penstock.errors import BrokerUnavailableError, ConfigError, NotAllowedError, StreamError
from penstock.streams.adapting.loop_thread import LoopThread
from penstock.streams.adapting.servers import import_extra
from penstock.streams.backend_url import BackendUrl
from penstock.streams.nats.settings import NatsSettings

logger = logging.getLogger(__name__)

CALL_S: Final = 60.0
"""The most that any call may take beyond the time it is meant to wait: it is bounded by other limits before."""
_PING_S: Final = 5
_PINGS: Final = 2
_FULL: Final = (10023, 10028, 10047)
"""Errors of JetStream: no resources, memory or storage is left."""
_OLDEST: Final = (2, 10)
"""The version of nats-server that got metadata of streams, where the number of partitions stands."""
_RESETS: Final = 5
"""How often a connection is tried that the server closes before it is ready."""

Request = tuple[str, bytes, dict[str, str] | None]
"""Subject, payload and headers."""
R = TypeVar("R")


class NatsApiError(StreamError):
    """JetStream refused a request."""

    def __init__(self, where: str, error: Mapping[str, Any]) -> None:
        self.code = int(error.get("code", 0))
        self.err_code = int(error.get("err_code", 0))
        super().__init__(f"{where}: {error.get('description', 'unknown error')} (error {self.err_code})")


class Answers:
    """Collects the messages that answer one or more requests."""

    def __init__(self, count: int) -> None:
        self.messages: list[Any] = [None] * count
        self.missing = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self, index: int, message: Any) -> None:
        if self.messages[index] is None:
            self.messages[index] = message
            self.missing -= 1
            if not self.missing and not self.done.done():
                self.done.set_result(None)


class Pulled(Answers):
    """Collects up to `count` messages of a consumer, or fewer and a status."""

    def __init__(self, count: int) -> None:
        super().__init__(0)
        self.missing = count
        self.status = ""
        self.description = ""

    def take(self, index: int, message: Any) -> None:
        headers = message.headers
        if headers and "Status" in headers and not message.data:
            self.status, self.description = headers["Status"], headers.get("Description", "")
            self.missing = 0
        else:
            self.messages.append(message)
            self.missing -= 1
        if self.missing <= 0 and not self.done.done():
            self.done.set_result(None)


class Inbox:
    """Holds the messages of one consumer as they arrive."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.pulled: Pulled | None = None
        self.subscription: Any = None

    async def receive(self, message: Any) -> None:
        if self.pulled is not None:
            self.pulled.take(0, message)


class NatsConnection:
    """One connection, from its start to its end. Used in the event loop only."""

    def __init__(self, where: str, nats: Any) -> None:
        self.where = where
        self.nats = nats
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.problem: Exception | None = None
        """The last thing that nats-py complained about."""
        self._tokens = itertools.count()
        self._waiting: dict[str, Answers] = {}
        self._inbox = ""

    async def open(self) -> None:
        self._inbox = self.nats.new_inbox()
        await self.nats.subscribe(f"{self._inbox}.>", cb=self._receive, pending_msgs_limit=0, pending_bytes_limit=0)

    @property
    def is_usable(self) -> bool:
        return bool(self.nats.is_connected) and not self.lost.done()

    async def open_inbox(self) -> Inbox:
        """A place for messages of consumers, which come under their own subjects."""
        inbox = Inbox(self.nats.new_inbox())
        inbox.subscription = await self.nats.subscribe(
            inbox.subject, cb=inbox.receive, pending_msgs_limit=0, pending_bytes_limit=0
        )
        return inbox

    async def pull(self, inbox: Inbox, subject: str, payload: bytes, pulled: Pulled, timeout_s: float) -> None:
        """Ask a consumer for messages, and wait for them."""
        inbox.pulled = pulled
        await self.nats.publish(subject, payload, reply=inbox.subject)
        await self._wait(pulled, timeout_s)

    async def drop(self, inbox: Inbox, consumer: str) -> None:
        """Forget an inbox and its consumer, if that can be done now; the server forgets idle consumers by itself."""
        try:
            await inbox.subscription.unsubscribe()
            await self.nats.publish(consumer, b"")
        except Exception as error:  # nats-py raises many kinds when a connection ends
            logger.debug("%s: a consumer could not be deleted: %s", self.where, error)

    async def ask(self, requests: Sequence[Request], answers: Answers, timeout_s: float) -> None:
        """Send requests, and wait for their answers. BrokerUnavailableError when not all come in time."""
        token = str(next(self._tokens))
        self._waiting[token] = answers
        try:
            for index, (subject, payload, headers) in enumerate(requests):
                await self.nats.publish(subject, payload, reply=f"{self._inbox}.{token}.{index}", headers=headers)
            await self._wait(answers, timeout_s)
        finally:
            del self._waiting[token]

    async def _wait(self, answers: Answers, timeout_s: float) -> None:
        await asyncio.wait({answers.done, self.lost}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if answers.done.done():
            return
        problem = str(self.problem or "")
        if "permissions violation" in problem.lower():
            self.problem = None
            raise NotAllowedError(f"{self.where}: {problem}. Change the permissions of this user")
        what = "closed the connection" if self.lost.done() else f"did not answer within {timeout_s:g} s"
        self.give_up()
        raise BrokerUnavailableError(f"{self.where} {what}: {problem or 'is it running?'}")

    def give_up(self) -> None:
        """Fail all waiting calls. The next call connects again."""
        if not self.lost.done():
            self.lost.set_result(None)

    async def close(self) -> None:
        self.give_up()
        try:
            await asyncio.wait_for(self.nats.close(), 2.0)
        except Exception as error:
            logger.debug("%s: the connection could not be closed well: %s", self.where, error)

    async def _receive(self, message: Any) -> None:
        token, _, index = message.subject[len(self._inbox) + 1 :].partition(".")
        answers = self._waiting.get(token)
        if answers is not None:
            answers.take(int(index), message)


class NatsClient:
    """Runs calls from any thread in the client's event loop."""

    def __init__(self, url: BackendUrl, settings: NatsSettings) -> None:
        self._nats = import_extra("nats", "NATS JetStream", "nats")
        if url.password and not (url.user or os.environ.get("NATS_USER")):
            raise ConfigError(f"{url.shown}: a password needs a user: nats://USER:PASSWORD@HOST; a token stands alone")
        self._url = url
        self._settings = settings
        self.where = f"NATS at {','.join(map(str, url.hosts))}"
        self.prefix = f"$JS.{settings.domain}.API" if settings.domain else "$JS.API"
        self._thread = LoopThread("nats", f"the connection to {self.where}", "connect again")
        self._link: NatsConnection | None = None
        self._connecting = asyncio.Lock()

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float = 0.0) -> R:
        """The result of a coroutine in the loop. `timeout_s`: how long it may wait for something to happen."""
        try:
            return self._thread.run(work, timeout_s + CALL_S)
        except self._nats.errors.Error as error:
            raise BrokerUnavailableError(f"{self.where} is unavailable: {error}") from error

    async def link(self) -> NatsConnection:
        """The connection; a broken one is replaced."""
        async with self._connecting:
            if self._link is not None and self._link.is_usable:
                return self._link
            if self._link is not None:
                await self._link.close()
                self._link = None
            self._link = await self._connect()
            return self._link

    async def api(self, what: str, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer of JetStream to a request such as `STREAM.INFO.orders`. NatsApiError if it refuses."""
        link = await self.link()
        answers = Answers(1)
        payload = json.dumps(request).encode() if request is not None else b""
        await link.ask([(f"{self.prefix}.{what}", payload, None)], answers, self._settings.timeout_s)
        message = answers.messages[0]
        if message.headers and message.headers.get("Status") == "503":
            raise BrokerUnavailableError(
                f"{self.where} does not answer for JetStream: is it enabled on the server, and for this account?"
            )
        answer: dict[str, Any] = json.loads(message.data)
        if "error" in answer:
            raise self.refusal(answer["error"])
        return answer

    def refusal(self, error: Mapping[str, Any]) -> StreamError | BrokerUnavailableError:
        """The error to raise for an error of JetStream."""
        refused = NatsApiError(self.where, error)
        if refused.err_code in _FULL:
            return BrokerUnavailableError(f"{refused}. Make room on the server's disk, or raise its max_file_store")
        if refused.code == 503 or refused.err_code in (10008, 10009):
            return BrokerUnavailableError(str(refused))
        return refused

    def close(self) -> None:
        self._thread.close(self._close_link())

    async def _close_link(self) -> None:
        if self._link is not None:
            await self._link.close()

    async def _connect(self) -> NatsConnection:
        """A new connection. A server that refuses a login closes it at once, and at times nats-py finds it closed
        before it has read why: only then it is tried again."""
        for _ in range(_RESETS):
            with contextlib.suppress(ConnectionResetError):
                return await self._connect_once()
        raise BrokerUnavailableError(
            f"{self.where} closes connections before they are ready. Check user and password or token in the URL"
        )

    async def _connect_once(self) -> NatsConnection:
        client = self._nats.NATS()
        if self._url.scheme == "tls" or self._settings.tls_ca or self._settings.tls_cert:
            self._demand_tls(client)
        link = NatsConnection(self.where, client)

        async def complain(error: Exception) -> None:
            link.problem = error

        async def closed() -> None:
            link.give_up()

        try:
            options = self._options()
            opening = client.connect(error_cb=complain, closed_cb=closed, disconnected_cb=closed, **options)
            await asyncio.wait_for(opening, 2 * self._settings.timeout_s)
            self._check_version(client)
            await link.open()
        except BrokerUnavailableError:
            await link.close()
            raise
        except self._nats.errors.AuthorizationError as error:
            await link.close()
            raise self._refused_login(error) from error
        except (self._nats.errors.Error, OSError, TimeoutError) as error:
            await link.close()
            problem = link.problem or error
            if "authorization" in str(problem).lower() or "authentication" in str(problem).lower():
                raise self._refused_login(problem) from error
            if isinstance(problem, ConnectionResetError):
                raise problem from error
            raise BrokerUnavailableError(
                f"{self.where} is unavailable: {str(problem) or type(problem).__name__}. Is it running, and is the URL "
                "right?"
            ) from error
        return link

    def _demand_tls(self, client: Any) -> None:
        """Refuse a server that does not offer TLS, before it is told user and password. nats-py uses TLS when the
        server requires it, and else goes on without, whatever the URL says."""
        process = client._process_info

        async def process_with_tls(info: dict[str, Any], initial_connection: bool = False) -> None:
            if initial_connection and not info.get("tls_required"):
                if not info.get("tls_available"):
                    raise BrokerUnavailableError(
                        f"{self.where} has no TLS. Configure it on the server, or connect without: write nats://, and "
                        "omit tls_ca and tls_cert",
                        retriable=False,
                    )
                info["tls_required"] = True
            await process(info, initial_connection)

        client._process_info = process_with_tls

    def _check_version(self, client: Any) -> None:
        found = client.connected_server_version
        if (found.major, found.minor) < _OLDEST:
            raise BrokerUnavailableError(
                f"{self.where} has nats-server {found.major}.{found.minor}.{found.patch}, which is too old: "
                f"{_OLDEST[0]}.{_OLDEST[1]} or newer is needed. Upgrade it",
                retriable=False,
            )

    def _refused_login(self, error: Exception) -> BrokerUnavailableError:
        return BrokerUnavailableError(
            f"{self.where} refused the login: {error}. Check user and password or token in the URL, the credentials "
            "file, or NATS_USER and NATS_PASSWORD",
            retriable=False,
        )

    def _options(self) -> dict[str, Any]:
        """The options of nats-py."""
        url, settings = self._url, self._settings
        options: dict[str, Any] = {
            "servers": [f"{url.scheme}://{host}" for host in url.hosts],
            "name": "penstock",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0.05,
            "connect_timeout": settings.timeout_s,
            "ping_interval": _PING_S,
            "max_outstanding_pings": _PINGS,
            "user_credentials": settings.credentials or os.environ.get("NATS_CREDS") or None,
            "nkeys_seed": settings.nkey or os.environ.get("NATS_NKEY") or None,
        }
        user, password = url.user or os.environ.get("NATS_USER"), url.password or os.environ.get("NATS_PASSWORD")
        if user and password:
            options |= {"user": user, "password": password}
        elif user:
            options["token"] = user
        context = self._tls()
        if context is not None:
            options["tls"] = context
        return options

    def _tls(self) -> ssl.SSLContext | None:
        settings, variables = self._settings, os.environ
        authority = settings.tls_ca or variables.get("NATS_CA")
        certificate = settings.tls_cert or variables.get("NATS_CERT")
        if self._url.scheme != "tls" and not authority and not certificate:
            return None
        try:
            context = ssl.create_default_context(cafile=authority)
            if certificate:
                context.load_cert_chain(certificate, settings.tls_key or variables.get("NATS_KEY"))
        except OSError as error:
            raise BrokerUnavailableError(
                f"{self.where}: the certificates of tls_ca, tls_cert or tls_key cannot be read: {error}",
                retriable=False,
            ) from error
        return context


def new_name() -> str:
    """A name that nobody else uses."""
    return secrets.token_hex(8)
