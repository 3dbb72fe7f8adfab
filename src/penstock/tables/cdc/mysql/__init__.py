"""MySQL and MariaDB as a source: their row binlog, read as a replica does; no plugin on the server, no JVM.

`connections` speaks the protocol by PyMySQL; `catalog` checks server and tables; `binlog` parses events, `statements`
what they say of DDL; `values` turns rows into JSON; `changes` makes batches of them; `snapshot` reads rows; `source`
puts them together; `logs` tells how long the server keeps its binlog.
"""
