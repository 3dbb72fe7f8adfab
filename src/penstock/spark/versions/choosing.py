"""Which version of a pipeline a program runs as."""

from __future__ import annotations

from penstock.abc import Streams
from penstock.errors import ConfigError
from penstock.spark.run_settings import RunSettings
from penstock.spark.versions.names import FIRST, check_version, is_first, next_version
from penstock.spark.versions.register import Register, check_not_retired, current_of, unfinished


def version_to_run(streams: Streams, pipeline: str, settings: RunSettings) -> str | None:
    """The version as whoever runs the program says, else the current one; None is the first.

    To process everything again, it is the version that was begun and has not caught up, else one that never was.
    Raises ConfigError for a version that is not there, and PipelineError for one that was retired: it would begin from
    nothing, and write its results a second time.
    """
    versions = Register(streams).versions(pipeline)
    if settings.reprocess:
        if settings.version is not None:
            return check_version(settings.version)
        return unfinished(versions) or next_version(each.version for each in versions)
    wanted = settings.version or current_of(versions)
    entry = next((each for each in versions if each.version == wanted), None)
    if entry is not None:
        check_not_retired(entry)
    elif versions or not is_first(wanted):
        there = ", ".join(each.version for each in versions if each.state != "retired") or FIRST
        raise ConfigError(
            f"pipeline {pipeline!r} has no version {wanted!r}; it has {there}. Make one with: penstock run FILE "
            f"--reprocess {wanted}"
        )
    return None if is_first(wanted) else wanted
