"""`penstock asyncapi`: the AsyncAPI document of the apps of a program."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final

import typer

from penstock.app import App
from penstock.cli.options import examples
from penstock.cli.output import print_json, print_traceback
from penstock.errors import ConfigError, PenstockError

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock asyncapi app.py > asyncapi.json",
    "penstock asyncapi app.py:build --title Billing --version 1.4.0",
)


@app.command("asyncapi", epilog=EXAMPLES)
def asyncapi(
    program: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:NAME]",
            help="The program, and one of its apps: a variable, or a function that returns it.",
        ),
    ],
    title: Annotated[str | None, typer.Option(help="The title.", show_default="the group of the app")] = None,
    version: Annotated[str, typer.Option(metavar="VERSION", help="The version of the document.")] = "1.0.0",
) -> None:
    """Print the AsyncAPI 3.0 document of an app: its topics, its handlers, and the JSON schemas of its types.

    The program is imported, not run: code under `if __name__ == "__main__"` is not executed.
    """
    place, _, name = program.partition(".py:") if ".py:" in program else (program.removesuffix(".py"), "", "")
    file = Path(f"{place}.py").expanduser().absolute()
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="FILE.py")
    app = _app_of(_imported(file), file, name)
    print_json(app.asyncapi(title=title, version=version))


def _imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except PenstockError:
        raise
    except Exception as error:
        print_traceback(error, file)
        raise typer.Exit(1) from error
    return module


def _app_of(module: ModuleType, file: Path, name: str) -> App:
    if name:
        found: Any = getattr(module, name, None)
        if callable(found) and not isinstance(found, App):
            found = found()
        if isinstance(found, App):
            return found
        raise ConfigError(
            f"{file.name} has no app {name!r}: name a variable with an App, or a function that returns one"
        )
    apps = {each: value for each, value in vars(module).items() if isinstance(value, App)}
    if len(apps) == 1:
        return next(iter(apps.values()))
    if apps:
        raise ConfigError(f"{file.name} has several apps: name one, such as {file.name}:{min(apps)}")
    raise ConfigError(
        f"{file.name} has no App in a variable: keep it in one, or name the function that returns it, such as "
        f"{file.name}:build"
    )
