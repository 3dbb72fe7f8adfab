"""The servers that pages speak of, at the addresses that pages name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.blocks import Page
from tests.postgres import shared_postgres
from tests.servers import Penstock

KAFKA = "host:9092"
"""The Kafka of every page. Our own broker stands in for it: it is what the client tests hold to be the same."""
POSTGRES = "postgresql://ann@db/shop"


@contextmanager
def servers_of(page: Page, folder: Path) -> Iterator[dict[str, str]]:
    """What the page names, and what stands in its place here."""
    replace = {}
    if "postgres" in page.servers:
        replace[POSTGRES] = shared_postgres().fresh_database()
    if "kafka" not in page.servers:
        yield replace
        return
    with Penstock(folder) as kafka:
        yield {**replace, KAFKA: kafka.bootstrap}
