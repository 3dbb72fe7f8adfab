"""The spool: a buffer that survives the process, kept as a log in a folder of its own.

Records come in one by one and are kept when `put` returns; they go out in order, and their segments are deleted once
they are committed. The files are segments of record batches as `penstock.log` lays them out, checks them and finds its
way behind damage.
"""

from __future__ import annotations

from penstock.producing.spooling.spool import Spool

__all__ = ["Spool"]
