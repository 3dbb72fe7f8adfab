from __future__ import annotations

import logging
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.abc import CheckpointStore
from penstock.checkpoints.redis import store as redis_checkpoints
from penstock.checkpoints.redis.store import RedisCheckpoints
from penstock.errors import (
    ConfigError,
    ConnectionClosedError,
    FencedError,
    MissingExtraError,
    StoreUnavailableError,
)
from penstock.model import Change, Checkpoint, CheckpointKey, Handled, Lease
from penstock.testing.conformance.checkpoints import checkpoint_store
from penstock.testing.conformance.child import Child, Parent
from tests.checkpoints.changes import assert_holds, nth_change, number_in
from tests.redis_server import RedisServer, shared_url
from tests.seeds import seed_of
from tests.servers import free_ports


def open_redis() -> RedisCheckpoints:
    return RedisCheckpoints(shared_url())


def spoil(store: CheckpointStore, key: CheckpointKey) -> None:
    """Flip a bit of the checkpoint that is stored under a key."""
    with redis.Redis.from_url(shared_url()) as client:
        name, field = f"penstock:{{{key.group}}}:checkpoints", f"{key.topic}:{key.partition}"
        data = bytearray(client.hget(name, field) or b"")
        data[-1] ^= 1
        client.hset(name, field, bytes(data))


TestRedis = checkpoint_store(open_redis, spoil=spoil)


@pytest.fixture
def store() -> Iterator[RedisCheckpoints]:
    with closing(open_redis()) as store:
        yield store


def fresh_key() -> CheckpointKey:
    return CheckpointKey(f"group-{uuid.uuid4().hex[:12]}", "topic", 0)


def claimed(store: RedisCheckpoints, key: CheckpointKey, owner: str) -> Lease:
    """The lease, taken from whoever has it."""
    seen = next((lease for lease in store.leases(key.group) if lease.name == key.lease_name), None)
    lease = store.claim(key.group, key.lease_name, owner, seen)
    assert lease is not None
    return lease


def save_for_ever(store: RedisCheckpoints, parent: Parent, group: str, seed: int, first: int) -> None:
    key = CheckpointKey(group, "topic", 0)
    lease = claimed(store, key, f"writer from {first}")
    for number in range(first, 1_000_000):
        store.save(lease, key, nth_change(seed, number))
        parent.send(number)


def test_a_writer_killed_at_any_time_leaves_the_old_checkpoint_or_the_new_one(store: RedisCheckpoints) -> None:
    seed, key = seed_of(), fresh_key()
    rng = random.Random(seed)
    number = 0
    for _ in range(3):
        with Child(open_redis, save_for_ever, key.group, seed, number + 1) as child:
            heard = [child.receive() for _ in range(rng.randrange(1, 40))]
            acknowledged = (heard + child.kill())[-1]
        number = number_in(store, key)
        assert number in (acknowledged, acknowledged + 1)
        assert_holds(store, key, seed, number)


def test_what_was_saved_survives_a_kill_of_redis_itself(tmp_path: Path) -> None:
    seed, key = seed_of(), fresh_key()
    with RedisServer(tmp_path / "redis") as server, closing(RedisCheckpoints(server.url)) as store:
        lease = claimed(store, key, "owner")
        for number in range(1, 30):
            store.save(lease, key, nth_change(seed, number))
        server.kill()
        with pytest.raises(StoreUnavailableError, match="is unavailable"):
            store.save(lease, key, nth_change(seed, 30))
        server.start()
        assert_holds(store, key, seed, 29)
        store.save(lease, key, nth_change(seed, 30))
        assert_holds(store, key, seed, 30)


def test_an_owner_paused_before_it_sends_is_fenced_when_it_goes_on(store: RedisCheckpoints) -> None:
    key, steps = fresh_key(), [RedisCheckpoints.renew, save_first, RedisCheckpoints.release]
    with closing(open_redis()) as other:
        for step in steps:
            lease = claimed(store, key, "old owner")
            with before_the_next_script(store, lambda: claimed(other, key, "new owner")):
                outcome = outcome_of(step, store, lease)
            assert outcome == ("without effect" if step is RedisCheckpoints.release else "fenced")
            assert [each.owner for each in other.leases(key.group)] == ["new owner"]
            assert other.load(key) is None


def save_first(store: RedisCheckpoints, lease: Lease) -> None:
    key = CheckpointKey(lease.group, "topic", 0)
    store.save(lease, key, nth_change(1, 1))


def outcome_of(step: Callable[[RedisCheckpoints, Lease], object], store: RedisCheckpoints, lease: Lease) -> str:
    try:
        step(store, lease)
    except FencedError:
        return "fenced"
    return "without effect"


