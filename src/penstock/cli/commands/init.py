"""`penstock init`: a starter project that runs and passes its own tests."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.options import examples
from penstock.cli.output import say
from penstock.errors import ConfigError

app = typer.Typer(rich_markup_mode=None)

EXAMPLES: Final = examples(
    "penstock init shop",
    "penstock init shop --no-spark",
    "penstock init . --name web-shop",
)

_NAME: Final = re.compile(r"[a-z]([a-z0-9_-]*[a-z0-9])?")
_LONGEST_NAME: Final = 60
_TAKEN: Final = frozenset({"app", "pipeline", "penstock", "pyspark", "pytest", "test", "tests"})
_IGNORED: Final = frozenset({".git"})
_FILES: Final = {
    "pyproject.toml": "pyproject.toml.in",
    "README.md": "README.md.in",
    ".gitignore": "gitignore.in",
    "app.py": "app.py.in",
    "tests/test_app.py": "test_app.py.in",
}
_SPARK_FILES: Final = {"pipeline.py": "pipeline.py.in", "tests/test_pipeline.py": "test_pipeline.py.in"}


@app.command("init", epilog=EXAMPLES)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the project: new or empty.")] = Path(),
    name: Annotated[
        str | None,
        typer.Option(help="The name of the project, and of its group and pipeline.", show_default="that of the folder"),
    ] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Without a pipeline, so without Java.")] = False,
) -> None:
    """Create a starter project: an app with a typed topic and a handler, a pipeline, and their tests."""
    folder = folder.expanduser().absolute()
    project = _checked(name) if name is not None else _name_of(folder)
    _check_free(folder)
    written = _write(folder, _files(project, spark=not no_spark))
    for path in written:
        typer.echo(path.relative_to(folder))
    say(f"\nWrote {len(written)} files to {folder}. Next:")
    for line in _next_steps(folder, spark=not no_spark):
        say(f"  {line}")


def _checked(name: str) -> str:
    """The name, if it is valid for packages, groups and pipelines."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise typer.BadParameter(
            f"{name!r} is not a valid project name: use at most {_LONGEST_NAME} lowercase letters, digits, - and _, "
            "with a letter first, such as web-shop",
            param_hint="--name",
        )
    if name in _TAKEN:
        raise typer.BadParameter(
            f"{name!r} is the name of a module that the project imports: choose another, such as my-{name}",
            param_hint="--name",
        )
    return name


def _name_of(folder: Path) -> str:
    """A valid name derived from the folder's, which may have capitals, spaces and dots."""
    name = re.sub(r"[^a-z0-9_]+", "-", folder.name.lower()).strip("-_")
    try:
        return _checked(name)
    except typer.BadParameter:
        raise typer.BadParameter(
            f"the folder {str(folder)!r} gives no valid project name: pass one with --name, such as web-shop",
            param_hint="DIR",
        ) from None


def _check_free(folder: Path) -> None:
    """Raise ConfigError for a folder that is not empty, so that nothing is overwritten."""
    try:
        there = sorted(each.name for each in folder.iterdir() if each.name not in _IGNORED)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ConfigError(f"{folder} is a file: name a folder, such as penstock init {folder.name}-project") from error
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror}") from error
    if there:
        some = ", ".join(there[:3]) + (", ..." if len(there) > 3 else "")
        raise ConfigError(
            f"{folder} is not empty (it has {some}), and nothing is overwritten: name a new folder, such as "
            f"penstock init {folder.name}/starter"
        )


def _files(name: str, *, spark: bool) -> dict[str, str]:
    words = {
        "@NAME@": name,
        "@PENSTOCK@": "penstock[spark]" if spark else "penstock",
        "@SPARK@": _template("spark.md.in") if spark else "",
        "@SPARK_TEST@": "; the pipeline, on Spark" if spark else "",
        "@SPARK_FILE@": "| `pipeline.py` | what Spark computes from it |\n" if spark else "",
    }
    texts = {}
    for path, template in {**_FILES, **(_SPARK_FILES if spark else {})}.items():
        text = _template(template)
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        texts[path] = text
    return texts


def _template(name: str) -> str:
    return files("penstock.cli").joinpath("starter", name).read_text("utf-8")


def _write(folder: Path, texts: dict[str, str]) -> list[Path]:
    written = []
    try:
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as sink:  # never overwrite a file created meanwhile
                sink.write(text)
            written.append(file)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder} cannot be written: {error.strerror}") from error
    return written


def _next_steps(folder: Path, *, spark: bool) -> list[str]:
    steps = [] if folder == Path.cwd() else [f"cd {folder}"]
    steps += ["pytest", "python app.py"]
    if spark:
        steps.append("penstock run pipeline.py --once")
    return [*steps, "and read README.md"]
