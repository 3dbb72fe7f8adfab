"""RabbitMQ streams: `rabbitmq-stream://` URLs, and `rabbitmq-stream+tls://` for TLS.

A topic is a stream, or a super stream with a stream for each partition; a pointer is RabbitMQ's offset. Comes in a URL,
goes out `abc.Stream`. `protocol` has the frames of the stream protocol, `connection` one connection, `client` those to
all nodes; `messages` turns records into AMQP 1.0 messages and back.
"""
