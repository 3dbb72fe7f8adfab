"""Cells of a result as JSON and as text, for commands and the console."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa


def rows_of(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    for batch in table.to_batches():
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def cell_text(cell: object) -> str:
    """Times in UTC, bytes in hexadecimal, anything nested as JSON."""
    cell = json_cell(cell)
    return cell if isinstance(cell, str) else msgspec.json.encode(cell).decode()


def json_cell(cell: Any) -> Any:
    """A cell as JSON has it. Sums of integers are decimals in Arrow, and integers here."""
    match cell:
        case decimal.Decimal():
            return int(cell) if cell.as_tuple().exponent == 0 else str(cell)
        case datetime.datetime():
            return cell.isoformat().replace("+00:00", "Z")
        case bytes():
            return cell.hex()
        case str():
            return cell
        case datetime.timedelta():
            return str(cell)
        case Mapping():
            return {str(name): json_cell(each) for name, each in cell.items()}
        case Sequence():
            return [json_cell(each) for each in cell]
        case _:
            return cell
