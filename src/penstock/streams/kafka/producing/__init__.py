"""Sending to Kafka through librdkafka: a plain producer (`producer`), and one with `transactions` on top of it.

`sending` adds receipts, for connections. The producers of `penstock.producing`, checkpoints in Kafka and Spark's sink
use the same two producers.
"""
