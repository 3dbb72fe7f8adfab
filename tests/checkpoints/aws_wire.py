"""The requests of a boto3 client on their way: counted, and disturbed just before or after one of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from penstock.streams.adapting.aws import descriptions
from tests.moto_server import REGION, shared_endpoint

WRITING: Final = ("PutItem", "DeleteItem", "BatchWriteItem")


def is_write(request: Any) -> bool:
    """Whether a request changes what is stored."""
    target = request.headers.get("X-Amz-Target", b"")
    text = target.decode() if isinstance(target, bytes) else str(target)
    return request.method in ("PUT", "DELETE") or text.endswith(WRITING)


class Wire:
    """Stands between a client and its connections. `before` and `after` are called with the number of each write, and
    may do to it what networks, killers and other owners do."""

    def __init__(self, client: Any) -> None:
        self._session = client._endpoint.http_session
        client._endpoint.http_session = self
        self.writes = 0
        self.before: Callable[[int], None] | None = None
        self.after: Callable[[int], None] | None = None

    def arm(self, before: Callable[[int], None] | None = None, after: Callable[[int], None] | None = None) -> None:
        """Count from 1 again, and disturb from now on."""
        self.writes, self.before, self.after = 0, before, after

    def send(self, request: Any) -> Any:
        if not is_write(request):
            return self._session.send(request)
        self.writes += 1
        number = self.writes
        if self.before is not None:
            self.before(number)
        answer = self._session.send(request)
        if self.after is not None:
            self.after(number)
        return answer

    def close(self) -> None:
        self._session.close()


def lose_answer(wire: Wire, number: int) -> None:
    """Let the write of this number reach the server, but not its answer the client."""
    lost: Any = importlib.import_module("botocore.exceptions").ConnectionClosedError

    def after(current: int) -> None:
        if current == number:
            raise lost(endpoint_url=shared_endpoint())

    wire.arm(after=after)


def make_client(service: str, attempts: int = 4) -> Any:
    boto3: Any = importlib.import_module("boto3.session")
    botocore: Any = importlib.import_module("botocore.session")
    config: Any = importlib.import_module("botocore.config")
    settings = config.Config(
        retries={"mode": "standard", "total_max_attempts": attempts},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"},
    )
    session = botocore.get_session()
    session.register_component("data_loader", descriptions())
    return boto3.Session(botocore_session=session).client(
        service, region_name=REGION, endpoint_url=shared_endpoint(), config=settings
    )
