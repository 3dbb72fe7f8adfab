"""Pickles classes of the main program by value, for tasks, which cannot import it.

cloudpickle does that for most classes, but not for those that msgspec has used: msgspec's cache in the class cannot be
pickled, a Struct arrives without its fields, and annotations that are strings lose the module that defines their names.
`by_value` handles all three.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import pickle
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from pyspark import cloudpickle

_STRUCT: Final = type(msgspec.Struct)
_CACHE: Final = "__msgspec_cache__"
_POST_INIT: Final = "__post_init__"
_LATE_POST_INIT: Final = "_post_init_sent_by_value"
_OWN_OF_STRUCTS: Final = frozenset(
    {
        "__annotations__",
        "__annotate_func__",
        "__dict__",
        "__match_args__",
        "__orig_bases__",
        "__rename__",
        "__slots__",
        "__weakref__",
        _CACHE,
        _POST_INIT,
    }
)
_CONFIG: Final = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "repr_omit_defaults",
    "omit_defaults",
    "forbid_unknown_fields",
    "weakref",
    "dict",
    "cache_hash",
    "tag",
    "tag_field",
)


def by_value(thing: object) -> bytes:
    """The object for `pickle.loads` in a process with the same packages, but without the main program."""
    out = io.BytesIO()
    pickler: Any = _Pickler
    pickler(out).dump(thing)
    return out.getvalue()


class SentByValue:
    """A base class of objects that every pickler pickles by value."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), by_value(self.__getstate__()))

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)


def _restored(kind: type[SentByValue], state: bytes) -> SentByValue:
    thing = kind.__new__(kind)
    thing.__dict__.update(pickle.loads(state))
    return thing


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        if thing is dataclasses.MISSING or thing is dataclasses.KW_ONLY:  # they are compared by identity
            return getattr, (dataclasses, "MISSING" if thing is dataclasses.MISSING else "KW_ONLY")
        reduced = super().reducer_override(thing)  # type: ignore[no-untyped-call]
        if not isinstance(thing, type) or not isinstance(reduced, tuple) or len(reduced) < 3:
            return reduced  # not a class, or one that is imported by name
        if isinstance(thing, _STRUCT):
            return _reduced_struct(thing)
        make, arguments, (attributes, slots), *rest = reduced
        attributes.pop(_CACHE, None)
        if "__annotations__" in attributes:
            attributes["__annotations__"] = _resolved(thing)
        return make, arguments, (attributes, slots), *rest


def _resolved(form: Any) -> dict[str, Any]:
    """The annotations of a class, with types instead of strings if they can be resolved."""
    own: dict[str, Any] = inspect.get_annotations(form)
    if not any(isinstance(each, str | typing.ForwardRef) for each in own.values()):
        return own
    try:
        known = typing.get_type_hints(form, include_extras=True)
    except (NameError, TypeError):
        return own
    return {name: known.get(name, each) for name, each in own.items()}


def _reduced_struct(form: Any) -> tuple[Any, ...]:
    """A Struct as its class statement, then its other attributes, as methods may refer to the class."""
    annotations = _resolved(form) if "__annotations__" in form.__dict__ else {}
    fields = {field.name: field for field in msgspec.structs.fields(form)}
    own: dict[str, Any] = {}
    for name in annotations:
        if name in fields:
            own[name] = _given(fields[name])
    config = {name: getattr(form.__struct_config__, name) for name in _CONFIG if hasattr(form.__struct_config__, name)}
    config["kw_only"] = any(name in own and name not in form.__match_args__ for name in fields)
    statement = {"__annotations__": annotations, "__module__": form.__module__, "__qualname__": form.__qualname__}
    late = {
        name: each
        for name, each in form.__dict__.items()
        if name not in _OWN_OF_STRUCTS and name not in own and name not in statement and not name.startswith("__struct")
    }
    if _POST_INIT in form.__dict__:
        late[_LATE_POST_INIT] = form.__dict__[_POST_INIT]
    bases = form.__dict__.get("__orig_bases__", form.__bases__)
    arguments = (form.__name__, bases, statement, own, config, _POST_INIT in form.__dict__)
    return _make_struct, arguments, late, None, None, _add


def _given(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    """The arguments of `msgspec.field` for a field."""
    given: dict[str, Any] = {"name": field.encode_name}
    if field.default is not msgspec.NODEFAULT:
        given["default"] = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        given["default_factory"] = field.default_factory
    return given


def _make_struct(
    name: str,
    bases: tuple[Any, ...],
    statement: Mapping[str, Any],
    fields: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, Any],
    has_post_init: bool,
) -> type:
    namespace = {**statement, **{each: msgspec.field(**given) for each, given in fields.items()}}
    if has_post_init:
        namespace[_POST_INIT] = _post_init
    return types.new_class(name, bases, dict(config), lambda made: made.update(namespace))


def _post_init(self: Any) -> None:
    """A Struct looks for its __post_init__ when the class is created, before its attributes are set."""
    getattr(type(self), _LATE_POST_INIT)(self)


def _add(form: type, attributes: Mapping[str, Any]) -> None:
    for name, each in attributes.items():
        setattr(form, name, each)
