"""Types whose JSON can be encoded and decoded without Python: of plain values, without constraints."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from msgspec import inspect

from penstock.errors import ConfigError
from penstock.serde import JsonSerde, Topic
from penstock.serde.typed import unresolved_type
from penstock.serde.types import is_anything, is_pydantic, name_of

Record = inspect.StructType | inspect.DataclassType | inspect.TypedDictType

RECORDS: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_PLAIN: Final = (inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.DateType)
LISTS: Final = (inspect.ListType, inspect.VarTupleType)
_CONSTRAINTS: Final = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def plain_record_of(topic: Topic[Any]) -> Record:
    """The topic's type, as msgspec describes it. Raises ConfigError, with the field, if it needs Python."""
    serde = topic.serde
    if not isinstance(serde, JsonSerde) or is_anything(serde.type):
        raise _needs_python(topic, f"its values are not JSON of a type, but {serde!r}")
    if serde.made_with[1].get("registry") is not None:
        raise _needs_python(topic, "its values refer to a schema in a registry")
    if is_pydantic(serde.type):
        raise _needs_python(topic, f"{name_of(serde.type)} is a pydantic model, which has its own validation")
    try:
        info = inspect.type_info(serde.type)
    except (TypeError, NameError) as error:
        raise _needs_python(topic, unresolved_type(error)) from error
    if not isinstance(info, RECORDS):
        raise _needs_python(topic, f"{name_of(serde.type)} has no fields")
    why = _not_plain(info, name_of(serde.type), ())
    if why is not None:
        raise _needs_python(topic, why)
    return info


def parts_of(info: inspect.Type) -> tuple[inspect.Type, bool]:
    """The type without None, and whether it may be None."""
    if isinstance(info, inspect.LiteralType) and None in info.values:
        return inspect.LiteralType(tuple(value for value in info.values if value is not None)), True
    if not isinstance(info, inspect.UnionType):
        return info, False
    parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
    return (parts[0], info.includes_none) if len(parts) == 1 else (info, False)


def choices_of(info: inspect.Type) -> list[str] | list[int] | None:
    """The values of an Enum or a Literal if all are text or all are integers, else None."""
    if isinstance(info, inspect.EnumType):
        values: list[Any] = [member.value for member in info.cls]
    elif isinstance(info, inspect.LiteralType):
        values = list(info.values)
    else:
        return None
    return values if {type(value) for value in values} in ({str}, {int}) else None


def default_of(field: inspect.Field) -> Any:
    """The value of a missing field: a plain one, or an empty list; NODEFAULT if it is required."""
    if field.required:
        return msgspec.NODEFAULT
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if isinstance(default, enum.Enum):
        default = default.value
    return None if default is msgspec.NODEFAULT else default


def _not_plain(info: inspect.Type, path: str, inside: tuple[Any, ...]) -> str | None:
    """Why the type needs Python; None if it does not."""
    inner, _ = parts_of(info)
    if isinstance(inner, inspect.Metadata) or any(getattr(inner, rule, None) is not None for rule in _CONSTRAINTS):
        return f"{path} has constraints"
    if isinstance(inner, RECORDS):
        return _not_plain_record(inner, path, inside)
    if isinstance(inner, LISTS):
        if parts_of(inner.item_type)[1]:
            return f"{path} may have None among its items"
        return _not_plain(inner.item_type, f"{path}[]", inside)
    if isinstance(inner, inspect.DateTimeType):
        return f"{path} is a time without a zone" if inner.tz is False else None
    if isinstance(inner, _PLAIN) or choices_of(inner) is not None:
        return None
    return f"{path} is a {type(inner).__name__.removesuffix('Type')}"


def _not_plain_record(info: Record, path: str, inside: tuple[Any, ...]) -> str | None:
    if info.cls in inside:
        return f"{path} is recursive"
    if hasattr(info.cls, "__post_init__") or hasattr(info.cls, "__attrs_attrs__"):
        return f"{name_of(info.cls)} has its own validation"
    if isinstance(info, inspect.StructType) and (
        info.array_like or info.tag_field is not None or info.forbid_unknown_fields
    ):
        return f"{name_of(info.cls)} is array_like, tagged, or forbids unknown fields"
    for field in info.fields:
        at = f"{path}.{field.name}"
        if "'" in field.encode_name or "\\" in field.encode_name:
            return f"{at} has a name with a quote or a backslash"
        why = _not_plain(field.type, at, (*inside, info.cls))
        if why is not None:
            return why
        default = default_of(field)
        if (
            default is not msgspec.NODEFAULT
            and not isinstance(default, bool | int | float | str | None)
            and default != []
        ):
            return f"{at} has a default that is not a plain value"
    return None


def _needs_python(topic: Topic[Any], why: str) -> ConfigError:
    return ConfigError(
        f"topic {topic.name!r} cannot be decoded without Python, as in real-time mode: {why}. Read it in "
        "micro-batches, or give it a type of plain values: int, float, bool, str, dates, times with a zone, choices, "
        "and lists and records of them"
    )
