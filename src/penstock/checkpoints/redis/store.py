"""Checkpoints in Redis: each step is one script, and so atomic."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
import re
import secrets
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from penstock.checkpoints.fencing import FEATURES, check_lease_of, check_owner, fenced, in_use, lease_named
from penstock.checkpoints.format import (
    corrupt,
    decode_checkpoint,
    decode_history,
    encode_checkpoint,
    encode_history,
    id_bytes,
)
from penstock.checkpoints.redis import scripts
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    FencedError,
    GroupError,
    PenstockError,
    StoreUnavailableError,
)
from penstock.model import Change, Checkpoint, CheckpointKey, HistoryEntry, Lease, Pointer
from penstock.streams.redis.client import check_persistence, import_redis

if TYPE_CHECKING:
    import redis

logger = logging.getLogger(__name__)

SCHEMES: Final = ("redis", "rediss", "unix")
OPTIONS: Final[Mapping[str, Callable[[str], Any]]] = {
    "cluster": {"true": True, "false": False}.__getitem__,
    "prefix": str,
    "timeout_s": float,
    "wait_replicas": int,
    "wait_timeout_s": float,
}
"""The options of a URL that are ours; the others are redis-py's."""
WHAT: Final = "checkpoints in Redis"
_ATTEMPTS: Final = 3
_SHORTEST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


def shown(url: str) -> str:
    """A URL without the password."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"{parts.scheme}: is not a Redis URL, which begins with {', '.join(SCHEMES)}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def split_options(url: str) -> tuple[str, dict[str, Any]]:
    """The URL for redis-py, and our own options in it, parsed."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    theirs = urlencode([pair for pair in pairs if pair[0] not in OPTIONS])
    ours: dict[str, Any] = {}
    for name, value in pairs:
        if name in OPTIONS:
            try:
                ours[name] = OPTIONS[name](value)
            except (ValueError, KeyError):
                raise ConfigError(f"{shown(url)}: {value!r} is not a value for {name}") from None
    return parts._replace(query=theirs).geturl(), ours


def connect(url: str, cluster: bool, timeout_s: float, where: str) -> Any:
    """A client for the URL. Nothing is sent yet, except to a cluster, whose nodes are looked up."""
    redis = import_redis(WHAT)
    backoff = importlib.import_module("redis.backoff")
    retry = importlib.import_module("redis.retry").Retry(
        backoff.ExponentialWithJitterBackoff(base=_SHORTEST_PAUSE_S, cap=_LONGEST_PAUSE_S), _ATTEMPTS
    )
    make = redis.RedisCluster.from_url if cluster else redis.Redis.from_url
    with errors_in_our_words(where):
        return make(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=retry)


@contextlib.contextmanager
def errors_in_our_words(where: str) -> Iterator[None]:
    try:
        yield
    except import_redis(WHAT).RedisError as error:
        raise translated_error(error, where) from error
    except (TypeError, ValueError) as error:
        # redis-py passes unknown URL options to its connections, which refuse them when they are created.
        if isinstance(error, TypeError) and "unexpected keyword" not in str(error):
            raise
        raise ConfigError(f"{where}: the URL cannot be used: {error}") from None


class RedisServer:
    """A client and its scripts. Raises only Penstock's errors."""

    def __init__(self, client: Any, where: str, wait_replicas: int, wait_timeout_s: float) -> None:
        self._client = client
        self.where = where
        self._is_cluster = hasattr(client, "get_primaries")
        self._wait_replicas = wait_replicas
        self._wait_timeout_s = wait_timeout_s
        if self._is_cluster and wait_replicas:
            raise ConfigError(
                "wait_replicas cannot be used with a Redis cluster: redis-py sends WAIT on a separate connection, "
                "where it has no effect. Set min-replicas-to-write on the servers"
            )
        encoder = client.encoder if hasattr(client, "encoder") else client.get_encoder()
        if encoder.decode_responses:
            raise ConfigError("the Redis client has decode_responses=True, but checkpoints are bytes: omit it")

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """The client, for commands that are not scripts."""
        with errors_in_our_words(self.where):
            yield self._client

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[bytes | str], must_last: bool = False) -> Any:
        """Run a script by its digest, or by its text if the server does not have it (any more).

        `must_last`: return only when the requested number of replicas have it.
        """
        with self.client() as client:
            digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
            if not (must_last and self._wait_replicas):
                try:
                    return client.evalsha(digest, len(keys), *keys, *arguments)
                except import_redis(WHAT).exceptions.NoScriptError:
                    return client.eval(script, len(keys), *keys, *arguments)
            # WAIT covers the writes of its own connection, and a pipeline uses a single one.
            pipeline = client.pipeline(transaction=False)
            pipeline.eval(script, len(keys), *keys, *arguments)
            pipeline.execute_command("WAIT", self._wait_replicas, int(self._wait_timeout_s * 1000))
            answer, replicas = pipeline.execute()
        if replicas < self._wait_replicas:
            raise StoreUnavailableError(
                f"{self.where}: {replicas} of {self._wait_replicas} replicas confirmed the write within "
                f"{self._wait_timeout_s:g} s. Check the replicas, or lower wait_replicas"
            )
        return answer

    def check(self) -> None:
        """Refuse a Redis that may evict checkpoints; warn about one that loses them when it restarts."""
        persistence = self._info("persistence")
        for node, memory in self._info("memory").items():
            check_persistence(node, "checkpoints", memory, persistence.get(node, {}))

    def _info(self, section: str) -> Mapping[str, Mapping[str, Any]]:
        """INFO of each primary; empty where it is not permitted."""
        with self.client() as client:
            try:
                if not self._is_cluster:
                    return {self.where: client.info(section)}
                return {
                    f"Redis at {node.name}": client.info(section, target_nodes=node) for node in client.get_primaries()
                }
            except import_redis(WHAT).exceptions.NoPermissionError:
                logger.warning(
                    "%s does not permit INFO: its eviction policy and persistence cannot be checked", self.where
                )
                return {}


