"""Nouns that list what there is when no verb is given: `penstock topics` is `penstock topics list`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class ListByDefault(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
