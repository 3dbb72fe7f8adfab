"""Versions of pipelines: reprocess everything beside the running version, compare, switch, retire.

The next version of a changed pipeline reads its inputs from the earliest records, with its own checkpoints and output
topics (`names`), while the previous version keeps running. `reprocessing` runs it until it has caught up; `comparing`
compares the results; `register` makes it current, atomically with the aliases that point readers to its topics;
`retiring` deletes the previous version.
"""

from penstock.spark.versions.names import FIRST, checkpoint_name, next_version, output_topic
from penstock.spark.versions.register import version_to_run
from penstock.spark.versions.versioned_targets import versioned
from penstock.streams.aliases import current_topic

__all__ = ["FIRST", "checkpoint_name", "current_topic", "next_version", "output_topic", "version_to_run", "versioned"]