def translated_error(error: Exception, where: str) -> PenstockError:
    """Translate an error: StoreUnavailableError where a retry may help, ConfigError where not."""
    named = import_redis(WHAT).exceptions
    text = str(error) or type(error).__name__
    if isinstance(error, named.AuthenticationError | named.NoPermissionError | named.AuthorizationError):
        return ConfigError(f"{where} refused the login: {text}. Check user, password and their ACL")
    if "unknown command" in text.lower():
        return ConfigError(f"{where} is too old, or has commands disabled; 6.2 or newer is required: {text}")
    if "WRONGTYPE" in text:
        return ConfigError(f"{where}: {text}. Another program uses keys with this prefix: choose another one")
    if isinstance(error, named.OutOfMemoryError):
        return StoreUnavailableError(f"{where} is full: {text} Give it more memory (maxmemory)")
    if isinstance(error, named.ReadOnlyError):
        return StoreUnavailableError(f"{where} is a replica, perhaps since a failover: {text}")
    return StoreUnavailableError(f"{where} is unavailable: {text}")


PAGE_LINES: Final = 1000
"""How many history entries are read, and how many ids are looked up, at once."""
LEASES_PER_SCAN: Final = 10_000
_GLOB: Final = re.compile(r"([\\*?\[\]^])")
"""Characters with a meaning in Redis' patterns."""
_ESCAPED: Final = r"\\\1"


