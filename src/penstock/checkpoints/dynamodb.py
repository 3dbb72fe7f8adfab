"""Checkpoints in a table of DynamoDB."""

from __future__ import annotations

from typing import Any, Final

from penstock.checkpoints._aws import client as aws_client
from penstock.checkpoints._aws import options_in
from penstock.checkpoints._dynamodb_shelf import DynamoShelf
from penstock.checkpoints._versioned import VersionedCheckpoints
from penstock.errors import ConfigError

OPTIONS: Final = frozenset({"create", "endpoint"})
CREATE: Final = {"true": True, "false": False}


class DynamoCheckpoints(VersionedCheckpoints):
    """Keeps checkpoints in a table: `dynamodb://REGION/TABLE?create=true&endpoint=...`.

    With `create=true`, a table that is not there is made, billed on demand. Else it must exist, with the partition key
    `place` and the sort key `name`, both strings. Credentials come from the usual AWS chain; `client` takes one of
    boto3 instead, which is closed with this store. `timeout_s` (10 s) is for a connection, and for an answer; four
    tries are made. Being throttled longer than that is a StoreUnavailableError.

    Each lease is an item, which is only ever written under the condition that nobody else has written it meanwhile; all
    reads are consistent. A checkpoint of up to 3 KB stands in that item, so that saving it is one small write. A larger
    one, with any number of finished records, is written to items of its own first, of at most 400 KB each, and counts
    from the moment in which the item of the lease refers to them; the old ones are removed afterwards.

    Not for a global table that is written in several regions: conditions hold within one region only.
    """

    def __init__(self, url: str, *, client: Any = None, timeout_s: float = 10.0) -> None:
        region, table, options = options_in(url, "dynamodb", OPTIONS)
        if not region or not table or "/" in table:
            raise ConfigError(f"{url!r} names no region and table: write dynamodb://REGION/TABLE")
        if options.get("create", "true") not in CREATE:
            raise ConfigError(f"{url!r}: create is true or false")
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s is {timeout_s:g}: it must be positive")
        endpoint = options.get("endpoint")
        if client is None:
            client = aws_client("dynamodb", region, endpoint, timeout_s)
        elif endpoint is not None:
            raise ConfigError(f"{url!r} names an endpoint, but a client is given, which has its own: leave one out")
        shelf = DynamoShelf(client, table, region, endpoint)
        try:
            shelf.open(CREATE[options.get("create", "false")])
        except BaseException:
            shelf.close()
            raise
        super().__init__(shelf)
