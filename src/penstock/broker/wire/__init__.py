"""Decoding Kafka requests and encoding responses.

Produce and Fetch carry the records and are written by hand, so that a batch is never copied; everything else uses the
protocol's schemas from the kio package.
"""