class RedisCheckpoints:
    """Checkpoints in Redis 6.2 or newer, or a compatible server: alone, with replicas, or a cluster.

    Takes a URL (`redis://`, `rediss://`, `unix://`), whose query may contain the options below, which take precedence
    over the arguments, and options of redis-py; or a redis-py client, which the caller closes.

    - `prefix` ("penstock"): the prefix of all keys.
    - `cluster` (False): the URL names a node of a Redis cluster. All keys of a group have the same hash tag, and so the
      same slot, so a group is on one node.
    - `wait_replicas` (0): claims and saves return when this many replicas have them; StoreUnavailableError after
      `wait_timeout_s` (1 s). Without it, a failover may lose the last saves, as replication is asynchronous: records
      are then handled again.
    - `timeout_s` (5 s): for a connection, and for an answer.

    Saves survive the death of every client. To survive the death of Redis itself they need `appendonly yes`, and to
    survive a power failure `appendfsync always`; with `everysec` up to two seconds are lost. Opening warns when there
    is no append-only file, and refuses a server that may evict any key (`maxmemory-policy allkeys-...`).
    """

    features = FEATURES

    def __init__(
        self,
        url_or_client: str | redis.Redis | redis.RedisCluster,
        *,
        prefix: str = "penstock",
        cluster: bool = False,
        wait_replicas: int = 0,
        wait_timeout_s: float = 1.0,
        timeout_s: float = 5.0,
    ) -> None:
        self._is_ours = isinstance(url_or_client, str)
        self._is_closed = False
        where = "Redis"
        if isinstance(url_or_client, str):
            where = f"Redis at {shown(url_or_client)}"
            url, options = split_options(url_or_client)
            prefix = options.get("prefix", prefix)
            cluster = options.get("cluster", cluster)
            timeout_s = options.get("timeout_s", timeout_s)
            wait_replicas = options.get("wait_replicas", wait_replicas)
            wait_timeout_s = options.get("wait_timeout_s", wait_timeout_s)
        if not prefix or set(prefix) & set("{}"):
            raise ConfigError(f"prefix={prefix!r} must be a non-empty string without braces")
        if wait_replicas < 0 or wait_timeout_s <= 0 or timeout_s <= 0:
            raise ConfigError("wait_replicas must not be negative, and wait_timeout_s and timeout_s must be positive")
        self._client: Any = url_or_client
        if isinstance(url_or_client, str):
            self._client = connect(url, cluster, timeout_s + (wait_timeout_s if wait_replicas else 0.0), where)
        self._prefix = prefix
        self._server = RedisServer(self._client, where, wait_replicas, wait_timeout_s)
        try:
            self._server.check()
        except BaseException:
            self.close()
            raise

    def claim(self, group: str, name: str, owner: str, seen: Lease | None) -> Lease | None:
        check_owner(owner)
        if seen is None:
            # The index of groups is in another slot, so it cannot change in the same script. It is written first: an
            # extra name is harmless, because `groups` checks each.
            with self._redis() as client:
                client.sadd(self._index, group)
        was = ("0", "", "", "") if seen is None else ("1", str(seen.epoch), str(seen.beat), seen.owner)
        keys = [self._key(group, "leases"), self._key(group, "floor")]
        epoch = self._run(scripts.CLAIM, keys, [name, *was, owner, secrets.token_hex(8)], must_last=True)
        return None if epoch is None else Lease(group, name, owner, int(epoch), 0)

    def renew(self, lease: Lease) -> Lease:
        beat = self._run(scripts.RENEW, [self._key(lease.group, "leases")], [lease.name, lease.owner, str(lease.epoch)])
        if beat is None:
            raise self._fenced(lease)
        return Lease(lease.group, lease.name, lease.owner, lease.epoch, int(beat))

    def release(self, lease: Lease) -> None:
        self._run(scripts.RELEASE, [self._key(lease.group, "leases")], [lease.name, lease.owner, str(lease.epoch)])

    def leases(self, group: str, prefix: str = "") -> Sequence[Lease]:
        key = self._key(group, "leases")
        with self._redis() as client:
            if prefix:
                stored = dict(client.hscan_iter(key, match=f"{_GLOB.sub(_ESCAPED, prefix)}*", count=LEASES_PER_SCAN))
            else:
                stored = client.hgetall(key)
        return sorted((_lease(group, name.decode(), text) for name, text in stored.items()), key=lambda each: each.name)

    def forget_lease(self, lease: Lease) -> None:
        like_this = [lease.name, lease.owner, str(lease.epoch), str(lease.beat)]
        self._run(scripts.FORGET_LEASE, [self._key(lease.group, "leases")], like_this)

    def load(self, key: CheckpointKey) -> Checkpoint | None:
        with self._redis() as client:
            data = client.hget(self._key(key.group, "checkpoints"), _field(key))
        return None if data is None else decode_checkpoint(data, key)

    def save(self, lease: Lease, key: CheckpointKey, change: Change) -> None:
        check_lease_of(lease, key)
        parts = [
            encode_checkpoint(change.checkpoint),
            _packed(text for name, value in change.state.items() if value is not None for text in (name, value)),
            _packed(name for name, value in change.state.items() if value is None),
            _packed(b"%d " % line.ended_ms + encode_history((line,)) for line in change.history),
            _packed(text for each in change.handled for text in (b"%d" % each.at_ms, id_bytes(each.id))),
            _time(change.forget_handled_before_ms),
            _time(change.forget_history_before_ms),
        ]
        # Saving the same change again, after an unknown outcome, adds no second history entries.
        digest = hashlib.blake2b(_packed(parts) + b"%d" % lease.epoch, digest_size=16).digest()
        arguments: list[bytes | str] = [lease.name, lease.owner, str(lease.epoch), _field(key), parts[0], digest]
        arguments += parts[1:]
        keys = [self._key(key.group, room) for room in ("leases", "checkpoints", "changes")]
        keys += [self._state_key(key), self._history_key(key), self._handled_key(key.group, key.topic)]
        if self._run(scripts.SAVE, keys, arguments, must_last=True) == b"fenced":
            raise self._fenced(lease)

    def checkpoints(self, group: str) -> Mapping[CheckpointKey, Checkpoint]:
        with self._redis() as client:
            stored = client.hgetall(self._key(group, "checkpoints"))
        keyed = {_checkpoint_key(group, field.decode()): data for field, data in stored.items()}
        return {key: decode_checkpoint(data, key) for key, data in keyed.items()}

    def groups(self) -> Sequence[str]:
        with self._redis() as client:
            names = sorted(name.decode() for name in client.smembers(self._index))
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.exists(self._key(name, "leases"), self._key(name, "checkpoints"))
            return [name for name, count in zip(names, pipeline.execute(), strict=True) if count]

    def forget(self, group: str) -> None:
        for _ in range(_FORGET_ATTEMPTS):
            with self._redis() as client:
                fields = [field.decode() for field in client.hkeys(self._key(group, "checkpoints"))]
            keys = [_checkpoint_key(group, field) for field in fields]
            doomed = [self._key(group, room) for room in ("leases", "floor", "checkpoints", "changes")]
            doomed += [name for key in keys for name in (self._state_key(key), self._history_key(key))]
            doomed += sorted({self._handled_key(group, key.topic) for key in keys})
            outcome, *details = (text.decode() for text in self._run(scripts.FORGET_GROUP, doomed, fields))
            if outcome == "forgotten":
                return
            if outcome == "held":
                name, owner = details
                raise in_use(Lease(group, name, owner, 0, 0))
        raise GroupError(f"the group {group!r} is in use: it changed {_FORGET_ATTEMPTS} times while it was deleted")

    def state(self, key: CheckpointKey) -> Mapping[bytes, bytes]:
        with self._redis() as client:
            found: dict[bytes, bytes] = client.hgetall(self._state_key(key))
        return found

    def handled(self, group: str, topic: str, ids: Collection[str]) -> frozenset[str]:
        asked = list(ids)
        known: set[str] = set()
        with self._redis() as client:
            for first in range(0, len(asked), PAGE_LINES):
                page = asked[first : first + PAGE_LINES]
                times = client.zmscore(self._handled_key(group, topic), [id_bytes(each) for each in page])
                known.update(each for each, time in zip(page, times, strict=True) if time is not None)
        return frozenset(known)

    def history(self, key: CheckpointKey, pointer: Pointer | None = None, limit: int = 1000) -> Sequence[HistoryEntry]:
        newest_first: list[HistoryEntry] = []
        for line in self._lines_backwards(key):
            if len(newest_first) >= limit:
                break
            if pointer is None or line.first <= pointer < line.end:
                newest_first.append(line)
        return newest_first[::-1]

    def close(self) -> None:
        self._is_closed = True
        if self._is_ours:
            self._client.close()

    def _lines_backwards(self, key: CheckpointKey) -> Iterator[HistoryEntry]:
        """From the newest entry on; entries added meanwhile do not interfere."""
        keys = [self._key(key.group, "changes"), self._history_key(key)]
        total, passed = b"", 0
        while True:
            arguments: list[bytes | str] = [_field(key), total, str(passed), str(PAGE_LINES)]
            total, since, page = self._run(scripts.LINES, keys, arguments)
            for data in reversed(page):
                for line in decode_history(data.partition(b" ")[2], key):
                    if not since or line.ended_ms >= int(since):
                        yield line
            if len(page) < PAGE_LINES:
                return
            passed += PAGE_LINES

    def _fenced(self, lease: Lease) -> FencedError:
        return fenced(lease, lease_named(lease.name, self.leases(lease.group, lease.name)))

    @property
    def _index(self) -> str:
        return f"{self._prefix}:groups"

    def _key(self, group: str, room: str) -> str:
        # Quoted, so that no group can break the hash tag or be mistaken for another one.
        return f"{self._prefix}:{{{quote(group, safe='')}}}:{room}"

    def _state_key(self, key: CheckpointKey) -> str:
        return self._key(key.group, f"state:{_field(key)}")

    def _history_key(self, key: CheckpointKey) -> str:
        return self._key(key.group, f"history:{_field(key)}")

    def _handled_key(self, group: str, topic: str) -> str:
        return self._key(group, f"handled:{topic}")

    def _redis(self) -> AbstractContextManager[Any]:
        if self._is_closed:
            raise ConnectionClosedError("the checkpoint store is closed")
        return self._server.client()

    def _run(self, script: str, keys: Sequence[str], arguments: Sequence[bytes | str], must_last: bool = False) -> Any:
        if self._is_closed:
            raise ConnectionClosedError("the checkpoint store is closed")
        return self._server.run(script, keys, arguments, must_last)


_FORGET_ATTEMPTS: Final = 5


def _field(key: CheckpointKey) -> str:
    return f"{key.topic}:{key.partition}"


def _checkpoint_key(group: str, field: str) -> CheckpointKey:
    topic, _, partition = field.rpartition(":")
    return CheckpointKey(group, topic, int(partition))


def _lease(group: str, name: str, text: bytes) -> Lease:
    try:
        epoch, beat, _, owner = text.decode().split(" ", 3)
        return Lease(group, name, owner, int(epoch), int(beat))
    except ValueError as error:
        raise corrupt(f"the lease {name!r} of group {group!r}", str(error)) from error


def _packed(texts: Iterable[bytes]) -> bytes:
    """Many texts as one argument, each after its length, because Redis limits the number of arguments."""
    return b"".join(piece for text in texts for piece in (_LENGTH.pack(len(text)), text))


_LENGTH: Final = struct.Struct(">I")


def _time(time_ms: int | None) -> bytes:
    return b"" if time_ms is None else b"%d" % time_ms
