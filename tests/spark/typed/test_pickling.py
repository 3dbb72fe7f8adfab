"""Classes of the main program reach processes that cannot import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MAIN = """
from __future__ import annotations

import dataclasses
import enum
import sys
import typing

import attrs
import msgspec
import pydantic

from penstock.serde import Topic
from penstock.spark.sessions.pickling import by_value


class Size(enum.Enum):
    SMALL = "small"


@dataclasses.dataclass
class Data:
    x: int
    size: Size = Size.SMALL
    parts: list[int] = dataclasses.field(default_factory=list)

    def doubled(self) -> Data:
        return Data(self.x * 2)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int
    inner: Data | None = None


class Struct(msgspec.Struct, rename="camel", frozen=True):
    x: int
    some_name: str = "y"
    many: list[int] = []

    def __post_init__(self) -> None:
        if self.x > 5:
            raise ValueError("too big")

    def doubled(self) -> Struct:
        return Struct(self.x * 2)


class Derived(Struct, kw_only=True):
    z: int = 3


T = typing.TypeVar("T")


class Generic(msgspec.Struct, typing.Generic[T]):
    x: T


class Typed(typing.TypedDict):
    x: int
    y: typing.NotRequired[int]


class Named(typing.NamedTuple):
    x: int
    y: str = "a"


@attrs.define
class Attrs:
    x: int = attrs.field(validator=attrs.validators.lt(6))


class Model(pydantic.BaseModel):
    x: int = pydantic.Field(lt=6)


kinds = [Data, Slotted, Struct, Derived, Generic[int], Typed, Named, Attrs, Model]
topics = [Topic(str(number), kind, key=lambda value: str(Size.SMALL)) for number, kind in enumerate(kinds)]
with open(sys.argv[1], "wb") as out:
    out.write(by_value(topics))
for topic in topics:
    print(topic.decode(b"[1]" if topic.type is Named else b'{"x":1}'))
"""

READER = """
import pickle
import sys

with open(sys.argv[1], "rb") as file:
    topics = pickle.load(file)
for topic in topics:
    is_named = topic.type.__name__ == "Named"
    value = topic.decode(b"[1]" if is_named else b'{"x":1}')
    print(value)
    assert topic.new_record(value).key == b"Size.SMALL"
    refused = 0
    for data in (b"[7]", b'{"x":7}', b'{"x":"1"}', b"{}"):
        try:
            topic.decode(data)
        except Exception:
            refused += 1
    has_limit = topic.type.__name__ in ("Struct", "Derived", "Attrs", "Model")
    lax = topic.type.__name__ == "Model"
    assert refused == 3 + has_limit - lax, (topic, refused)
    if hasattr(value, "doubled"):
        assert value.doubled().x == 2
"""


def test_classes_of_the_main_program_arrive_as_they_were(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    outputs = []
    for name, program in (("main.py", MAIN), ("reader.py", READER)):
        (tmp_path / name).write_text(program)
        run = subprocess.run(
            [sys.executable, tmp_path / name, sent], capture_output=True, text=True, timeout=100, check=False
        )
        assert run.returncode == 0, run.stderr
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 9
