"""The spool: a producer buffer that survives the process, stored as a log in its own folder.

Records are safe when `put` returns, are delivered in order, and their segments are deleted once they are committed. The
files are segments of record batches in the format of `penstock.log`.
"""

from __future__ import annotations

from penstock.producing.spooling.spool import Spool

__all__ = ["Spool"]
