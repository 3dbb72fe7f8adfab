"""Asks RabbitMQ 4, by its management node, which delivery limit a queue has, and warns of that which it has by default.

The node takes requests in the form of HTTP: a pair of links of one name, one for requests and one for answers.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from penstock.queues.amqp1.settings import Amqp1Settings
from penstock.queues.amqp1.wire import import_proton
from penstock.queues.delivery_limits import LIMIT, warn_of_default_limit

_NODE: Final = "/management"
_PAIR: Final = "penstock-management"
_ANSWERS_TO: Final = "$me"
_NO_BODY: Final = b"\x00\x53\x77\x40"
"""An AMQP value that is null, which RabbitMQ insists on and proton omits."""
_VHOST: Final = "vhost:"


class LimitCheck:
    """One request, in a session of its own, so that a refusal ends nothing else. Used by the connection's thread."""

    def __init__(self, connection: Any, shown: str, queue: str, settings: Amqp1Settings, version: str) -> None:
        self._proton = import_proton()
        self._shown = shown
        self._queue = queue
        virtual_host = settings.virtual_host or ""
        self._vhost = virtual_host.removeprefix(_VHOST) if virtual_host.startswith(_VHOST) else "/"
        self._version = version
        self._session = connection.session()
        self._session.open()
        self._is_asked = False
        self._sender = self._session.sender(_PAIR)
        self._receiver = self._session.receiver(_PAIR)
        for link, mine, other in (
            (self._sender, self._sender.source, self._sender.target),
            (self._receiver, self._receiver.target, self._receiver.source),
        ):
            mine.address, other.address = _ANSWERS_TO, _NODE
            link.snd_settle_mode = link.SND_SETTLED
            link.properties = {self._proton.symbol("paired"): True}
            link.open()
        self._receiver.flow(1)

    def takes(self, context: Any) -> bool:
        """Handle an event if its object belongs to the request."""
        link = getattr(context, "link", context)
        if getattr(link, "session", link) != self._session:
            return False
        if context == self._sender and self._sender.credit > 0 and not self._is_asked:
            self._ask()
        elif link is not context and link == self._receiver and context.readable and not context.partial:
            self._read(context)
        return True

    def _ask(self) -> None:
        self._is_asked = True
        request = self._proton.Message(
            id=1, subject="GET", address=f"/queues/{quote(self._queue, safe='')}", reply_to=_ANSWERS_TO
        )
        delivery = self._sender.delivery("1")
        self._sender.stream(request.encode() + _NO_BODY)
        self._sender.advance()
        delivery.settle()

    def _read(self, delivery: Any) -> None:
        answer = self._proton.Message()
        answer.decode(self._receiver.recv(delivery.pending))
        delivery.settle()
        self._session.close()
        found = answer.body if answer.subject == "200" else {}
        if found.get("type") == "quorum" and LIMIT not in found.get("arguments", {}):
            warn_of_default_limit(self._shown, self._vhost, self._queue, self._version)
