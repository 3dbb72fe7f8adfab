"""PostgreSQL as a source: its own logical replication (pgoutput), spoken over libpq; no plugin on the server, no JVM.

`catalog` checks tables, publication and slot; `snapshot` reads rows by COPY; `pgoutput` parses changes; `values` turns
the text of both into JSON; `source` puts them together; `slots` tells how far a slot is behind, and until when.
"""
