"""Types whose JSON can be read without Python: made of plain values, with no rules of their own."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from msgspec import inspect

from penstock.errors import ConfigError
from penstock.serde import JsonSerde, Topic
from penstock.serde.typed import why_untold
from penstock.serde.types import is_anything, is_pydantic, name_of

Record = inspect.StructType | inspect.DataclassType | inspect.TypedDictType

_RECORDS: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_PLAIN: Final = (inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.DateType)
_LISTS: Final = (inspect.ListType, inspect.VarTupleType)
_RULES: Final = (
    "gt",
    "ge",
    "lt",
    "le",
    "multiple_of",
    "min_length",
    "max_length",
    "pattern",
)


def plain_record_of(topic: Topic[Any]) -> Record:
    """What msgspec says about the topic's type. ConfigError, naming the field, where it takes Python to read it."""
    serde = topic.serde
    if not isinstance(serde, JsonSerde) or is_anything(serde.type):
        raise _takes_python(topic, f"its values are no JSON of a type, but {serde!r}")
    if serde.made_with[1].get("registry") is not None:
        raise _takes_python(topic, "its values name a schema in a registry")
    if is_pydantic(serde.type):
        raise _takes_python(topic, f"{name_of(serde.type)} is a pydantic model, which has rules of its own")
    try:
        info = inspect.type_info(serde.type)
    except (TypeError, NameError) as error:
        raise _takes_python(topic, why_untold(error)) from error
    if not isinstance(info, _RECORDS):
        raise _takes_python(topic, f"{name_of(serde.type)} has no fields")
    why = _not_plain(info, name_of(serde.type), ())
    if why is not None:
        raise _takes_python(topic, why)
    return info


def parts_of(info: inspect.Type) -> tuple[inspect.Type, bool]:
    """The type itself, and whether it may be None."""
    if isinstance(info, inspect.LiteralType) and None in info.values:
        return inspect.LiteralType(tuple(value for value in info.values if value is not None)), True
    if not isinstance(info, inspect.UnionType):
        return info, False
    parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
    return (parts[0], info.includes_none) if len(parts) == 1 else (info, False)


def choices_of(info: inspect.Type) -> list[str] | list[int] | None:
    """The values of an Enum or a Literal; None for other types, and for a choice of other values."""
    if isinstance(info, inspect.EnumType):
        values: list[Any] = [member.value for member in info.cls]
    elif isinstance(info, inspect.LiteralType):
        values = list(info.values)
    else:
        return None
    return values if {type(value) for value in values} in ({str}, {int}) else None


def default_of(field: inspect.Field) -> Any:
    """The value of a field that is missing: a plain one, or an empty list; NODEFAULT where it is required."""
    if field.required:
        return msgspec.NODEFAULT
    default = field.default
    if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if isinstance(default, enum.Enum):
        default = default.value
    return None if default is msgspec.NODEFAULT else default


def _not_plain(info: inspect.Type, path: str, inside: tuple[Any, ...]) -> str | None:
    """Why the type takes Python; None where it does not."""
    inner, _ = parts_of(info)
    if isinstance(inner, inspect.Metadata) or any(getattr(inner, rule, None) is not None for rule in _RULES):
        return f"{path} has a rule that its values must keep"
    if isinstance(inner, _RECORDS):
        return _not_plain_record(inner, path, inside)
    if isinstance(inner, _LISTS):
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
        return f"{path} contains itself"
    if hasattr(info.cls, "__post_init__") or hasattr(info.cls, "__attrs_attrs__"):
        return f"{name_of(info.cls)} has rules of its own"
    if isinstance(info, inspect.StructType) and (
        info.array_like or info.tag_field is not None or info.forbid_unknown_fields
    ):
        return f"{name_of(info.cls)} is array_like, tagged, or forbids unknown fields"
    for field in info.fields:
        at = f"{path}.{field.name}"
        if "'" in field.encode_name or "\\" in field.encode_name:
            return f"{at} has a name that no path can say"
        why = _not_plain(field.type, at, (*inside, info.cls))
        if why is not None:
            return why
        default = default_of(field)
        if (
            default is not msgspec.NODEFAULT
            and not isinstance(default, bool | int | float | str | None)
            and default != []
        ):
            return f"{at} has a default that is no plain value"
    return None


def _takes_python(topic: Topic[Any], why: str) -> ConfigError:
    return ConfigError(
        f"topic {topic.name!r} cannot be read without Python, as real-time mode has to: {why}. Read it in "
        "micro-batches, or give it a type of plain values: int, float, bool, str, dates, times with a zone, choices, "
        "and lists and records of them"
    )
