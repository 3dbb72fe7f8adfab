"""Producing: records from the program that makes them, kept in a buffer until the stream has acknowledged them.

In come values; they are encoded, kept in memory or in a spool that survives the process, and delivered in order, tried
again as long as that can help. Out go receipts, each settled once: the record stands there, or this is why it does not.
"""
