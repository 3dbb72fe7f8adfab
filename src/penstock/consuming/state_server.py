"""The keyed state of an app's handlers over HTTP: each key is answered by the member that owns its partition.

Members find each other by what their group keeps anyway: the lease of each partition in the checkpoint store has the
name of its owner, and that name ends with the address where the member answers. A member shows state only as it was
saved with a checkpoint, so nothing that a failed transaction takes back, and only of partitions that it surely has.
"""

from __future__ import annotations

import contextlib
import heapq
import http.client
import logging
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock.consuming.handler_consumer import HandlerConsumer
from penstock.consuming.lease_groups.membership import member_name
from penstock.consuming.workers.snapshots import SNAPSHOT_KEY
from penstock.errors import ConfigError, PenstockError, SerdeError
from penstock.model import CheckpointKey
from penstock.model.addresses import host_and_port, is_loopback
from penstock.model.json_server import JsonAnswer, JsonServer
from penstock.producing.partitioners import partition_of_key
from penstock.serde.plain import PlainSerde

logger = logging.getLogger(__name__)

MEMBER_HEADER: Final = "Penstock-Member"
"""In a request that a member forwards: who must answer it. In an answer: who has answered."""
_AGAIN_S: Final = 1
_ASK_S: Final = 3.0
"""How long another member may take to answer."""
_OWNERS_S: Final = 1.0
"""How long the owners of partitions are remembered."""
_MOST_KEYS: Final = 1_000
"""The keys of an answer, unless `limit` asks for fewer."""