@contextmanager
def before_the_next_script(store: RedisCheckpoints, happen: Callable[[], object]) -> Iterator[None]:
    """Let something happen when the store has made up its mind, and has sent nothing yet."""
    server: Any = store._server
    run = server.run

    def pause(*arguments: Any, **named: Any) -> Any:
        server.run = run
        happen()
        return run(*arguments, **named)

    server.run = pause
    yield
    server.run = run


class LosesAnswers(redis.Connection):
    """A connection that breaks when the answer to a script has come, and before anybody has seen it."""

    to_lose = 0

    def read_response(self, *arguments: Any, **named: Any) -> Any:
        answer = super().read_response(*arguments, **named)
        if LosesAnswers.to_lose and answer not in (b"OK", b"PONG"):
            LosesAnswers.to_lose -= 1
            connection: Any = self
            connection.disconnect()
            raise redis.ConnectionError("the connection broke")
        return answer


def test_a_script_whose_answer_was_lost_counts_once() -> None:
    seed, key = seed_of(), fresh_key()
    retry = Retry(NoBackoff(), 2)
    port = int(shared_url().rpartition(":")[2].partition("/")[0])
    pool = redis.ConnectionPool(connection_class=LosesAnswers, port=port, retry=retry)
    store = RedisCheckpoints(redis.Redis(connection_pool=pool))
    LosesAnswers.to_lose = 2  # of the index of groups, and of the claim
    lease = store.claim(key.group, key.lease_name, "owner", None)
    assert lease == Lease(key.group, key.lease_name, "owner", 1, 0)
    assert LosesAnswers.to_lose == 0
    for number in range(1, 5):
        LosesAnswers.to_lose = 1
        store.save(lease, key, nth_change(seed, number))
    assert_holds(store, key, seed, 4)
    LosesAnswers.to_lose = 9
    with pytest.raises(StoreUnavailableError, match="the connection broke"):
        store.save(lease, key, nth_change(seed, 5))
    LosesAnswers.to_lose = 0
    store.save(lease, key, nth_change(seed, 5))  # the caller does not know, and tries again
    assert_holds(store, key, seed, 5)
    pool.disconnect()


def test_scripts_that_redis_has_forgotten_are_sent_again(store: RedisCheckpoints) -> None:
    key = fresh_key()
    lease = claimed(store, key, "owner")
    with redis.Redis.from_url(shared_url()) as client:
        client.script_flush()
    store.save(lease, key, nth_change(1, 1))
    assert_holds(store, key, 1, 1)


def test_a_change_of_very_many_entries_is_saved_at_once(store: RedisCheckpoints) -> None:
    key = fresh_key()
    lease = claimed(store, key, "owner")
    state = {b"%d" % each: b"x" * 20 for each in range(30_000)}
    handled = tuple(Handled(f"id-{each}", each) for each in range(30_000))
    store.save(lease, key, Change(Checkpoint(0, 1), state=state, handled=handled))
    assert store.state(key) == state
    assert len(store.handled(key.group, key.topic, [each.id for each in handled])) == 30_000
    gone = dict.fromkeys(list(state)[:29_999])
    store.save(lease, key, Change(Checkpoint(0, 1), state=gone, forget_handled_before_ms=29_990))
    assert store.state(key) == {b"29999": b"x" * 20}
    assert len(store.handled(key.group, key.topic, [each.id for each in handled])) == 10


