"""Tables of PostgreSQL and SQLite as topics: `postgresql://...` and `sqlite:FILE`.

Two kinds of tables can be read. *Topic tables* are made by `create_topic`: they have partitions and dense offsets, and
anybody may insert into them. *Existing tables* of the user, such as an outbox, are read when the URL says which column
orders them (`?id_column=id`); they are never written to.

No reader passes a row that may still appear. A writer of a topic table takes its offsets from a counter, whose row it
locks until it commits, so rows appear in the order of their offsets. The ids of an existing table come from a sequence,
and transactions may commit in another order: `existing_postgres` shows how a reader knows up to where ids are final.
"""

from __future__ import annotations
