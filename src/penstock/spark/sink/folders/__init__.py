"""Folders as targets: Parquet, JSON and CSV files that appear by renaming, and lake tables.

`folder` has the public class. `file_delivery` publishes the files of a batch once, by a manifest that lists them.
`lake` writes Delta and Iceberg tables by the room `lakes`.
"""