def test_history_is_whole_while_lines_are_added(store: RedisCheckpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    key = fresh_key()
    lease = claimed(store, key, "owner")
    for number in range(1, 12):
        store.save(lease, key, nth_change(1, number))
    before = list(store.history(key))
    monkeypatch.setattr(redis_checkpoints, "PAGE_LINES", 4)
    lines = store._lines_backwards(key)
    seen = [next(lines)]
    for number in range(12, 20):
        store.save(lease, key, nth_change(1, number))
        seen.append(next(lines))
    seen.extend(lines)
    assert seen[::-1] == before


def test_a_group_keeps_to_one_slot_of_a_cluster(tmp_path: Path) -> None:
    seed = seed_of()
    bus = str(free_ports(1)[0])  # else it is 10,000 above the other, where the system gives ports to clients
    with RedisServer(tmp_path / "redis", "--cluster-enabled", "yes", "--cluster-port", bus) as server:
        with redis.Redis.from_url(server.url) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            poll_until_ok(node, timeout_s=20.0)
        with closing(RedisCheckpoints(f"{server.url}?cluster=true")) as store:
            for group in ("billing", "}{", "{a}", "ü/ %"):
                key = CheckpointKey(group, "topic", 0)
                lease = claimed(store, key, "owner")
                for number in range(1, 4):
                    store.save(lease, key, nth_change(seed, number))
                assert_holds(store, key, seed, 3)
                store.release(lease)
            assert store.groups() == sorted(("billing", "}{", "{a}", "ü/ %"))
            store.forget("{a}")
            assert store.groups() == sorted(("billing", "}{", "ü/ %"))
        with pytest.raises(ConfigError, match="min-replicas-to-write"):
            RedisCheckpoints(f"{server.url}?cluster=true&wait_replicas=1")


def poll_until_ok(node: Any, timeout_s: float) -> None:
    """Until the only node of a cluster has noticed that it has all slots."""
    deadline_s = time.monotonic() + timeout_s
    while node.cluster("INFO")["cluster_state"] != "ok":
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_save_waits_for_the_replicas_asked_for(tmp_path: Path) -> None:
    key = fresh_key()
    with RedisServer(tmp_path / "primary", "--repl-diskless-sync-delay", "0") as primary:
        with closing(RedisCheckpoints(f"{primary.url}?wait_replicas=1&wait_timeout_s=0.05")) as store:
            with pytest.raises(StoreUnavailableError, match="0 of 1 replicas"):
                store.claim(key.group, key.lease_name, "owner", None)
            (lease,) = store.leases(key.group)
            with pytest.raises(StoreUnavailableError, match="0 of 1 replicas"):
                store.save(lease, key, nth_change(1, 1))
        with (
            RedisServer(tmp_path / "replica", "--replicaof", f"127.0.0.1 {primary.port}") as replica,
            closing(RedisCheckpoints(f"{primary.url}?wait_replicas=1&wait_timeout_s=20")) as store,
        ):
            store.save(lease, key, nth_change(1, 1))  # was saved before, and yet it is waited for
            with closing(RedisCheckpoints(replica.url)) as other:
                assert_holds(other, key, 1, 1)
                with pytest.raises(StoreUnavailableError, match="is a replica"):
                    other.renew(lease)


def test_a_redis_that_throws_keys_away_is_refused_and_one_that_forgets_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(tmp_path / "redis", "--appendonly", "no") as server, redis.Redis.from_url(server.url) as client:
        with caplog.at_level(logging.WARNING), closing(RedisCheckpoints(server.url)):
            assert "Set appendonly yes" in caplog.text
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigError, match="may evict checkpoints"):
            RedisCheckpoints(server.url)
        client.config_set("maxmemory-policy", "noeviction")
        with closing(RedisCheckpoints(server.url)) as store:
            client.config_set("maxmemory", "1")
            with pytest.raises(StoreUnavailableError, match="is full"):
                store.claim("group", "name", "owner", None)


def test_a_password_that_is_wrong_is_told_and_not_shown(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis", "--requirepass", "right") as server:
        place = server.url.removeprefix("redis://")
        with pytest.raises(ConfigError, match="refused the login") as told:
            RedisCheckpoints(f"redis://:wrong@{place}")
        assert "wrong@" not in str(told.value)
        with pytest.raises(ConfigError, match="refused the login"):
            RedisCheckpoints(server.url)
        RedisCheckpoints(f"redis://:right@{place}").close()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("colour=red", "colour"),
        ("cluster=perhaps", "'perhaps' is not a value for cluster"),
        ("wait_replicas=some", "'some' is not a value for wait_replicas"),
        ("wait_replicas=-1", "must not be negative"),
        ("prefix=a{b}", "without braces"),
        ("timeout_s=0", "must be positive"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        RedisCheckpoints(f"{shared_url()}?{options}")


def test_a_client_that_decodes_is_refused() -> None:
    with (
        redis.Redis.from_url(shared_url(), decode_responses=True) as client,
        pytest.raises(ConfigError, match="decode"),
    ):
        RedisCheckpoints(client)


def test_a_client_that_was_given_stays_open() -> None:
    with redis.Redis.from_url(shared_url()) as client:
        store = RedisCheckpoints(client)
        store.close()
        with pytest.raises(ConnectionClosedError):
            store.groups()
        assert client.ping()


def test_prefixes_keep_stores_apart() -> None:
    key = fresh_key()
    with closing(RedisCheckpoints(shared_url(), prefix="one")) as one, closing(open_redis()) as other:
        assert one.claim(key.group, key.lease_name, "owner", None) is not None
        assert other.leases(key.group) == []
        assert key.group not in other.groups()


def test_a_redis_that_is_not_there_is_unavailable() -> None:
    (port,) = free_ports(1)
    with pytest.raises(StoreUnavailableError, match=f"redis://127.0.0.1:{port}/0 is unavailable"):
        RedisCheckpoints(f"redis://user:secret@127.0.0.1:{port}/0")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'penstock\[redis\]'"):
        RedisCheckpoints("redis://127.0.0.1")
