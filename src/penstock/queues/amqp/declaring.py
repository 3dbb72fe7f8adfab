"""Declaring queues of RabbitMQ so that they lose nothing, and noticing which of those that exist may.

A queue that is declared here has no delivery limit but the user's; one that exists and has RabbitMQ's own is worth a
warning.

All of it runs in the thread of pika's connection.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.errors import BrokerUnavailableError, PenstockError
from penstock.queues.amqp.settings import AmqpSettings
from penstock.queues.delivery_limits import LIMIT, TYPE, UNLIMITED, has_default_limit, warn_of_default_limit

logger = logging.getLogger(__name__)

OLDEST_FOR_QUORUM: Final = (3, 10)
"""The version of RabbitMQ in which quorum queues got `x-dead-letter-strategy`."""
MOST_ARGUMENTS: Final = 20
"""How many arguments of a queue that exists are asked for."""
_OBJECTION: Final = re.compile(
    r"inequivalent arg '([^']*)' .* current is (?:none|the value '(.*)' of type '(\w+)'|'(.*)')"
)
"""The last form is that of a value that has the type of the one that was declared."""

Argument = str | int | bool | None


class Declaring:
    """How one queue is declared, and checked."""

    def __init__(self, shown: str, vhost: str, queue: str, settings: AmqpSettings) -> None:
        self._shown = shown
        self._vhost = vhost
        self._queue = queue
        self._settings = settings
        self._letters = settings.dead_letters.format(queue=queue)
        self._is_quorum = settings.queue_type == "quorum"
        self._is_checked = not self._is_quorum or not settings.declare

    def declare(
        self, connection: Any, on_closed: Callable[[Any, Any], None], then: Callable[[Any], None]
    ) -> PenstockError | None:
        """Declare the queue, and before it that for its dead letters unless there is one. `then` gets the channel of
        it, which calls `on_closed` if the broker refuses. Returns an error if the queue must not be declared."""
        if (problem := self._too_old(connection)) is not None:
            return problem
        self._is_checked = True
        arguments = self._arguments(connection)

        def declare_after(objection: str) -> None:
            def on_open(channel: Any) -> None:
                channel.add_on_close_callback(on_closed)
                if objection:
                    channel.queue_declare(self._letters, durable=True, arguments=self._type(connection))
                channel.queue_declare(self._queue, durable=True, arguments=arguments, callback=lambda _: then(channel))

            connection.channel(on_open_callback=on_open)

        if self._letters:
            _ask(connection, self._letters, None, declare_after)
        else:
            declare_after("")
        return None

    def check(self, connection: Any, then: Callable[[], None]) -> None:
        """Warn if a queue that exists has a delivery limit that the user has not asked for."""
        limit = self._settings.delivery_limit
        if self._is_checked or (limit is None and not has_default_limit(_version_of(connection))):
            then()
            return
        self._check(connection, self._arguments(connection), MOST_ARGUMENTS, then)

    def _check(self, connection: Any, arguments: Mapping[str, Any], most: int, then: Callable[[], None]) -> None:
        """Find out the queue's limit. To declare it with an argument that it does not have changes nothing, and the
        broker's objection has the value: arguments are corrected by it until only the limit is left."""

        def answered(objection: str) -> None:
            name, value = objected_argument(objection, arguments)
            if name.startswith("x-") and name not in (LIMIT, TYPE) and most:
                others = {key: each for key, each in arguments.items() if key != name}
                self._check(connection, others if value is None else {**others, name: value}, most - 1, then)
                return
            self._is_checked = True
            if name == LIMIT:
                self._warn(connection, value)
            then()

        _ask(connection, self._queue, arguments, answered)

    def _warn(self, connection: Any, limit: Argument) -> None:
        wanted = self._settings.delivery_limit
        if wanted is not None:
            logger.warning(
                "the queue %r at %s exists with %s, so delivery_limit=%d does not apply to it: set the limit by a "
                "policy, or delete the queue and have it declared again",
                self._queue,
                self._shown,
                f"no {LIMIT}" if limit is None else f"{LIMIT}={limit}",
                wanted,
            )
        elif limit is None:
            hint = ". With declare=false, nobody looks at this"
            warn_of_default_limit(self._shown, self._vhost, self._queue, _version_of(connection), hint)

    def _arguments(self, connection: Any) -> dict[str, Any]:
        """Of the queue, when it is declared."""
        arguments = self._type(connection)
        if self._letters:
            arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self._letters}
            if self._is_quorum:
                # Dead letters are confirmed by their queue, too, before the message leaves this one.
                arguments |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        if self._settings.delivery_limit is not None:
            arguments[LIMIT] = self._settings.delivery_limit
        return arguments

    def _type(self, connection: Any) -> dict[str, Any]:
        """What the queue and that for its dead letters have in common."""
        kind: dict[str, Any] = {TYPE: self._settings.queue_type}
        return kind | {LIMIT: UNLIMITED} if self._is_quorum and has_default_limit(_version_of(connection)) else kind

    def _too_old(self, connection: Any) -> PenstockError | None:
        """Why a quorum queue must not be declared: an old RabbitMQ ignores what it does not know about the queue."""
        version = _version_of(connection)
        numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
        if not version or not self._is_quorum or numbers >= OLDEST_FOR_QUORUM:
            return None
        return BrokerUnavailableError(
            f"{self._shown} has RabbitMQ {version}, which is too old: a quorum queue needs 3.10 or newer to confirm "
            "its dead letters. Upgrade it, or set queue_type=classic",
            retriable=False,
        )


def objected_argument(objection: str, arguments: Mapping[str, Any]) -> tuple[str, Argument]:
    """The argument that a queue has otherwise than it was declared, and its value there; None if the queue has none.
    The name is empty if the broker objects to something else."""
    found = _OBJECTION.search(objection)
    if found is None:
        return "", None
    name, value, kind, alike = found.groups()
    if value is None and alike is not None:
        value, kind = alike, "longstr" if isinstance(arguments.get(name), str) else ""
    if kind == "bool":
        return name, value == "true"
    return name, int(value) if kind != "longstr" and value is not None and value.lstrip("-").isdigit() else value


def _ask(connection: Any, queue: str, arguments: Mapping[str, Any] | None, answered: Callable[[str], None]) -> None:
    """Declare a queue, passively without arguments, in a channel of its own. `answered` gets what the broker objects
    to, which is empty if there is such a queue now."""
    is_declared = False

    def on_open(channel: Any) -> None:
        def on_declared(_: Any) -> None:
            nonlocal is_declared
            is_declared = True
            channel.close()
            answered("")

        channel.add_on_close_callback(on_closed)
        channel.queue_declare(queue, arguments is None, True, arguments=arguments, callback=on_declared)

    def on_closed(_: Any, reason: Any) -> None:
        if connection.is_open and not is_declared:
            answered(getattr(reason, "reply_text", "") or str(reason))

    connection.channel(on_open_callback=on_open)


def _version_of(connection: Any) -> str:
    """That of RabbitMQ; empty for another broker."""
    server = connection.server_properties or {}
    return str(server.get("version", "")) if server.get("product") == "RabbitMQ" else ""
