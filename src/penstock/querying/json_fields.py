"""Columns for the fields of JSON values, where nothing else says what a topic's values are: a sample of them tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

MOST_FIELDS: Final = 100
"""Objects with more fields than this are taken for maps, whose keys are data and not columns."""
MISFIT: Final = "a field of a JSON value does not have the type of its column"
"""What a query fails with when it meets a value that the sample did not foretell."""
_USUAL_SHARE: Final = 0.75
_INT64: Final = range(-(1 << 63), 1 << 63)
_PARSED: Final = "penstock parsed"
"""The name of the struct that holds the fields which a query uses."""


def quoted(name: str) -> str:
    """A name in SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _text(value: str) -> str:
    escaped = value.replace("'", "''")
    return f"'{escaped}'"


@dataclass(frozen=True, slots=True)
class JsonFields:
    """The fields of a topic's JSON values, each with the SQL type of its column."""

    kinds: Mapping[str, str]

    def misfits(self, value: bytes) -> list[str]:
        """The fields of a value that do not have the type of their column. Raises MsgspecError if it is not JSON."""
        found = msgspec.json.decode(value)
        if not isinstance(found, dict):
            return []
        return [name for name, kind in self.kinds.items() if not _fits(found.get(name), kind)]

    def view(
        self,
        source: str,
        columns: Sequence[str],
        used: Collection[str],
        *,
        strict: bool,
        stored: Mapping[str, str] = {},
    ) -> str:
        """A query for these columns of a source, and all fields. `used`, in lower case, are the names that a query
        mentions: those fields are parsed together. Fields that the source has `stored` as columns of the same type are
        not parsed. Without `strict`, a value that does not fit is null.
        """
        parsed = [name for name, kind in self.kinds.items() if stored.get(name) != kind]
        shared = [name for name in parsed if name.lower() in used]
        struct_of_shared = f", {self._struct(shared)} as {quoted(_PARSED)}" if shared else ""
        made = [quoted(column) for column in columns]
        for name, kind in self.kinds.items():
            if name in parsed:
                struct = quoted(_PARSED) if name in shared else self._struct([name])
                cell = _cell(f"({struct}).{quoted(name)}", kind, strict=strict)
            else:
                cell = f"{quoted(name)}::JSON" if kind == "JSON" else quoted(name)
            made.append(f"{cell} as {quoted(name)}")
        return f"select {', '.join(made)} from (select *{struct_of_shared} from {source})"

    def storing(self, source: str, columns: Sequence[str]) -> str:
        """A query for these columns and all fields in types that Parquet keeps. Fails at a value that does not fit."""
        names = [f"{quoted(name)}::VARCHAR as {quoted(name)}" for name, kind in self.kinds.items() if kind == "JSON"]
        replaced = f" replace ({', '.join(names)})" if names else ""
        every = {name.lower() for name in self.kinds}
        return f"select *{replaced} from ({self.view(source, columns, every, strict=True)})"

    def _struct(self, fields: Sequence[str]) -> str:
        kinds = {name: "VARCHAR" if self.kinds[name] == "VARCHAR" else "JSON" for name in fields}
        return f"from_json({quoted('value')}, {_text(msgspec.json.encode(kinds).decode())})"


def _cell(field: str, kind: str, *, strict: bool) -> str:
    """The expression of a column. A cast of DuckDB's own would round 1.5 to an integer, and take true for 1."""
    if kind in ("VARCHAR", "JSON"):
        return field
    text, cast = f"{field}::varchar", "cast" if strict else "try_cast"
    wrong = f"error({_text(MISFIT)})" if strict else "null"
    if kind == "BOOLEAN":
        return f"case {text} when 'true' then true when 'false' then false else if({field} is null, null, {wrong}) end"
    if kind == "BIGINT":
        return f"case when contains({text}, '.') then {wrong} else {cast}({text} as bigint) end"
    return f"{cast}({text} as {kind})"


def json_fields(sample: Sequence[bytes], taken: Collection[str]) -> JsonFields | None:
    """The fields of the objects in a sample, without those of a `taken` name. None unless at least half of the sample
    are JSON objects."""
    seen: dict[str, Counter[str]] = {}
    objects = 0
    for cell in sample:
        try:
            value = msgspec.json.decode(cell)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            objects += 1
            for name, each in value.items():
                seen.setdefault(name, Counter())[_kind_of(each)] += 1
    # SQL ignores case: of two names that differ in nothing else, the first is a column.
    firsts = {name.lower(): name for name in reversed(seen)}
    names = [name for name in seen if firsts[name.lower()] == name and name and name.lower() not in taken]
    if not names or 2 * objects < len(sample) or len(names) > MOST_FIELDS:
        return None
    return JsonFields({name: _usual(seen[name]) for name in names})


def _kind_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if value in _INT64 else "DOUBLE"
    if isinstance(value, float):
        return "DOUBLE"
    return "VARCHAR" if isinstance(value, str) else "JSON"


def _usual(kinds: Counter[str]) -> str:
    """The type of most values. JSON, which fits all, where there are too many others."""
    found = Counter({kind: count for kind, count in kinds.items() if kind})
    if found["DOUBLE"]:
        found["DOUBLE"] += found.pop("BIGINT", 0)
    ((kind, count),) = found.most_common(1) or [("JSON", 0)]
    return kind if count >= _USUAL_SHARE * found.total() else "JSON"


def _fits(value: Any, kind: str) -> bool:
    if value is None or kind in ("VARCHAR", "JSON"):
        return True
    found = _kind_of(value)
    return found == kind or (kind == "DOUBLE" and found == "BIGINT")
