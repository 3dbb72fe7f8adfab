"""Folders as targets: Parquet, JSON and CSV files that appear by renaming, and Delta tables.

`folder` has the public class. `file_delivery` publishes the files of a batch once, by a manifest that lists them.
`delta` relies on Delta's own log.
"""
