"""One function per API: a request in, the fields of its answer out. They know the protocol; the coordinators and the
log
know the rules."""

from typing import Final

from penstock.broker.handlers import (
    admin,
    configs,
    groups,
    metadata,
    offsets,
    partitions,
    refused,
    transactions,
)
from penstock.broker.request import Handler

HANDLERS: Final[dict[int, Handler]] = {
    **metadata.HANDLERS,
    **offsets.HANDLERS,
    **groups.HANDLERS,
    **transactions.HANDLERS,
    **admin.HANDLERS,
    **configs.HANDLERS,
    **partitions.HANDLERS,
    **refused.HANDLERS,
}
"""By API key. Produce, Fetch and ApiVersions are not among them: they have a path of their own."""

VERSIONS: Final[dict[int, tuple[int, int]]] = { **metadata.VERSIONS, **offsets.VERSIONS, 10: (0, 6), 11: (0, 9), 12:
(0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 42: (0, 2), 8: (2, 10), 9: (1, 10), 28: (0, 5), 47: (0, 0),
22: (0, 5), 24: (0, 3), 25: (0, 4), 26: (0, 4), 27: (1, 1), 65: (0, 0), 66: (0, 1), **admin.VERSIONS,
**configs.VERSIONS, **partitions.VERSIONS, **refused.VERSIONS, }