class StateServer(JsonServer):
    """Answers requests about the state of handlers, as far as possible from the members of their groups."""

    def __init__(
        self, address: str, consumers: Callable[[], Sequence[HandlerConsumer] | None], *, insecure: bool
    ) -> None:
        """`consumers` returns those that run; None before they were started."""
        self._consumers = consumers
        self._owners = _Owners()
        super().__init__(
            self._answer,
            address,
            what="the state",
            exposes="read the state of your handlers",
            allow="pass insecure_endpoints=True",
            insecure=insecure,
        )
        host, port = host_and_port(self.address, "the address of the state", "127.0.0.1:8080")
        if host in ("0.0.0.0", "::"):
            host = socket.gethostname()
        self._shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def member_name(self) -> str:
        """A unique name of a group's member, by which other members find this server."""
        return f"{member_name()}@{self._shown}"

    def _answer(self, target: str, headers: Message) -> JsonAnswer:
        path, _, query = target.partition("?")
        consumers = self._consumers()
        if consumers is None:
            return _later("the app is starting or stopping")
        asked = headers.get(MEMBER_HEADER)
        if asked is not None and asked not in {each.member for each in consumers}:
            return _later("another process answers at this address now")
        try:
            answer = self._find(consumers, path, _Question.of(query, asked))
        except _NotFoundError as error:
            answer = JsonAnswer(HTTPStatus.NOT_FOUND, {"error": str(error)})
        except ConfigError as error:
            answer = JsonAnswer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except PenstockError as error:
            answer = _later(str(error))
        return answer if asked is None else answer._replace(headers={**answer.headers, MEMBER_HEADER: asked})

    def _find(self, consumers: Sequence[HandlerConsumer], path: str, question: _Question) -> JsonAnswer:
        first, _, rest = path.removeprefix("/").partition("/")
        if first != "state":
            raise _NotFoundError("there are /state, /state/TOPIC and /state/TOPIC/KEY")
        if not rest:
            return JsonAnswer(HTTPStatus.OK, {"handlers": [_about(each) for each in consumers]})
        name, has_key, key = rest.partition("/")
        consumer = _chosen(consumers, _text(name), question)
        if not consumer.is_running:
            return _later(f"handler {consumer.handler.name} is starting, or has ended")
        if not consumer.keeps_state:
            raise _NotFoundError(
                f"handler {consumer.handler.name} has no state by key: ctx.state needs order='partition' or 'key', no "
                "processes, and a checkpoint store that keeps state"
            )
        if has_key:
            return self._key(consumer, urllib.parse.unquote_to_bytes(key), path, question)
        if question.partitions:
            return self._keys(consumer, path, question)
        return JsonAnswer(HTTPStatus.OK, {**_about(consumer), "partitions": self._partitions(consumer)})

    def _key(self, consumer: HandlerConsumer, key: bytes, path: str, question: _Question) -> JsonAnswer:
        """The state of a key: from here, or else from the member that has it."""
        keys = _encoded_keys(consumer, key)
        wanted = question.partitions or sorted(self._owners.of(consumer))
        elsewhere = []
        for partition in wanted:
            saved = consumer.saved_state(partition)
            if saved is None:
                elsewhere.append(partition)
                continue
            for each in keys:
                if (encoded := saved.get(each)) is not None and each != SNAPSHOT_KEY:
                    headers = {MEMBER_HEADER: consumer.member}
                    return JsonAnswer(HTTPStatus.OK, msgspec.msgpack.decode(encoded), headers)
        likely = partition_of_key(keys[0], len(wanted))  # for Kafka's clients; others choose in other ways
        elsewhere.sort(key=lambda partition: partition != likely)
        found = self._elsewhere(consumer, elsewhere, path, question)
        if found is not None:
            return found
        of = ", ".join(map(str, sorted(wanted)))
        raise _NotFoundError(f"there is no state of the key {_shown_key(key)!r} in the partitions {of}")

    def _keys(self, consumer: HandlerConsumer, path: str, question: _Question) -> JsonAnswer:
        """A page of the keys of a partition, in the order of their bytes, with their states."""
        if len(question.partitions) > 1:
            raise ConfigError("ask for the keys of one partition")
        [partition] = question.partitions
        saved = consumer.saved_state(partition)
        if saved is None:
            found = self._elsewhere(consumer, [partition], path, question)
            assert found is not None  # a partition is never missing in a listing
            return found
        after = question.after
        keys = [each for each in list(saved) if each != SNAPSHOT_KEY and (after is None or each > after)]
        page = heapq.nsmallest(question.limit, keys)
        states = ((each, saved.get(each)) for each in page)  # one that is gone now was deleted meanwhile
        found_keys = [
            {"key": _shown_key(each), "state": msgspec.msgpack.decode(encoded)}
            for each, encoded in states
            if encoded is not None
        ]
        more = len(keys) > len(page) and bool(page)
        after_text = urllib.parse.quote(page[-1], safe="") if more else None
        told = {"partition": partition, "keys": found_keys, "total": len(saved) - (SNAPSHOT_KEY in saved)}
        return JsonAnswer(HTTPStatus.OK, {**told, "after": after_text}, {MEMBER_HEADER: consumer.member})

    def _elsewhere(
        self, consumer: HandlerConsumer, partitions: Sequence[int], path: str, question: _Question
    ) -> JsonAnswer | None:
        """What the owners of these partitions say; None: none of them has the key."""
        if not partitions:
            return None
        if question.member is not None:  # only the member that was asked first forwards
            return _later(f"{consumer.member} does not own the partitions {_numbers(partitions)} now")
        owners = self._owners.of(consumer)
        if unknown := [each for each in partitions if each not in owners]:
            raise _NotFoundError(f"topic {consumer.topic_stream.topic!r} has no partition {_numbers(unknown)}")
        unanswered: list[str] = []
        by_owner: dict[_Owner | None, list[int]] = {}
        for partition in partitions:
            by_owner.setdefault(owners[partition], []).append(partition)
        for owner, theirs in by_owner.items():
            answer = None if owner is None or owner.name == consumer.member else owner.ask(path, question, theirs)
            if answer is None or answer.status is HTTPStatus.SERVICE_UNAVAILABLE:
                unanswered.append(_why_not(owner, theirs, consumer.member))
            elif answer.status is not HTTPStatus.NOT_FOUND:
                return answer
        if unanswered:
            self._owners.forget(consumer)
            return _later("; ".join(unanswered))
        return None

    def _partitions(self, consumer: HandlerConsumer) -> list[dict[str, Any]]:
        """Who owns each partition, and how many keys those of this member have."""
        found = []
        for partition, owner in sorted(self._owners.of(consumer).items()):
            saved = consumer.saved_state(partition)
            name = consumer.member if saved is not None else None if owner is None else owner.name
            told: dict[str, Any] = {"partition": partition, "member": name}
            if saved is not None:
                told["keys"] = len(saved) - (SNAPSHOT_KEY in saved)
            found.append(told)
        return found


