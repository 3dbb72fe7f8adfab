"""The form of a Python type: dataclasses, attrs and pydantic classes, msgspec structs, TypedDicts, NamedTuples, and
the plain types in them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import inspect

from penstock.errors import ConfigError
from penstock.serde.forms import scalars
from penstock.serde.forms.form import ArrayForm, Field, Form, MapForm, RecordForm, ScalarForm
from penstock.serde.typed import unresolved_type
from penstock.serde.types import is_pydantic, name_of

_PLAIN: Final[dict[type[inspect.Type], ScalarForm]] = {
    inspect.BoolType: scalars.BOOLEAN,
    inspect.IntType: scalars.INTEGER,
    inspect.FloatType: scalars.FLOAT,
    inspect.StrType: scalars.TEXT,
    inspect.BytesType: scalars.BYTES,
    inspect.ByteArrayType: scalars.BYTEARRAY,
    inspect.MemoryViewType: scalars.BYTEARRAY,
    inspect.DateType: scalars.DATE,
    inspect.TimeType: scalars.TIME,
    inspect.TimeDeltaType: scalars.TIMESPAN,
    inspect.UUIDType: scalars.UUID,
    inspect.DecimalType: scalars.DECIMAL,
}
_ARRAYS: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
_RECORDS: Final = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType, inspect.NamedTupleType)
_PYDANTIC_TIMES: Final = {"AwareDatetime": scalars.TIMESTAMP_TZ, "NaiveDatetime": scalars.TIMESTAMP}
_PYDANTIC_DATES: Final = ("PastDate", "FutureDate")
_PYDANTIC_TIMESTAMPS: Final = ("PastDatetime", "FutureDatetime")


def form_of_type(form: Any) -> tuple[Form, bool]:
    """The form of a type, and whether None is one of its values. Raises ConfigError for a type without columns."""
    return _Deriving(name_of(form)).of_annotation(form, name_of(form))


class _Deriving:
    """One derivation, with the records that enclose the current type, to detect recursion."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._inside: list[Any] = []

    def of_annotation(self, annotation: Any, path: str) -> tuple[Form, bool]:
        try:
            info = inspect.type_info(annotation)
        except (TypeError, NameError) as error:
            raise self._no_columns(path, unresolved_type(error)) from error
        return self._place(info, path)

    def _place(self, info: inspect.Type, path: str) -> tuple[Form, bool]:
        """The form of a type, and whether it allows None."""
        while isinstance(info, inspect.Metadata):
            info = info.type
        if isinstance(info, inspect.LiteralType) and None in info.values:
            values = [value for value in info.values if value is not None]
            return self._of_values(values, path), True
        if not isinstance(info, inspect.UnionType):
            return self._form(info, path), isinstance(info, inspect.NoneType)
        parts = [part for part in info.types if not isinstance(part, inspect.NoneType)]
        if len(parts) != 1:
            raise self._no_columns(path, "it may be of several types, and a column has one")
        inner, _ = self._place(parts[0], path)
        return inner, info.includes_none

    def _form(self, info: inspect.Type, path: str) -> Form:
        if type(info) in _PLAIN:
            return _PLAIN[type(info)]
        if isinstance(info, inspect.DateTimeType):
            return scalars.TIMESTAMP if info.tz is False else scalars.TIMESTAMP_TZ
        if isinstance(info, _ARRAYS):
            return ArrayForm(self._place(info.item_type, f"{path}[]")[0])
        if isinstance(info, inspect.TupleType):
            return self._tuple(info, path)
        if isinstance(info, inspect.DictType):
            return self._map(info, path)
        if isinstance(info, inspect.EnumType):
            form = scalars.enum_form(info.cls)
            if form is None:
                raise self._no_columns(path, f"{info.cls.__name__} has values neither all text nor all integers")
            return form
        if isinstance(info, inspect.LiteralType):
            return self._of_values(list(info.values), path)
        if isinstance(info, _RECORDS):
            return self._record(info, path)
        if isinstance(info, inspect.CustomType):
            return self._custom(info.cls, path)
        raise self._no_columns(path, _WHY.get(type(info), f"{type(info).__name__} has no counterpart"))

    def _of_values(self, values: list[Any], path: str) -> ScalarForm:
        form = scalars.of_values(values)
        if form is None:
            raise self._no_columns(path, "the values of its Literal are neither all text nor all integers")
        return form

    def _tuple(self, info: inspect.TupleType, path: str) -> RecordForm:
        fields = []
        for index, part in enumerate(info.item_types):
            name = f"_{index + 1}"
            inner, optional = self._place(part, f"{path}.{name}")
            fields.append(Field(name, name, inner, operator.itemgetter(index), optional, False))
        return RecordForm(path, tuple(fields), as_sequence=True)

    def _map(self, info: inspect.DictType, path: str) -> MapForm:
        keys, keys_optional = self._place(info.key_type, f"{path}{{key}}")
        if keys_optional or not isinstance(keys, ScalarForm):
            raise self._no_columns(path, "its keys are not of a plain type")
        return MapForm(keys, self._place(info.value_type, f"{path}{{}}")[0])

    def _record(self, info: Any, path: str) -> RecordForm:
        with self._entering(info.cls, path):
            as_sequence = isinstance(info, inspect.NamedTupleType) or bool(getattr(info, "array_like", False))
            fields = tuple(self._field(info, field, path) for field in _as_declared(info))
        return RecordForm(name_of(info.cls), fields, as_sequence)

    def _field(self, info: Any, field: inspect.Field, path: str) -> Field:
        inner, optional = self._place(field.type, f"{path}.{field.name}")
        no_default = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        is_left_out = not field.required and no_default  # NotRequired, and UNSET
        if isinstance(info, inspect.TypedDictType):
            get: Callable[[Any], Any] = (
                operator.itemgetter(field.name) if field.required else operator.methodcaller("get", field.name)
            )
        elif is_left_out:
            get = _unless_unset(field.name)
        else:
            get = operator.attrgetter(field.name)
        return Field(
            field.name, field.encode_name, inner, get, optional, not field.required, is_left_out and not optional
        )

    def _custom(self, form: Any, path: str) -> Form:
        name = getattr(form, "__name__", "")
        if getattr(form, "__module__", "") == "pydantic.types":
            if name in _PYDANTIC_TIMES:
                return _PYDANTIC_TIMES[name]
            if name in _PYDANTIC_DATES:
                return scalars.DATE
            if name in _PYDANTIC_TIMESTAMPS:
                return scalars.TIMESTAMP_TZ
        if is_pydantic(form):
            return self._pydantic(form, path)
        raise self._no_columns(path, f"the columns of {name_of(form)} are unknown")

    def _pydantic(self, form: Any, path: str) -> RecordForm:
        if getattr(form, "__pydantic_root_model__", False):
            raise self._no_columns(path, "it is a RootModel, which has no fields: use the type that it wraps")
        if not getattr(form, "__pydantic_complete__", True):  # it refers to classes that were defined later
            try:
                form.model_rebuild()
            except NameError as error:
                raise self._no_columns(path, unresolved_type(error)) from error
        described = getattr(form, "model_fields", None) or getattr(form, "__pydantic_fields__", {})
        fields = []
        with self._entering(form, path):
            for name, field in described.items():
                alias = field.validation_alias or field.alias or name
                if not isinstance(alias, str):
                    raise self._no_columns(f"{path}.{name}", "it is read from several names")
                inner, optional = self.of_annotation(field.annotation, f"{path}.{name}")
                get = operator.attrgetter(name)
                fields.append(Field(name, alias, inner, get, optional, not field.is_required()))
        return RecordForm(name_of(form), tuple(fields))

    @contextmanager
    def _entering(self, form: Any, path: str) -> Iterator[None]:
        if form in self._inside:
            raise self._no_columns(path, f"{name_of(form)} is recursive")
        self._inside.append(form)
        yield
        self._inside.pop()

    def _no_columns(self, path: str, why: str) -> ConfigError:
        what = f"{self._label} has no columns" if path == self._label else f"{path} has no column"
        return ConfigError(f"{what}: {why}. Read the topic by its name, and parse the value yourself")


def _as_declared(info: Any) -> list[inspect.Field]:
    """The fields in the order of the class: msgspec sorts those of a TypedDict by name."""
    if not isinstance(info, inspect.TypedDictType):
        return list(info.fields)
    declared = list(getattr(info.cls, "__annotations__", ()))
    return sorted(info.fields, key=lambda field: declared.index(field.name))


def _unless_unset(name: str) -> Callable[[Any], Any]:
    def get(value: Any) -> Any:
        field = getattr(value, name)
        return None if field is msgspec.UNSET else field

    return get


_WHY: Final[dict[type[inspect.Type], str]] = {
    inspect.AnyType: "it may be anything, and a column has one type",
    inspect.RawType: "it is undecoded JSON",
    inspect.NoneType: "it is always None",
    inspect.ExtType: "it is a MessagePack extension",
}
