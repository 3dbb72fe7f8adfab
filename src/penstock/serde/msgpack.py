"""MessagePack: like JSON, smaller, and with bytes."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.errors import ConfigError
from penstock.serde.typed import TypedSerde, check_expressible
from penstock.serde.types import is_anything, is_pydantic, name_of

_ENCODER: Final = msgspec.msgpack.Encoder()


class MsgpackSerde(TypedSerde):
    """Values of a type as MessagePack; without a type, any MessagePack value."""

    FORMAT = "MessagePack"

    def __init__(self, type: Any = None, *, verify: bool = True) -> None:
        if is_pydantic(type):
            raise ConfigError(f"{name_of(type)} is a pydantic model, which can only be written as JSON")
        if is_anything(type):
            decode = msgspec.msgpack.Decoder().decode
        else:
            check_expressible(type, "read from MessagePack")
            decode = msgspec.msgpack.Decoder(type).decode
        self.made_with = ((type,), {"verify": verify})
        super().__init__(type, _ENCODER.encode, decode, verify=verify)
