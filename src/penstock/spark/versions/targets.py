"""Where a version of a pipeline writes, given where its program says."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from penstock.errors import ConfigError
from penstock.spark.targets import Target
from penstock.spark.versions.names import check_version, is_first


@runtime_checkable
class VersionedTarget(Protocol):
    """A target that has a place for each version: a topic `spend.v2`, a table `spend_v2`, a folder `spend.v2`."""

    def for_version(self, version: str) -> Target: ...


def versioned(target: Target, version: str | None) -> Target:
    """Where this version writes. ConfigError when a later version would write into the results of the first."""
    if version is None or is_first(version):
        return target
    check_version(version)
    if not isinstance(target, VersionedTarget):
        raise ConfigError(
            f"{target.label} has one place only, and version {version} would write there what the current version has "
            "written: write to a topic, a table or a folder, or give the target a method for_version(version)"
        )
    return target.for_version(version)
