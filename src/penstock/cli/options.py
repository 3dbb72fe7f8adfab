"""Options that several commands have, and the examples at the end of their help. Imports nothing heavy."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

DEFAULT_URL: Final = "kafka://127.0.0.1:9092"

Url = Annotated[
    str,
    typer.Option(
        envvar="PENSTOCK_URL",
        metavar="URL",
        help="The stream: kafka://HOST:PORT for a running broker, with ?config=FILE for TLS and login settings; "
        "log:FOLDER for an embedded log, whose broker is started if needed.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        "--checkpoints",
        metavar="URL",
        help="The checkpoint store of the apps: sqlite:FILE, file:FOLDER, postgresql://..., redis://..., s3://..., "
        "dynamodb://..., kafka:. Default: the stores that apps use by default.",
    ),
]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="A setting by Kafka's name; may be repeated."),
]


def examples(*lines: str) -> str:
    """The examples at the end of a command's help, one per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    found = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE, such as retention.ms=3600000", param_hint=option)
        found[name.strip()] = value.strip()
    return found


def spark_settings(texts: list[str] | None) -> dict[str, str]:
    """The settings of Spark that --conf gives."""
    settings = pairs(texts, "--conf")
    for name in settings:
        if not name.startswith("spark."):
            raise typer.BadParameter(f"{name!r} is not a Spark setting: they begin with spark.", param_hint="--conf")
    return settings


class ListByDefault(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
