"""`penstock serve`: run the embedded log."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.stream import examples
from penstock.errors import ConfigError

EXAMPLES: Final = examples(
    "penstock serve",
    "penstock serve --data ./data --listen 127.0.0.1:0",
    "penstock serve --listen 0.0.0.0:9092 --advertise broker.example:9092 --config num.partitions=3",
)


class Flush(StrEnum):
    fsync = "fsync"
    os = "os"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


def serve(
    data: Annotated[Path, typer.Option(help="The folder that holds the log. Made if it is not there.")] = Path("data"),
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one and prints it.")] = "127.0.0.1:9092",
    advertise: Annotated[str, typer.Option(help="HOST:PORT that clients are told, if not the one above.")] = "",
    flush: Annotated[
        Flush, typer.Option(help="fsync: acks=all survives a power cut. os: faster, survives a killed process only.")
    ] = Flush.fsync,
    metrics: Annotated[str, typer.Option(help="HOST:PORT for Prometheus metrics at /metrics.")] = "",
    config: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, a broker setting by Kafka's name; may be repeated.")
    ] = None,
    exit_when_idle: Annotated[
        float | None, typer.Option(help="Stop after so many seconds without a client.", min=0.1)
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="text for people, json for programs.")] = LogFormat.text,
) -> None:
    """Serve the log in a folder to every Kafka client, until stopped."""
    import asyncio

    # kio loads hypothesis where it is installed, for its own tests: a quarter of a second that a server need not spend.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    from penstock.broker.address import BrokerAddress
    from penstock.broker.server import ServeOptions
    from penstock.broker.server import serve as run
    from penstock.broker.settings import BrokerSettings
    from penstock.cli.logs import configure_logging

    configure_logging(log_level, log_format == LogFormat.json)
    host, port = _host_port(listen, "--listen")
    options = ServeOptions(
        data_folder=data,
        host=host,
        port=port,
        advertised=_host_port(advertise, "--advertise") if advertise else None,
        metrics=_host_port(metrics, "--metrics") if metrics else None,
        flushes=flush is Flush.fsync,
        settings=BrokerSettings.parse(_pairs(config or [])),
        exit_when_idle_s=exit_when_idle,
    )

    def announce(address: BrokerAddress) -> None:
        safety = "acks=all survives a power cut" if options.flushes else "flush=os: a power cut may lose records"
        extra = f", metrics on http://{address.metrics}/metrics" if address.metrics else ""
        typer.echo(f"penstock: listening on {address.bootstrap} (data {data}, {safety}{extra})")

    logging.getLogger("asyncio").setLevel(logging.WARNING)
    asyncio.run(run(options, announce))


def _host_port(text: str, option: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{option} {text!r} is not HOST:PORT, such as 127.0.0.1:9092")
    return host.strip("[]"), int(port)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"--config {text!r} is not NAME=VALUE, such as num.partitions=3")
        pairs[name.strip()] = value.strip()
    return pairs
