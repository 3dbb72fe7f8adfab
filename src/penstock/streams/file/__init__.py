"""Files as topics: `file:PATH`, a file of JSON lines or CSV, a folder of such files, or a folder of Parquet files.

A pointer of a line file is a byte offset with the generation of the file, which grows when the file is rotated; one of
a Parquet folder is a row number. `sidecar` keeps generations and row numbers stable across restarts; `lines` says how
rotation is noticed, and what cannot be noticed.
"""

from __future__ import annotations
