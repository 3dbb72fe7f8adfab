"""Outbox and inbox: an event that commits together with a row, and an effect that happens once per event.

`Outbox` writes events to a table of the application's own database, inside its transaction (`connections` knows
psycopg, sqlite3, SQLAlchemy and Django). `Relay` delivers them to a stream, in order, and removes them. `Inbox`
remembers which events a consumer has handled, inside the transaction of its effect.
"""

from penstock.tables.outbox.inbox import Inbox as Inbox
from penstock.tables.outbox.outbox import Outbox as Outbox
from penstock.tables.outbox.outbox import OutboxTransaction as OutboxTransaction
from penstock.tables.outbox.relay import Relay as Relay

__all__ = ["Inbox", "Outbox", "OutboxTransaction", "Relay"]
