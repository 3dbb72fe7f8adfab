"""The format "penstock": streams as a source of Spark.

`format` turns options (a URL, a topic, a position) into readers. For each batch, `stream_reader` asks the stream for
its ends (`topic_view`, `position_lookup`), limits the batch (`admission`) and divides it into tasks (`origin`).
Tasks read exactly their ranges (`task_reading`) as Arrow batches, from the files of an embedded log on the same host,
else through the client.
"""
