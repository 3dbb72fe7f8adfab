"""The Redis client, the checks of its configuration, and the translation of its errors."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from penstock.errors import ConfigError, PenstockError, StoreUnavailableError
from penstock.streams.redis.client import check_persistence, import_redis

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
    """A client for the URL. Sends nothing yet, except to a cluster, whose nodes it looks up."""
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
