"""Inspecting the types that users pass: their name, their classes, and who can decode them."""

from __future__ import annotations

import sys
import types
import typing
from typing import Any, Final, Union

_ANYTHING: Final = (Any, object, None, types.NoneType)


def is_anything(form: Any) -> bool:
    """Whether the type says nothing about its values."""
    return any(form is each for each in _ANYTHING)


def name_of(form: Any) -> str:
    """The type as a user writes it."""
    if is_anything(form):
        return "anything"
    return form.__qualname__ if isinstance(form, type) and not typing.get_args(form) else str(form)


def classes_of(form: Any) -> tuple[type, ...] | None:
    """The classes of the type's values; None if values cannot be recognised by their class."""
    if hasattr(form, "__supertype__"):  # NewType
        return classes_of(form.__supertype__)
    origin = typing.get_origin(form)
    if origin is typing.Annotated:
        return classes_of(typing.get_args(form)[0])
    if origin in (Union, types.UnionType):
        parts = [classes_of(part) for part in typing.get_args(form)]
        return None if None in parts else tuple(each for part in parts for each in part or ())
    if origin is not None:
        return classes_of(origin)
    if not isinstance(form, type) or typing.is_typeddict(form) or getattr(form, "_is_protocol", False):
        return None
    return (float, int) if form is float else (form,)


def is_pydantic(form: Any) -> bool:
    """Whether the type itself (not a field of another class) contains a pydantic model."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:  # without pydantic there are no models
        return False
    if isinstance(form, type) and not typing.get_args(form):
        return issubclass(form, pydantic.BaseModel) or hasattr(form, "__pydantic_validator__")
    return any(is_pydantic(part) for part in typing.get_args(form))


def is_pydantic_error(error: Exception) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(error, pydantic.ValidationError)


def is_protobuf(form: Any) -> bool:
    """Whether it is the class of a Protobuf message."""
    return isinstance(form, type) and hasattr(form, "DESCRIPTOR") and hasattr(form, "SerializeToString")
