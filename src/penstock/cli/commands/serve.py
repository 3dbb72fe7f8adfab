"""`penstock serve`: run the embedded log."""

from __future__ import annotations

import asyncio
import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.broker.address import BrokerAddress
from penstock.broker.server import ServeOptions
from penstock.broker.server import serve as run
from penstock.broker.settings import BrokerSettings
from penstock.cli.logs import configure_logging
from penstock.cli.options import examples
from penstock.errors import ConfigError
from penstock.model.addresses import host_and_port

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock serve",
    "penstock serve --data ./data --listen 127.0.0.1:0",
    "penstock serve --listen 0.0.0.0:9092 --advertise broker.example:9092 --insecure --config num.partitions=3",
)


class Flush(StrEnum):
    fsync = "fsync"
    os = "os"


class LogFormat(StrEnum):
    text = "text"
    json = "json"


@app.command("serve", epilog=EXAMPLES)
def serve(
    data: Annotated[Path, typer.Option(help="The folder of the log. Created if missing.")] = Path("data"),
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one and prints it.")] = "127.0.0.1:9092",
    advertise: Annotated[str, typer.Option(help="HOST:PORT for clients, if it differs from --listen.")] = "",
    flush: Annotated[
        Flush, typer.Option(help="fsync: acks=all survives a power cut. os: faster, survives a killed process only.")
    ] = Flush.fsync,
    metrics: Annotated[str, typer.Option(help="HOST:PORT for Prometheus metrics at /metrics.")] = "",
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow --listen and --metrics on addresses that other machines can reach: there is no login.",
        ),
    ] = False,
    config: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, a broker setting by Kafka's name; may be repeated.")
    ] = None,
    exit_when_idle: Annotated[
        float | None, typer.Option(help="Stop after this many seconds without a client.", min=0.1)
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="text for people, json for programs.")] = LogFormat.text,
) -> None:
    """Serve the log in a folder to every Kafka client, until stopped."""
    configure_logging(log_level, log_format == LogFormat.json)
    host, port = _address(listen, "--listen")
    settings = BrokerSettings.parse(_pairs(config or []))
    options = ServeOptions(
        data_folder=data,
        host=host,
        port=port,
        advertised=_advertised(advertise, settings.advertised_listeners),
        metrics=_address(metrics, "--metrics") if metrics else None,
        insecure=insecure,
        flushes=flush is Flush.fsync,
        settings=settings,
        exit_when_idle_s=exit_when_idle,
    )

    def announce(address: BrokerAddress) -> None:
        safety = "acks=all survives a power cut" if options.flushes else "flush=os: a power cut may lose records"
        extra = f", metrics on http://{address.metrics}/metrics" if address.metrics else ""
        typer.echo(f"penstock: listening on {address.bootstrap} (data {data}, {safety}{extra})")

    logging.getLogger("asyncio").setLevel(logging.WARNING)
    asyncio.run(run(options, announce))


def _address(text: str, option: str) -> tuple[str, int]:
    return host_and_port(text, option, "127.0.0.1:9092")


def _advertised(option: str, setting: str | None) -> tuple[str, int] | None:
    """The advertised address, by --advertise or by Kafka's setting."""
    if option and setting:
        raise ConfigError("--advertise and --config advertised.listeners are the same setting: give one of them")
    if setting:
        return _address(setting.removeprefix("PLAINTEXT://"), "advertised.listeners")
    return _address(option, "--advertise") if option else None


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"--config {text!r} is not NAME=VALUE, such as num.partitions=3")
        pairs[name.strip()] = value.strip()
    return pairs
