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

VERSIONS: Final[dict[int, tuple[int, int]]] = {
    **metadata.VERSIONS,
    **offsets.VERSIONS,
    **groups.VERSIONS,
    **transactions.VERSIONS,
    **admin.VERSIONS,
    **configs.VERSIONS,
    **partitions.VERSIONS,
    **refused.VERSIONS,
}
"""By API key: the lowest and the highest version that the handler answers."""
