"""Checkpoints in Kafka itself: in a compacted topic, fenced by Kafka's transactions."""
