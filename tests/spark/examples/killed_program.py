"""The pipelines of worked cases, one after the other, for a test that kills them:

    python -m tests.spark.examples.killed_program FOLDER NAME...

Each has an embedded log of its own in the folder, by the name of its example. It processes what is there, and ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from examples.pipelines import click_enrichment, fraud_detection, search_to_click, system_usage, top_movers
from penstock.spark import Pipeline, session

BUILDERS: Final[dict[str, Callable[[str], Pipeline]]] = {
    "system_usage": system_usage.build,
    "top_movers": top_movers.build,
    "click_enrichment": click_enrichment.build,
    "search_to_click": search_to_click.build,
    "fraud_detection": lambda url: fraud_detection.in_batches(url, f"sqlite:{url.removeprefix('log:')}/verdicts.db"),
}


def log_of(folder: Path, name: str) -> str:
    return f"log:{folder / name}"


if __name__ == "__main__":
    session("worked cases", master="local[2]", conf={"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "1"})
    for name in sys.argv[2:]:
        with BUILDERS[name](log_of(Path(sys.argv[1]), name)) as pipeline:
            pipeline.run(once=True)
