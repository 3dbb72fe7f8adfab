"""One function per API: a request in, the fields of its response out.

Handlers know the protocol; the coordinators and the log know the rules.
"""

from typing import Final

from penstock.broker.handlers import (
    admin,
    configs,
    group_offsets,
    groups,
    metadata,
    partitions,
    refused,
    transactions,
)
from penstock.broker.request import Apis

APIS: Final[Apis] = {
    **metadata.APIS,
    **groups.APIS,
    **group_offsets.APIS,
    **transactions.APIS,
    **admin.APIS,
    **configs.APIS,
    **partitions.APIS,
    **refused.APIS,
}
"""Produce, Fetch and ApiVersions are missing: they have their own paths."""
