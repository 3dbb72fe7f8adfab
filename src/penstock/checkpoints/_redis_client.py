"""Reaching Redis: the client, what Redis must be like to keep checkpoints, and its errors in our words."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from penstock.errors import ConfigError, MissingExtraError, PenstockError, StoreUnavailableError

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
_ATTEMPTS: Final = 3
_SHORTEST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


def import_redis() -> Any:
    try:
        return importlib.import_module("redis")
    except ImportError:
        raise MissingExtraError("keeping checkpoints in Redis", "redis") from None


def shown(url: str) -> str:
    """A URL as people may see it: without the password."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigError(f"{parts.scheme}: is no Redis URL; one begins with {', '.join(SCHEMES)}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def split_options(url: str) -> tuple[str, dict[str, Any]]:
    """The URL as redis-py wants it, and those options in it that are ours, read."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    theirs = urlencode([pair for pair in pairs if pair[0] not in OPTIONS])
    ours: dict[str, Any] = {}
    for name, value in pairs:
        if name in OPTIONS:
            try:
                ours[name] = OPTIONS[name](value)
            except (ValueError, KeyError):
                raise ConfigError(f"{shown(url)}: {value!r} is no value for {name}") from None
    return parts._replace(query=theirs).geturl(), ours


def connect(url: str, cluster: bool, timeout_s: float, where: str) -> Any:
    """A client for the URL. Nothing is sent yet, except to a cluster, whose nodes are asked for."""
    redis = import_redis()
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
    except import_redis().RedisError as error:
        raise in_our_words(error, where) from error
    except (TypeError, ValueError) as error:
        # redis-py hands what stands in a URL on to its connections, which refuse what they do not know when made.
        if isinstance(error, TypeError) and "unexpected keyword" not in str(error):
            raise
        raise ConfigError(f"{where}: the URL cannot be used: {error}") from None


class RedisServer:
    """A client and its scripts. Every error that comes out of it is one of ours."""

    def __init__(self, client: Any, where: str, wait_replicas: int, wait_timeout_s: float) -> None:
        self._client = client
        self.where = where
        self._is_cluster = hasattr(client, "get_primaries")
        self._wait_replicas = wait_replicas
        self._wait_timeout_s = wait_timeout_s
        if self._is_cluster and wait_replicas:
            raise ConfigError(
                "wait_replicas cannot be used with a Redis cluster: redis-py sends WAIT on a connection of its own, "
                "where it means nothing. Set min-replicas-to-write on the servers"
            )
        encoder = client.encoder if hasattr(client, "encoder") else client.get_encoder()
        if encoder.decode_responses:
            raise ConfigError(
                "the Redis client given has decode_responses=True, but checkpoints are bytes: leave it out"
            )

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """The client, to send commands that are no scripts."""
        with errors_in_our_words(self.where):
            yield self._client

    def run(self, script: str, keys: Sequence[str], arguments: Sequence[bytes | str], must_last: bool = False) -> Any:
        """Run a script by its digest, or by its text where the server does not have it (any more).

        `must_last`: as many replicas as were asked for have it when this returns.
        """
        with self.client() as client:
            digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
            if not (must_last and self._wait_replicas):
                try:
                    return client.evalsha(digest, len(keys), *keys, *arguments)
                except import_redis().exceptions.NoScriptError:
                    return client.eval(script, len(keys), *keys, *arguments)
            # WAIT speaks of what its own connection has written, and a pipeline keeps to one.
            pipeline = client.pipeline(transaction=False)
            pipeline.eval(script, len(keys), *keys, *arguments)
            pipeline.execute_command("WAIT", self._wait_replicas, int(self._wait_timeout_s * 1000))
            answer, replicas = pipeline.execute()
        if replicas < self._wait_replicas:
            raise StoreUnavailableError(
                f"{self.where}: {replicas} of {self._wait_replicas} replicas have confirmed the write within "
                f"{self._wait_timeout_s:g} s. Look at the replicas, or ask for fewer with wait_replicas"
            )
        return answer

    def check(self) -> None:
        """Refuse a Redis that would forget checkpoints while it runs; warn of one that would when it restarts."""
        for node, memory in self._info("memory").items():
            policy = str(memory.get("maxmemory_policy", ""))
            if memory.get("maxmemory", 0) and policy.startswith("allkeys"):
                raise ConfigError(
                    f"{node} may throw checkpoints away when its memory is full (maxmemory-policy {policy}). "
                    "Use a Redis with noeviction or one of the volatile policies for them"
                )
        for node, persistence in self._info("persistence").items():
            if not persistence.get("aof_enabled", 0):
                logger.warning(
                    "%s has no append-only file: checkpoints saved since its last snapshot are gone when it "
                    "restarts. Set appendonly yes, and appendfsync always to survive a power cut",
                    node,
                )

    def _info(self, section: str) -> Mapping[str, Mapping[str, Any]]:
        """What each server that can be written to says about itself; nothing where we are not allowed to ask."""
        with self.client() as client:
            try:
                if not self._is_cluster:
                    return {self.where: client.info(section)}
                return {
                    f"Redis at {node.name}": client.info(section, target_nodes=node) for node in client.get_primaries()
                }
            except import_redis().exceptions.NoPermissionError:
                logger.warning(
                    "%s does not allow INFO: whether it keeps what it is given cannot be checked", self.where
                )
                return {}


def in_our_words(error: Exception, where: str) -> PenstockError:
    """What went wrong, and what to do: StoreUnavailableError where trying again may help, ConfigError where not."""
    named = import_redis().exceptions
    text = str(error) or type(error).__name__
    if isinstance(error, named.AuthenticationError | named.NoPermissionError | named.AuthorizationError):
        return ConfigError(f"{where} does not let us in: {text}. Check user, password and their ACL")
    if "unknown command" in text.lower():
        return ConfigError(f"{where} is too old, or has commands switched off; 6.2 or newer is needed: {text}")
    if "WRONGTYPE" in text:
        return ConfigError(f"{where}: {text}. Something else uses keys of this prefix: choose another one")
    if isinstance(error, named.OutOfMemoryError):
        return StoreUnavailableError(f"{where} is full: {text} Give it more memory (maxmemory)")
    if isinstance(error, named.ReadOnlyError):
        return StoreUnavailableError(f"{where} is a replica, perhaps since a failover: {text}")
    return StoreUnavailableError(f"{where} cannot be reached, or refuses for now: {text}")
