"""Versions of pipelines: processing everything again beside the version that runs, comparing, switching, retiring.

In comes a pipeline whose program was changed. Its next version reads the inputs from the earliest records on, keeps
checkpoints of its own and writes into topics of its own (`names`), while the version before goes on. `reprocessing`
runs it until it has caught up; `comparing` tells how its results differ; `register` makes it current, in one step with
the aliases that lead readers to its topics; `retiring` removes the one before.
"""

from penstock.spark.versions.choosing import version_to_run
from penstock.spark.versions.names import FIRST, checkpoint_name, next_version, output_topic
from penstock.spark.versions.targets import versioned
from penstock.streams.aliases import current_topic

__all__ = ["FIRST", "checkpoint_name", "current_topic", "next_version", "output_topic", "version_to_run", "versioned"]
