"""Run a user's program that uses Spark, and then its pipelines, or its apps."""

from __future__ import annotations

import ast
from pathlib import Path

from penstock.cli.app_programs import NOTHING_DEFINED, apps_and_sinks, run_apps, run_program, unstarted_apps
from penstock.cli.output import say
from penstock.errors import ConfigError
from penstock.spark import run_together
from penstock.spark.pipeline import Pipeline, defined_pipelines, started_pipelines
from penstock.spark.run.settings import RunSettings, current_run, running_with
from penstock.spark.sessions.opening import active_session, session


def run_file(file: Path, arguments: list[str], settings: RunSettings, *, close: bool = True) -> None:
    """Run the program, and then those of its pipelines that it has not run itself. `close` closes them."""
    of_others, started_before = defined_pipelines(), len(started_pipelines())
    with running_with(settings):
        try:
            if needs_session(file):
                session(f"penstock {file.stem}")
            run_program(file, arguments)
            _run_rest(file, defined_pipelines(besides=of_others), has_run=len(started_pipelines()) > started_before)
        finally:
            if close:
                for pipeline in defined_pipelines(besides=of_others):
                    pipeline.close()
                stop_session()


def stop_session() -> None:
    """End the Spark session of this process, if it has one."""
    if (spark := active_session()) is not None:
        spark.stop()


def _run_rest(file: Path, pipelines: list[Pipeline], *, has_run: bool) -> None:
    """Run what the program has defined and not run; nothing when it `has_run` some, even if it has dropped them
    since."""
    waiting = [pipeline for pipeline in pipelines if not pipeline.started]
    apps = unstarted_apps()
    if apps and waiting:
        raise ConfigError(
            f"{file.name} defines apps and pipelines: put them into files of their own, or have the program run them"
        )
    if apps and not has_run:
        if current_run() != RunSettings(program=current_run().program, quiet=current_run().quiet):
            raise ConfigError(f"{file.name} defines an app: options about Spark have no effect on it; omit them")
        run_apps(apps)
        return
    if not pipelines and not has_run and not apps_and_sinks():
        raise ConfigError(NOTHING_DEFINED.format(file.name))
    if waiting and has_run:
        names = ", ".join(pipeline.name for pipeline in waiting)
        say(f"{file.name} has run some of its pipelines itself; these do not run: {names}")
    elif waiting:
        run_together(waiting)


def needs_session(file: Path) -> bool:
    """Whether a program uses Spark without creating a session: types and columns at its top level need one.

    A program that creates its own, by `penstock.spark.session` or `SparkSession.builder`, uses that one.
    """
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, SyntaxError, ValueError):
        return False  # running it reports what is wrong
    modules = {each.module or "" for each in nodes if isinstance(each, ast.ImportFrom)}
    modules |= {alias.name for each in nodes if isinstance(each, ast.Import) for alias in each.names}
    if not any(module.startswith(("pyspark", "penstock.spark")) for module in modules):
        return False
    return not any(map(_makes_session, nodes))


def _makes_session(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module="penstock.spark" | "penstock.spark.sessions.opening", names=names):
            return any(alias.name == "session" for alias in names)
        case ast.Attribute(attr="builder"):
            return True
        case ast.Call(func=ast.Name(id="SparkContext") | ast.Attribute(attr="SparkContext")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="spark" | "sessions"), attr="session")):
            return True
    return False
