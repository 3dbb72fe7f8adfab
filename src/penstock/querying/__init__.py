"""Queries: SQL over the topics of a stream, by DuckDB.

`database` runs queries, and limits what they may do; `statements` checks them and finds the topics that they read;
`topic_table` is a topic as a table of DuckDB, `bounds` what of it a filter needs, and `values` its text and typed
columns. Records come from the log's own files where they are on this machine, else through the client; the ends are
those that the stream serves, so a query sees committed records only.
"""

from __future__ import annotations