class _NotFoundError(Exception):
    """There is no such thing, and nobody else has it."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What a request asks for besides its path."""

    member: str | None
    """Who must answer, if another member forwards the request."""
    partitions: tuple[int, ...] = ()
    handler: str | None = None
    group: str | None = None
    limit: int = _MOST_KEYS
    after: bytes | None = None

    @classmethod
    def of(cls, query: str, member: str | None) -> _Question:
        given: dict[str, Any] = {}
        for part in filter(None, query.split("&")):
            name, _, value = part.replace("+", " ").partition("=")
            text = _text(value)
            if name == "partition" and all(each.isascii() and each.isdigit() for each in text.split(",")):
                given["partitions"] = tuple(sorted({int(each) for each in text.split(",")}))
            elif name == "limit" and text.isascii() and text.isdigit():
                given["limit"] = min(int(text), _MOST_KEYS)
            elif name == "after":
                given["after"] = urllib.parse.unquote_to_bytes(value)
            elif name in ("handler", "group"):
                given[name] = text
            else:
                raise ConfigError(
                    f"{_text(part)!r} is not one of handler=NAME, group=NAME, partition=N, limit=N and after=KEY"
                )
        return cls(member, **given)

    def forwarded(self, partitions: Sequence[int]) -> str:
        """The query with which another member is asked."""
        asked: dict[str, Any] = {"partition": ",".join(map(str, partitions)), "limit": self.limit}
        asked |= {name: each for name in ("handler", "group", "after") if (each := getattr(self, name)) is not None}
        return urllib.parse.urlencode(asked, quote_via=urllib.parse.quote)


@dataclass(frozen=True, slots=True)
class _Owner:
    """A member of the group, by its name in leases."""

    name: str

    @property
    def address(self) -> str | None:
        """Where it can be asked from here; None: nowhere."""
        name, at, address = self.name.rpartition("@")
        if not at:
            return None
        host = address.rpartition(":")[0]
        return address if not is_loopback(host) or name.rsplit("-", 2)[0] == socket.gethostname() else None

    def ask(self, path: str, question: _Question, partitions: Sequence[int]) -> JsonAnswer | None:
        """Its answer; None without one."""
        if self.address is None:
            return None
        host, port = host_and_port(self.address, "the address of a member", "127.0.0.1:8080")
        with contextlib.closing(http.client.HTTPConnection(host, port, timeout=_ASK_S)) as connection:
            try:
                target = f"{path}?{question.forwarded(partitions)}"
                connection.request("GET", target, headers={MEMBER_HEADER: self.name})
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException) as error:
                logger.info("%s does not answer: %s", self.name, error)
                return None
        if response.getheader(MEMBER_HEADER) != self.name:
            logger.info("%s: another process answers at its address", self.name)
            return None
        return JsonAnswer(HTTPStatus(response.status), body, {MEMBER_HEADER: self.name})


