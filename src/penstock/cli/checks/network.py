"""Ports, and whether the stream answers."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaException, Message
from confluent_kafka.admin import AdminClient

from penstock.cli.checks.finding import Finding, fail, ok, warn
from penstock.errors import BrokerUnavailableError, ConfigError, PenstockError, StreamError, UrlError
from penstock.streams import connect
from penstock.streams.connecting import check_url as check_scheme
from penstock.streams.embedded.finding import find
from penstock.streams.kafka.administration.reaching import check_reachable
from penstock.streams.kafka.plain import NotKafkaError, PlainConnection
from penstock.streams.kafka.producing.producer import KafkaProducer
from penstock.streams.kafka.security import Security
from penstock.streams.kafka.stream import kafka_of
from penstock.streams.options import Options
from penstock.streams.schemes import scheme_of
from penstock.streams.url import KAFKA_SCHEMES, Host, KafkaUrl, LogUrl, is_memory, parse_url
from penstock.streams.url_settings import with_settings


def clock_skew_s(url: str, timeout_s: float) -> tuple[float, float]:
    """How far the broker's clock is ahead of ours, and the error. Creates a topic for it, and deletes it again."""
    topic = f"penstock-doctor-{secrets.token_hex(6)}"
    heard: list[Message] = []
    with connect(url, client_id="penstock-doctor", connect_timeout_s=timeout_s) as stream:
        stream.create_topic(topic, partitions=1, config={"message.timestamp.type": "LogAppendTime"})
        try:
            kafka = kafka_of(stream)
            own = {"bootstrap.servers": kafka.bootstrap, "log_level": 0, "acks": "all"}
            producer = KafkaProducer({**kafka.options.librdkafka, **own}, timeout_s)
            # The first record waits for connections; the second measures.
            for _ in range(2):
                heard.clear()
                before_s = time.time()
                producer.produce(topic, b"?", on_delivery=lambda _error, message: heard.append(message))
                if producer.flush(timeout_s) or not heard:
                    raise BrokerUnavailableError(f"{stream.url} did not acknowledge a record within {timeout_s:g} s")
                after_s = time.time()
        finally:
            stream.admin().delete(topic)
    message = heard[0]
    if message.error() is not None:
        raise StreamError(f"{stream.url} refused a record: {message.error()}")
    kind, stamp_ms = message.timestamp()
    if kind != TIMESTAMP_LOG_APPEND_TIME:
        raise StreamError(f"{stream.url} does not use its own time for records")
    return stamp_ms / 1000 - (before_s + after_s) / 2, (after_s - before_s) / 2 + 0.001


LOG_PORT: Final = 9092
CONSOLE_PORT: Final = 8080
ASKING_S: Final = 0.5
_LISTENING: Final = "0A"


def check_ports(ports: tuple[tuple[int, str], ...] = ((LOG_PORT, "serve"), (CONSOLE_PORT, "console"))) -> list[Finding]:
    return [_port(port, command) for port, command in ports]


def _port(port: int, command: str) -> Finding:
    what = f"port {port}"
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except PermissionError:
            return warn(what, "needs root", f"use another with --listen, as {command} does not need this one")
        except OSError:
            pass
        else:
            return ok(what, f"free, for penstock {command}")
    who = holder(port)
    if (cluster := _cluster_at(port)) is not None:
        return ok(what, f"a Kafka broker answers there (cluster {cluster or 'without a name'}{who})")
    fix = f"end that program, or use another port: penstock {command} --listen 127.0.0.1:0"
    return warn(what, f"in use by something other than Kafka{who}", fix)


def _cluster_at(port: int) -> str | None:
    try:
        with PlainConnection(Host("127.0.0.1", port), ASKING_S) as connection:
            return connection.cluster_id() or ""
    except (OSError, NotKafkaError):
        return None


def holder(port: int, proc: Path = Path("/proc")) -> str:
    """The process that listens on the port, as `, process 17 python3`; "" where the system does not show it."""
    inodes = set()
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for process in proc.iterdir():
        if not process.name.isdecimal():
            continue
        try:
            if any(_target_of(handle) in inodes for handle in (process / "fd").iterdir()):
                return f", process {process.name} {(process / 'comm').read_text().strip()}"
        except OSError:
            continue  # it has ended, or belongs to another user
    return ""


def _target_of(handle: Path) -> str:
    try:
        return os.readlink(handle)
    except FileNotFoundError:  # closed since the folder was listed
        return ""


