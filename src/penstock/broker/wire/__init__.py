"""Bytes of the Kafka protocol to requests, and answers to bytes.

Produce and Fetch carry the records and are written by hand, so that a batch is never copied; everything else goes by
the protocol's own schemas, as the kio package has them.
"""
