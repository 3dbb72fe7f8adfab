"""Which parts of the demo this machine can run, and what to install for the others."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field

from penstock.cli.demo.plan import DemoSettings
from penstock.errors import JavaMissingError


@dataclass(frozen=True, slots=True)
class Parts:
    """What takes part. `advice` has a sentence for each part that was wanted and cannot."""

    spark: bool
    console: bool
    picture: bool
    advice: list[str] = field(default_factory=list)


def parts_for(settings: DemoSettings) -> Parts:
    advice: list[str] = []
    spark = settings.with_spark and _can_run_spark(advice)
    console = settings.with_console and _has_packages(["nicegui"], "the console", "console", advice)
    picture = _has_packages(["matplotlib"], "the report as a PNG", "demo", advice)
    return Parts(spark, console, picture, advice)


def _can_run_spark(advice: list[str]) -> bool:
    if not _has_packages(["pyspark", "pyarrow", "pandas"], "the pipeline on Spark", "spark", advice):
        return False
    from penstock.spark.java import find_java

    try:
        find_java()
    except JavaMissingError as error:
        advice.append(f"The pipeline on Spark is left out. {error}")
        return False
    return True


def _has_packages(packages: list[str], what: str, extra: str, advice: list[str]) -> bool:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        advice.append(
            f"{what[0].upper()}{what[1:]} is left out, as {', '.join(missing)} is not installed; "
            f"run: pip install 'penstock[{extra}]'"
        )
    return not missing
