"""Rows that fail by themselves: guarded functions and expectations find them, and the rest of the batch goes on.

`reports` brings such rows from the tasks to the driver. `batch_rows` counts them, stops the query above `max_bad_rows`,
and puts them into the dead letters before the batch is committed.
"""
