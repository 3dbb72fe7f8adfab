"""Asks the executors of a cluster whether they have what they need, before a query fails on it in its own words."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark import SparkContext

from penstock.errors import ConfigError, PipelineError

NEEDED: Final = ("confluent_kafka", "cramjam", "crc32c", "msgspec", "numpy", "pandas", "pyarrow")
"""What Penstock imports on executors and cannot be sent there, as it is compiled."""

_INSTALLED_AS: Final = {"confluent_kafka": "confluent-kafka"}
_MOST_TASKS: Final = 64
_SHIP_IT: Final = (
    "install them there, or send an environment: `pip install venv-pack && venv-pack -o environment.tar.gz`, then run "
    "with --archive environment.tar.gz"
)


def check_executors(context: SparkContext) -> None:
    """ConfigError when executors lack packages, naming hosts and packages; PipelineError when none can be asked."""
    tasks = max(2, min(_MOST_TASKS, context.defaultParallelism))
    needed = NEEDED
    probe = _by_value(lambda numbers: _probe(numbers, needed))
    try:
        answers = context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()
    except Exception as error:
        if not type(error).__module__.startswith(("py4j.", "pyspark.")):
            raise
        cause: Any = getattr(error, "java_exception", None)
        raise _cannot_ask(str(cause.getMessage() if cause is not None else error)) from error
    complaint = complaint_about(answers)
    if complaint is not None:
        raise ConfigError(complaint)


def complaint_about(answers: Sequence[tuple[str, str, str, tuple[str, ...]]]) -> str | None:
    """What is wrong with these executors: of each its host, its Python, that one's version, and missing modules."""
    lacking = sorted({answer for answer in answers if answer[3]})
    if not lacking:
        return None
    told = [
        f"{host} ({python}, Python {version}) lacks {', '.join(_INSTALLED_AS.get(each, each) for each in missing)}"
        for host, python, version, missing in lacking
    ]
    return f"executors cannot run the pipeline: {'; '.join(told)}. To have the packages there, {_SHIP_IT}"


def _cannot_ask(text: str) -> ConfigError | PipelineError:
    if "PYTHON_VERSION_MISMATCH" in text:
        return ConfigError(
            f"the executors run another Python than the driver, which has {platform.python_version()}: use the same "
            f"minor version on both. To have it there, {_SHIP_IT}"
        )
    if "Cannot run program" in text:
        start = text.index("Cannot run program")
        return ConfigError(
            f"executors have no such Python ({text[start:].splitlines()[0]}): name one that is there with "
            f"--conf spark.pyspark.python=PATH. To bring one there, {_SHIP_IT}"
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")
    return PipelineError(f"the executors cannot be asked whether they have what they need: {first}")


def _by_value(function: Any) -> Any:
    """Have it sent as code and not by its name: to find the name, an executor would import all of Penstock."""
    function.__module__ = "__main__"
    return function


def _probe(numbers: Iterator[int], needed: Sequence[str]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """On an executor: who it is, and which of these modules it does not find."""
    import importlib.util
    import platform
    import socket
    import sys

    missing = tuple(name for name in needed if importlib.util.find_spec(name) is None)
    yield socket.gethostname(), sys.executable, platform.python_version(), missing


_by_value(_probe)
