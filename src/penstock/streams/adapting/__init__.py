"""What adapters share: the base of streams and topics, how a server is reached, an event loop in a thread, queues of
records to append, writers of batches, polling, AWS clients, AMQP 1.0 values.

`penstock.streams.backend_url`, which adapters of other packages use, too, stands outside.
"""