class _Owners:
    """The owner of each partition, as the leases say. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Mapping[int, _Owner | None]]] = {}
        """By the name of the consumer that asked: until when it counts, and the owners."""

    def of(self, consumer: HandlerConsumer) -> Mapping[int, _Owner | None]:
        """None for a partition without an owner."""
        with self._lock:
            until_s, known = self._known.get(consumer.member, (0.0, {}))
            if time.monotonic() >= until_s:
                known = dict(self._looked_up(consumer))
                self._known[consumer.member] = (time.monotonic() + _OWNERS_S, known)
            return known

    def forget(self, consumer: HandlerConsumer) -> None:
        """Look again at the next question."""
        with self._lock:
            self._known.pop(consumer.member, None)

    def _looked_up(self, consumer: HandlerConsumer) -> Iterator[tuple[int, _Owner | None]]:
        topic = consumer.topic_stream.topic
        leases = consumer.store.leases(consumer.group, prefix=f"partition:{topic}:")
        owners = {lease.name: lease.owner for lease in leases}
        for partition in consumer.topic_stream.partitions():
            owner = owners.get(CheckpointKey(consumer.group, topic, partition).lease_name)
            # In a group of leases, the owner is the member's name, a slash, and a number for each time that it joined.
            yield partition, _Owner(owner.partition("/")[0]) if owner else None


def _chosen(consumers: Sequence[HandlerConsumer], topic: str, question: _Question) -> HandlerConsumer:
    """The consumer of the topic, and of the handler or group if there are several."""
    of_topic = [each for each in consumers if topic in (each.handler.topic.name, each.topic_stream.topic)]
    if not of_topic:
        names = ", ".join(sorted({each.handler.topic.name for each in consumers})) or "no topic"
        raise _NotFoundError(f"no handler of this app handles topic {topic!r}: it handles {names}")
    found = [
        each
        for each in of_topic
        if question.handler in (None, each.handler.name, _short_name(each)) and question.group in (None, each.group)
    ]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"handler={_short_name(each)}&group={each.group}" for each in of_topic)
    if found:
        raise ConfigError(f"several handlers handle topic {topic!r}: ask for one of {there}")
    raise _NotFoundError(f"topic {topic!r} has other handlers: {there}")


def _short_name(consumer: HandlerConsumer) -> str:
    """The name of the handler's function, without what it is defined in."""
    return consumer.handler.name.rpartition(".")[2]


def _encoded_keys(consumer: HandlerConsumer, key: bytes) -> list[bytes]:
    """The bytes that a key of a URL may mean, likeliest first: itself, or what the topic's serde makes of it."""
    topic = consumer.handler.topic
    if isinstance(topic.key_serde, PlainSerde):
        return [key]
    found: list[bytes] = []
    for value in _values(key):
        with contextlib.suppress(SerdeError):
            encoded = topic.key_serde.encode(value, topic.name)
            found += [encoded] if encoded is not None else []
    return [*found, key]


def _values(key: bytes) -> Iterator[Any]:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        yield msgspec.json.decode(key)
    with contextlib.suppress(UnicodeDecodeError):
        yield key.decode()


def _about(consumer: HandlerConsumer) -> dict[str, Any]:
    return {
        "topic": consumer.handler.topic.name,
        "handler": consumer.handler.name,
        "group": consumer.group,
        "keeps_state": consumer.keeps_state,
    }


def _why_not(owner: _Owner | None, partitions: Sequence[int], here: str) -> str:
    of = f"the partitions {_numbers(partitions)}"
    if owner is None:
        return f"{of} have no owner at the moment"
    if owner.name == here:
        return f"{of} are being assigned to {here}"
    if owner.address is None:
        return f"{owner.name} owns {of}, and serves no state that this host can read: its App needs serve=HOST:PORT"
    return f"{owner.name}, the owner of {of}, does not answer"


def _later(why: str) -> JsonAnswer:
    return JsonAnswer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": why}, {"Retry-After": str(_AGAIN_S)})


def _numbers(partitions: Sequence[int]) -> str:
    return ", ".join(map(str, partitions))


def _shown_key(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def _text(encoded: str) -> str:
    try:
        return urllib.parse.unquote(encoded, errors="strict")
    except UnicodeDecodeError:
        raise ConfigError("the path and the query must be UTF-8, percent-encoded") from None
