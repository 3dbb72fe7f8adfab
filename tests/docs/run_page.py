"""`python -m tests.docs.run_page PAGE FOLDER REPLACEMENTS`: run all blocks of a page in a process of its own.

A page may leave out how its programs are ended: an `App` that would run until SIGTERM is stopped here when it has
handled everything that is there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock import App
from penstock.consuming.health import Health
from tests.clients.waiting import eventually
from tests.docs.blocks import ROOT, page_of
from tests.docs.page_run import PageFailed, PageRun
from tests.docs.stopping import stop_brokers


def main(name: str, folder: Path, replace: dict[str, str]) -> int:
    end_apps_that_have_caught_up()
    page = page_of(name, (ROOT / name).read_text("utf-8"))
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.modules["__main__"] = module = ModuleType("__main__")
    block = page.blocks[0]
    try:
        with PageRun(folder, replace, module) as running:
            for block in page.blocks:
                if block.is_run:
                    running.run(block)
    except PageFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    except BaseException:
        print(f"{block.place} raised:\n{traceback.format_exc()}", file=sys.stderr)
        return 1
    finally:
        stop_brokers(folder)
    return 0


def end_apps_that_have_caught_up() -> None:
    """From now on `App.run`, which pages show as it stands in a program that goes on for ever, comes to an end."""
    run_for_ever = App.run

    def run(app: App, **options: Any) -> None:
        ended = threading.Event()

        def is_done() -> bool:
            health = app.health()
            return ended.is_set() or (len(health) == len(app._declared) and all(map(_has_caught_up, health)))

        def stop() -> None:
            eventually("the app of the page has handled everything", is_done, 60.0)
            app.stop()

        watching = threading.Thread(target=stop, daemon=True)
        watching.start()
        try:
            run_for_ever(app, **options)
        finally:
            ended.set()
            watching.join()

    App.run = run  # type: ignore[method-assign,assignment]


def _has_caught_up(health: Health) -> bool:
    return health.is_running and bool(health.partitions) and health.lag == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])))
