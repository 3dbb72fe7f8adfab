"""What the pages about pipelines show works: in this process, as all of them share one session of Spark.

`run()` of a pipeline, and `penstock run`, would go on for ever: here they run as `penstock run --once` has them run.
"""

from __future__ import annotations

import importlib
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import SparkSession

import penstock.cli.programs
import penstock.cli.reprocess
from penstock.cli.main import app
from penstock.spark.pipeline import defined_pipelines
from penstock.spark.run.settings import RunSettings, running_with
from tests import real_parts
from tests.docs.blocks import Block, Page, pages
from tests.docs.page_run import PageFailed, PageRun
from tests.docs.servers import servers_of
from tests.docs.stopping import stop_brokers

PAGES: Final = [page for page in pages() if page.is_run and page.needs_spark]


class SparkPageRun(PageRun):
    """A page whose programs are run by this process, instead of one that would start a Java of its own."""

    def run_commands(self, block: Block, text: str) -> None:
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words[:2] in (["penstock", "run"], ["penstock", "pipelines"]):
                self._run_here(block, words[1:])
            elif words:
                super().run_commands(block, line)

    def _run_here(self, block: Block, words: list[str]) -> None:
        options = [*words[:2], "--once", *words[2:]] if words[0] == "run" and "--once" not in words else words
        with pytest.MonkeyPatch.context() as patch, sent_along(self.folder):
            if "PENSTOCK_URL" in self.environment:
                patch.setenv("PENSTOCK_URL", self.environment["PENSTOCK_URL"])
            try:
                code = app(options, standalone_mode=False)
            finally:
                for pipeline in defined_pipelines():
                    pipeline.close()
        if code:
            raise PageFailed(f"{block.place}: penstock {' '.join(words)} ended with {code}")


@contextmanager
def sent_along(folder: Path) -> Iterator[None]:
    """Modules of this folder are sent to tasks: those of a session that began elsewhere do not find them."""
    named = [file.stem for file in folder.glob("*.py") if "run(" not in file.read_text("utf-8")]
    modules = [importlib.import_module(name) for name in named]
    for module in modules:
        register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
            sys.modules.pop(module.__name__, None)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module that a page's code is in. What tasks need of it is sent to them, as it is of any `__main__`."""
    module = ModuleType("a_page_of_the_documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield module
    unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    for number, handler in before.items():
        signal.signal(number, handler)


def check_page(running: PageRun, page: Page) -> None:
    for block in page.blocks:
        if block.is_run:
            running.run(block)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_what_a_page_shows_works(
    page: Page, spark: SparkSession, main: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "connector" in page.servers:
        real_parts.spark_connector()
    if any(block.is_run and "kcat" in block.text for block in page.blocks):
        real_parts.kcat()
    folder = tmp_path / "reader"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    for command in (penstock.cli.programs, penstock.cli.reprocess):
        monkeypatch.setattr(command, "stop_session", lambda: None)
    try:
        with servers_of(page, tmp_path / "servers") as replace:
            # The JVM was started elsewhere, and a path that begins with a dot would be one of its own folder.
            here = {**replace, "log:./": f"log:{folder}/", '"./': f'"{folder}/'}
            with running_with(RunSettings(once=True)), SparkPageRun(folder, here, main) as running:
                check_page(running, page)
    finally:
        for pipeline in defined_pipelines():
            pipeline.close()
        stop_brokers(folder)
    assert SparkSession.getActiveSession() is spark, "the session is not the page's to stop"
