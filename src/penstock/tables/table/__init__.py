"""`Table`: a keyed topic as rows in this process, kept fresh.

`table` is what users hold. `following` reads the topic in a thread and applies each batch to rows: `rows` in memory,
`disk` in a SQLite file with the pointers. `history` reads the rows of an earlier moment, `serving` answers over HTTP.
"""

from penstock.tables.table.rows import TableChange as TableChange
from penstock.tables.table.serving import TableServer as TableServer
from penstock.tables.table.table import Table as Table
from penstock.tables.table.table import TableFreshness as TableFreshness
from penstock.tables.table.table import TableSnapshot as TableSnapshot

__all__ = ["Table", "TableChange", "TableFreshness", "TableServer", "TableSnapshot"]
