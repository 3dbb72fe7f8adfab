"""The storage engine: a partitioned, durable, replayable log of record batches, in plain files.

Batches come in as clients sent them and go out byte for byte the same. The room knows nothing of sockets: the broker, a
spool, or a reader in another process all stand on it.
"""
