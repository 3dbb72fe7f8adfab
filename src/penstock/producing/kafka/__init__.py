"""Delivering to Kafka's streams by librdkafka, with and without transactions."""
