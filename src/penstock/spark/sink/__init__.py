"""Targets for the results of a query: topics, SQL tables, folders, functions.

`run.batch_writer` hands each batch with its number to a `target.Delivery`. For an exactly-once topic, tasks stage the
rows (`staging`), and the driver publishes them with the batch's number in one transaction (`topic_delivery`,
`publishing`), or, if they are many, tasks publish them in transactions that the driver commits (`task_transactions`).
At-least-once topics are written by the tasks themselves (`direct`).
"""
