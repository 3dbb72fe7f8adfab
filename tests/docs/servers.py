"""The servers that pages speak of, at the addresses that pages name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.docs.blocks import Page
from tests.postgres import shared_postgres
from tests.redis_server import shared_url
from tests.servers import Penstock
from tests.systems.nats_server import NatsServer

KAFKA = "host:9092"
"""The Kafka of every page. Our own broker stands in for it: it is what the client tests hold to be the same."""
POSTGRES = "postgresql://ann@db/shop"
REDIS = "redis://host:6379/0"
NATS = "nats://host:4222"


@contextmanager
def servers_of(page: Page, folder: Path) -> Iterator[dict[str, str]]:
    """What the page names, and what stands in its place here."""
    replace = {}
    if "postgres" in page.servers:
        replace[POSTGRES] = shared_postgres().fresh_database()
    if "redis" in page.servers:
        replace[REDIS] = shared_url()
    with ExitStack() as running:
        if "nats" in page.servers:
            replace[NATS] = running.enter_context(NatsServer(folder / "nats")).url
        if "kafka" in page.servers:
            replace[KAFKA] = running.enter_context(Penstock(folder)).bootstrap
        yield replace