def check_url(url: str, timeout_s: float) -> list[Finding]:
    """Whether the stream answers. A log's broker is not started for that."""
    try:
        check_scheme(url)
        where = parse_url(url) if scheme_of(url) in KAFKA_SCHEMES else None
    except UrlError as error:
        return [fail("stream", str(error), "write log:FOLDER or kafka://HOST:PORT")]
    if is_memory(url):
        return [ok("stream", f"{url} exists only in the process that uses it")]
    if isinstance(where, LogUrl):
        found = find(where.folder)
        if found is None:
            return [ok("stream", f"no broker runs for {where.folder}; the first connection starts it")]
        found.connection.close()
        return [ok("stream", f"{url} is served by process {found.address.pid} at {found.address.bootstrap}")]
    return _check_brokers(where, timeout_s) if isinstance(where, KafkaUrl) else [_answer_of_stream(url)]


def _answer_of_stream(url: str) -> Finding:
    try:
        with connect(url) as stream:
            return ok("stream", f"{stream.url} answers, and has {len(stream.topics())} topics")
    except PenstockError as error:
        return fail("stream", str(error), "see that it runs and can be reached")


def _check_brokers(where: KafkaUrl, timeout_s: float) -> list[Finding]:
    try:
        options = with_settings(where, Options(connect_timeout_s=timeout_s))
    except ConfigError as error:
        return [fail("stream", str(error), "check the settings of the URL")]
    is_plain = Security(options.librdkafka).is_plain
    findings = [_answer_of(host, timeout_s) for host in where.hosts] if is_plain else [_let_in(where, options)]
    if any(finding.level == "ok" for finding in findings):
        findings += _advertised(where.bootstrap, options, timeout_s)
    return findings


def _let_in(where: KafkaUrl, options: Options) -> Finding:
    began_s = time.monotonic()
    try:
        check_reachable(where, options)
    except PenstockError as error:
        return fail("stream", str(error), "check the broker, and the settings of the URL")
    took_ms = (time.monotonic() - began_s) * 1000
    return ok(
        "stream", f"{where.bootstrap} accepts us over {Security(options.librdkafka).protocol}, in {took_ms:.0f} ms"
    )


def _answer_of(host: Host, timeout_s: float) -> Finding:
    began_s = time.monotonic()
    try:
        with PlainConnection(host, timeout_s) as connection:
            cluster = connection.cluster_id()
    except socket.gaierror as error:
        return fail("stream", f"{host.name} cannot be resolved: {error.strerror}", "check the name, and DNS")
    except OSError as error:
        fix = "check that the broker runs, that this is its port, and that no firewall blocks it"
        return fail("stream", f"{host} does not answer: {error.strerror or error}", fix)
    except NotKafkaError as error:
        fix = "check the port; for TLS or SASL, set security.protocol in kafka://HOST:PORT?config=FILE"
        return fail("stream", str(error), fix)
    took_ms = (time.monotonic() - began_s) * 1000
    return ok("stream", f"{host} answers in {took_ms:.1f} ms (cluster {cluster or 'without a name'})")


def _advertised(bootstrap: str, options: Options, timeout_s: float) -> list[Finding]:
    """Findings about the addresses that brokers advertise, where a wrong `advertised.listeners` shows."""
    settings = {**options.librdkafka, "bootstrap.servers": bootstrap, "log_level": 0}
    client = AdminClient(settings, logger=_quiet())
    try:
        brokers = client.list_topics(timeout=timeout_s).brokers.values()
    except KafkaException as error:
        return [fail("brokers", f"no metadata: {error.args[0].str()}", "read the log of the broker")]
    findings = []
    for broker in list(brokers)[:5]:
        try:
            socket.create_connection((broker.host, broker.port), timeout_s).close()
        except OSError as error:
            text = f"broker {broker.id} advertises {broker.host}:{broker.port}, which does not answer: {error}"
            findings.append(fail("brokers", text, "set its advertised.listeners to an address that clients can reach"))
    return findings or [ok("brokers", f"all {len(brokers)} can be reached at their advertised addresses")]


def _quiet() -> object:
    quiet = logging.getLogger("penstock.doctor")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    return quiet


def check_skew(url: str, timeout_s: float) -> list[Finding]:
    """How far the broker's clock is from ours, by its timestamp for a record in a temporary topic."""

    try:
        skew_s, within_s = clock_skew_s(url, timeout_s)
    except PenstockError as error:
        return [warn("broker clock", f"unknown: {error}", "check the stream")]
    side = "ahead of" if skew_s > 0 else "behind"
    text = f"{abs(skew_s) * 1000:.0f} ms {side} ours, give or take {within_s * 1000:.0f} ms"
    if abs(skew_s) - within_s > 1.0:
        return [
            warn("broker clock", text, "run NTP on both: lag in seconds, retention and windows depend on these clocks")
        ]
    return [ok("broker clock", text)]
