"""The storage engine: a partitioned, durable, replayable log of record batches, in plain files.

Batches are stored byte for byte as clients sent them. The room knows nothing of sockets: the broker, the spool, and
readers in other processes use it.
"""
