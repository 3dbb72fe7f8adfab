"""Change data capture out: a topic of changes into a table of a database, and whether two tables are the same.

`applier` consumes a topic, `decoding` says what a record does, `target` writes rows, and `comparing` finds and repairs
what differs between two databases, with `compared_tables` for their rows.
"""

from penstock.tables.apply.applier import Applier as Applier
from penstock.tables.apply.comparing import Comparison as Comparison
from penstock.tables.apply.comparing import compare as compare

__all__ = ["Applier", "Comparison", "compare"]
