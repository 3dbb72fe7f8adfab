"""Event sourcing: aggregates whose state is a fold of their events, in a topic of a stream with transactions.

`aggregate` declares them, `store` loads them and appends with an expected version, `shard` does so for one partition,
and `projections` keeps tables of a database up to date with the events.
"""

from penstock.tables.events.aggregate import Aggregate as Aggregate
from penstock.tables.events.aggregate import applies as applies
from penstock.tables.events.aggregate import upcasts as upcasts
from penstock.tables.events.projections import Projection as Projection
from penstock.tables.events.store import EventStore as EventStore
from penstock.tables.events.store import Loaded as Loaded
from penstock.tables.events.store import StoredEvent as StoredEvent

__all__ = ["Aggregate", "EventStore", "Loaded", "Projection", "StoredEvent", "applies", "upcasts"]
