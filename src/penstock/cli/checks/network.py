"""Ports that are wanted, and whether the stream answers."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.checks.finding import Finding, fail, ok, warn
from penstock.errors import ConfigError, PenstockError, UrlError

if TYPE_CHECKING:
    from penstock.streams.options import Options
    from penstock.streams.url import Host, KafkaUrl

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
        return ok(what, f"a broker of Kafka's protocol answers there (cluster {cluster or 'without a name'}{who})")
    fix = f"end that program, or use another port: penstock {command} --listen 127.0.0.1:0"
    return warn(what, f"taken by something that is not Kafka{who}", fix)


def _cluster_at(port: int) -> str | None:
    from penstock.streams.kafka.plain import NotKafkaError, PlainConnection
    from penstock.streams.url import Host

    try:
        with PlainConnection(Host("127.0.0.1", port), ASKING_S) as connection:
            return connection.cluster_id() or ""
    except (OSError, NotKafkaError):
        return None


def holder(port: int, proc: Path = Path("/proc")) -> str:
    """`, process 17 python3`, where the system lets us know."""
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
            if any(os.readlink(handle) in inodes for handle in (process / "fd").iterdir()):
                return f", process {process.name} {(process / 'comm').read_text().strip()}"
        except OSError:
            continue  # it has ended, or is somebody else's
    return ""


def check_url(url: str, timeout_s: float) -> list[Finding]:
    """Whether it answers. A log's broker is not started for that."""
    from penstock.streams.embedded.finding import find
    from penstock.streams.url import LogUrl, MemoryUrl, parse_url

    try:
        where = parse_url(url)
    except UrlError as error:
        return [fail("stream", str(error), "write log:FOLDER or kafka://HOST:PORT")]
    if isinstance(where, MemoryUrl):
        return [ok("stream", f"{url} lives in the process that uses it")]
    if isinstance(where, LogUrl):
        found = find(where.folder)
        if found is None:
            return [ok("stream", f"no broker runs for {where.folder}; the first that connects starts it")]
        found.connection.close()
        return [ok("stream", f"{url} is served by process {found.address.pid} at {found.address.bootstrap}")]
    return _check_brokers(where, timeout_s)


def _check_brokers(where: KafkaUrl, timeout_s: float) -> list[Finding]:
    from penstock.streams.kafka.security import Security
    from penstock.streams.options import Options
    from penstock.streams.url_settings import with_settings

    try:
        options = with_settings(where, Options(connect_timeout_s=timeout_s))
    except ConfigError as error:
        return [fail("stream", str(error), "see the settings that go with the URL")]
    is_plain = Security(options.librdkafka).is_plain
    findings = [_answer_of(host, timeout_s) for host in where.hosts] if is_plain else [_let_in(where, options)]
    if any(finding.level == "ok" for finding in findings):
        findings += _advertised(where.bootstrap, options, timeout_s)
    return findings


def _let_in(where: KafkaUrl, options: Options) -> Finding:
    from penstock.streams.kafka.reaching import check_reachable
    from penstock.streams.kafka.security import Security

    began_s = time.monotonic()
    try:
        check_reachable(where, options)
    except PenstockError as error:
        return fail("stream", str(error), "see the broker, and the settings that go with the URL")
    took_ms = (time.monotonic() - began_s) * 1000
    return ok(
        "stream", f"{where.bootstrap} lets us in, over {Security(options.librdkafka).protocol}, in {took_ms:.0f} ms"
    )


def _answer_of(host: Host, timeout_s: float) -> Finding:
    from penstock.streams.kafka.plain import NotKafkaError, PlainConnection

    began_s = time.monotonic()
    try:
        with PlainConnection(host, timeout_s) as connection:
            cluster = connection.cluster_id()
    except socket.gaierror as error:
        return fail("stream", f"{host.name} is not known: {error.strerror}", "see the name, and DNS")
    except OSError as error:
        fix = "see that the broker runs, that this is its port, and that no firewall is between"
        return fail("stream", f"{host} does not answer: {error.strerror or error}", fix)
    except NotKafkaError as error:
        fix = "see the port; for a listener with TLS or SASL, say security.protocol in kafka://HOST:PORT?config=FILE"
        return fail("stream", str(error), fix)
    took_ms = (time.monotonic() - began_s) * 1000
    return ok("stream", f"{host} answers in {took_ms:.1f} ms (cluster {cluster or 'without a name'})")


def _advertised(bootstrap: str, options: Options, timeout_s: float) -> list[Finding]:
    """Brokers tell clients where to go; a wrong `advertised.listeners` is met only then."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    settings = {**options.librdkafka, "bootstrap.servers": bootstrap, "log_level": 0}
    client = AdminClient(settings, logger=_quiet())
    try:
        brokers = client.list_topics(timeout=timeout_s).brokers.values()
    except KafkaException as error:
        return [fail("brokers", f"they do not tell who they are: {error.args[0].str()}", "see the log of the broker")]
    findings = []
    for broker in list(brokers)[:5]:
        try:
            socket.create_connection((broker.host, broker.port), timeout_s).close()
        except OSError as error:
            text = f"broker {broker.id} says it is at {broker.host}:{broker.port}, which does not answer: {error}"
            findings.append(fail("brokers", text, "set its advertised.listeners to what clients can reach"))
    return findings or [ok("brokers", f"all {len(brokers)} can be reached where they say they are")]


def _quiet() -> object:
    import logging

    quiet = logging.getLogger("penstock.doctor")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    return quiet


def check_skew(url: str, timeout_s: float) -> list[Finding]:
    """How far the broker's clock is from ours, by the time that it gives to a record in a topic made for that."""
    from penstock.cli.checks.skew import clock_skew_s

    try:
        skew_s, within_s = clock_skew_s(url, timeout_s)
    except PenstockError as error:
        return [warn("broker clock", f"it could not be asked: {error}", "see the stream")]
    side = "ahead of" if skew_s > 0 else "behind"
    text = f"{abs(skew_s) * 1000:.0f} ms {side} ours, give or take {within_s * 1000:.0f} ms"
    if abs(skew_s) - within_s > 1.0:
        return [warn("broker clock", text, "run NTP on both: lag in seconds, retention and windows go by these clocks")]
    return [ok("broker clock", text)]
