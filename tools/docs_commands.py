"""The reference of the command, made from the command itself when the pages are built, so that it cannot go stale.

The line `<!-- commands -->` in a page becomes a section for every command: what it does, its arguments and options with
their defaults, and its examples; `<!-- overview of commands -->` a table of one line each. `docs_hooks` calls
`on_page_markdown`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final

import typer

from tools.docs_tables import markdown_table

PLACE: Final = "<!-- commands -->"
OVERVIEW: Final = "<!-- overview of commands -->"
HELP: Final = "--help"


def on_page_markdown(markdown: str, **_: object) -> str:
    if PLACE not in markdown and OVERVIEW not in markdown:
        return markdown
    from penstock.cli.main import app

    root = typer.main.get_command(app)
    return markdown.replace(PLACE, "\n\n".join(sections(root, "penstock"))).replace(OVERVIEW, overview(root))


def overview(root: Any) -> str:
    """A row for each noun: its verbs, if it has some, and the first sentence of its help."""
    rows = []
    for name in root.list_commands(None):
        command = root.commands[name]
        verbs = ", ".join(f"`{verb}`" for verb in getattr(command, "commands", {}))
        says = " ".join(inspect.cleandoc(command.help or "").partition("\n\n")[0].split())
        rows.append((f"[`penstock {name}`](#penstock-{name})", verbs, says))
    return markdown_table(("command", "verbs", "what it does"), rows)


def sections(command: Any, name: str, depth: int = 2) -> Iterator[str]:
    """A section for each command, a group before what is in it."""
    members = getattr(command, "commands", None)
    if depth > 2 or members is None:
        yield section(command, name, depth - 1)
    if members is None:
        return
    for member in command.list_commands(None):
        if not members[member].hidden:
            yield from sections(members[member], f"{name} {member}", depth + 1)


def section(command: Any, name: str, depth: int) -> str:
    """One command: its help is its docstring, as it is on the terminal."""
    parts = [f"{'#' * depth} {name}", inspect.cleandoc(command.help or "").replace("\b\n", "")]
    if not parts[1]:
        raise TypeError(f"{name} has no help, which a reader needs")
    usage = " ".join([name, *(_usage(each) for each in command.params if each.param_type_name == "argument")])
    if not hasattr(command, "commands") or command.invoke_without_command:
        parts.append(f"```text\n{usage} [OPTIONS]\n```")
    rows = [row for each in command.params if (row := _row(each, name)) is not None]
    if rows:
        parts.append(markdown_table(("", "default", "what it does"), rows))
    if examples := _examples(command.epilog):
        parts.append("```text\n" + "\n".join(examples) + "\n```")
    return "\n\n".join(parts)


def _usage(argument: Any) -> str:
    text = argument.metavar or argument.name.upper()
    text = text.strip("{}[]")
    if argument.nargs == -1 and not text.endswith("..."):
        text += "..."
    return text if argument.required else f"[{text}]"


def _row(parameter: Any, command: str) -> tuple[str, str, str] | None:
    if HELP in parameter.opts or getattr(parameter, "hidden", False):
        return None
    text = getattr(parameter, "help", None)
    is_argument = parameter.param_type_name == "argument"
    if not text and is_argument:  # what it is, the usage says
        return None
    if not text:
        raise TypeError(f"{command} has an option without help, which a reader needs: {parameter.name}")
    shown = _usage(parameter) if is_argument else ", ".join((*parameter.opts, *parameter.secondary_opts))
    if not is_argument and not parameter.is_flag:
        shown += f" {parameter.metavar or _values(parameter)}".rstrip()
    return f"`{shown}`", _default(parameter), text


def _values(parameter: Any) -> str:
    choices = getattr(parameter.type, "choices", None)
    if choices:
        return "|".join(str(getattr(each, "value", each)) for each in choices)
    kind = str(parameter.type.name).upper().partition(" ")[0]
    return {"STR": "TEXT", "INT": "NUMBER", "FLOAT": "NUMBER"}.get(kind, kind)


def _default(parameter: Any) -> str:
    if isinstance(getattr(parameter, "show_default", None), str):
        return str(parameter.show_default)
    value = getattr(parameter.default, "value", parameter.default)
    if callable(value) or value in (None, "", [], ()) or value is False or "UNSET" in repr(value):
        return ""
    variables = parameter.envvar
    return f"`{value}`" + (f", or `${variables}`" if isinstance(variables, str) else "")


def _examples(epilog: str | None) -> list[str]:
    """The lines behind `Examples:`."""
    _, _, text = (epilog or "").partition("Examples:\n")
    return [line.strip() for line in text.splitlines() if line.strip()]
