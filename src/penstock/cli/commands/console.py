"""`penstock console`: the web console."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.logs import TextFormatter
from penstock.cli.modules import topics_of
from penstock.cli.options import DEFAULT_URL, Url, examples
from penstock.cli.quantities import size_bytes
from penstock.cli.stream import silence_log
from penstock.console.service import Service
from penstock.console.web.access import Access, check_reach
from penstock.errors import ConfigError, MissingExtraError
from penstock.model.addresses import host_and_port

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock console --url log:./data --open",
    "penstock console --url kafka://broker.example:9092 --read-only --dead-letters orders.dlq",
    "penstock console --url log:./data --listen 0.0.0.0:8080 --password-file ./password",
)


@app.command("console", epilog=EXAMPLES)
def console(
    url: Url = DEFAULT_URL,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one and prints it.")] = "127.0.0.1:8080",
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    password_file: Annotated[
        Path | None, typer.Option(help="A file with the password for signing in.", metavar="FILE")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with a token, for signing in or for programs as Authorization: Bearer.", metavar="FILE"
        ),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        typer.Option(help="Another host name of the console, as behind a proxy; may be repeated.", metavar="NAME"),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Where history, audit log and alert rules are kept.", metavar="DIR")
    ] = None,
    dead_letters: Annotated[
        list[str] | None,
        typer.Option(
            help="A dead-letter store: a topic, sqlite:, file:, postgresql://; may be repeated.", metavar="SPEC"
        ),
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option(help="The checkpoint store of the library's consumers.", metavar="URL")
    ] = None,
    pipelines: Annotated[
        Path | None, typer.Option(help="The folder in which pipelines keep their checkpoints.", metavar="DIR")
    ] = None,
    programs: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the logs of penstock up, or the one it runs in. Default: ./logs.", metavar="DIR"
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            envvar="PENSTOCK_ALERTS", help="The file of alert rules, if not the one in --state.", metavar="FILE"
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(help="A schema registry for decoding messages, and for the types of SQL queries.", metavar="URL"),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE[:NAME]",
            help="A module whose variables that are a penstock.Topic say the types of topics to SQL queries, or one of "
            "them. May be repeated.",
        ),
    ] = None,
    sql_cache: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Keep closed segments for SQL queries as Parquet files, up to this size, such as 10GB."
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show the stream in the browser: what runs, what is behind, what failed, and how to fix it.

    Only this machine can reach it, unless --listen says otherwise, which needs a password or a token.
    """
    host, port = host_and_port(listen, "--listen", "127.0.0.1:8080")
    access = Access(password=_secret_in(password_file, "--password-file"), token=_secret_in(token_file, "--token-file"))
    check_reach(host, access)
    try:
        with _hidden("aio_pika", "aiohttp", "kafka", "kombu", "redis", "valkey"):
            from penstock.console.web.app import serve
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "penstock":
            raise
        raise MissingExtraError("the console", "console") from missing
    silence_log()
    told = logging.StreamHandler()
    told.setFormatter(TextFormatter("%(message)s"))
    logging.getLogger("penstock.console").addHandler(told)
    logging.getLogger("nicegui").setLevel(logging.ERROR)

    def announce(address: str) -> None:
        how = ", sign in with your password or token" if access.needs_login else ""
        typer.echo(f"penstock: the console is at {address} ({service.url}{', read-only' if read_only else ''}{how})")
        if open_browser:
            typer.launch(address)

    service = Service(
        url,
        state=state,
        read_only=read_only,
        dead_letters=tuple(dead_letters or ()),
        checkpoints=checkpoints,
        pipelines=pipelines,
        programs=programs,
        rules=rules,
        registry=registry,
        types=[topic for each in types or () for topic in topics_of(each)],
        sql_cache_bytes=None if sql_cache is None else size_bytes(sql_cache, "--sql-cache"),
    )
    try:
        service.start()
        serve(service, access, host, port, names=tuple(host_name or ()), on_listening=announce)
    finally:
        service.close()


@contextmanager
def _hidden(*packages: str) -> Iterator[None]:
    """Hide these packages while NiceGUI is imported. Its sockets load the client of every installed message queue,
    which is half of the console's start time."""
    hidden = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


def _secret_in(file: Path | None, option: str) -> str | None:
    """The first line of a file, without its newline."""
    if file is None:
        return None
    try:
        secret = file.read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {file} cannot be read: {error}") from error
    if not secret:
        raise ConfigError(f"{option} {file} has an empty first line; write the secret there")
    return secret
