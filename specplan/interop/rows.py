"""Files of other tools as rows: fields and the place they stand at, so that what is wrong with one can be named."""

from __future__ import annotations

import codecs
import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec

from specplan.errors import FileError

__all__ = ["Row", "json_lines", "names", "read_object", "read_table", "shown"]

_MOST = 2**20  # of requests or tokens: as a profile has it
_MOST_MS = 1e9
_ABOVE_0 = math.ulp(0.0)  # the least number that is
_SHOWN = 20  # names in a message
_CORRECT = "correct it there, or leave it out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record. Its values are text in a CSV, and what JSON holds otherwise."""

    place: str  # "steps.csv: line 3"
    fields: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        """A field that is null, or empty in a CSV, is not there."""
        return self.fields.get(name) not in (None, "")

    def value(self, name: str) -> Any:
        if name not in self:
            raise FileError(f"{self.place}: no {name}, expected one beside its fields ({names(self.fields)})", _CORRECT)
        return self.fields[name]

    def count(self, name: str, *, least: int = 1, most: int = _MOST) -> int:
        return self._count(name, self.value(name), least, most)

    def number(self, name: str, *, most: float = _MOST_MS) -> float:
        """Finite and above 0."""
        return self._number(name, self.value(name), least=_ABOVE_0, most=most)

    def at_least_0(self, name: str) -> float:
        """Finite, and 0 or more."""
        return self._number(name, self.value(name), least=0.0, most=_MOST_MS)

    def counts(self, name: str, *, least: int = 1, most: int = _MOST) -> list[int]:
        """A list of one or more that ascends."""
        counts = [self._count(where, item, least, most) for where, item in self._items(name)]
        for index, (count, following) in enumerate(pairwise(counts), start=1):
            if following <= count:
                raise FileError(
                    f"{self.place}: {name}[{index}] is {following}, expected more than {count} (ascending)", _CORRECT
                )
        return counts

    def numbers(self, name: str, *, beside: str | None = None, least: float = _ABOVE_0) -> list[float]:
        """A list of one or more finite numbers; as many as the list `beside` it holds, where one is named."""
        numbers = [self._number(where, item, least=least, most=_MOST_MS) for where, item in self._items(name)]
        if beside is not None and len(numbers) != len(list(self._items(beside))):
            raise FileError(
                f"{self.place}: {name} holds {len(numbers)}, expected as many as {beside}",
                _CORRECT,
            )
        return numbers

    def child(self, name: str) -> Row:
        value = self.value(name)
        if not isinstance(value, dict):
            raise FileError(f"{self.place}: {name} is {shown(value)}, expected a JSON object", _CORRECT)
        return Row(place=f"{self.place}: {name}", fields=value)

    def children(self, name: str) -> list[Row]:
        """A list of one or more objects."""
        rows = []
        for where, item in self._items(name):
            if not isinstance(item, dict):
                raise FileError(f"{self.place}: {where} is {shown(item)}, expected a JSON object", _CORRECT)
            rows.append(Row(place=f"{self.place}: {where}", fields=item))
        return rows

    def _items(self, name: str) -> Iterator[tuple[str, Any]]:
        value = self.value(name)
        if not isinstance(value, list) or not value:
            raise FileError(f"{self.place}: {name} is {shown(value)}, expected a list of one or more", _CORRECT)
        return ((f"{name}[{index}]", item) for index, item in enumerate(value))

    def _count(self, name: str, value: Any, least: int, most: int) -> int:
        number = _as_number(value)
        # A float that is whole is a count too: what a table of floats was saved from.
        if number is not None and least <= number <= most and number == int(number):
            return int(number)
        raise FileError(
            f"{self.place}: {name} is {shown(value)}, expected a whole number of {least} to {most}", _CORRECT
        )

    def _number(self, name: str, value: Any, *, least: float, most: float) -> float:
        number = _as_number(value)
        if number is not None and least <= number <= most:
            return float(number)
        bounds = "more than 0" if least == _ABOVE_0 else f"{least:g} or more"
        raise FileError(f"{self.place}: {name} is {shown(value)}, expected {bounds}, at most {most:g}", _CORRECT)


def _as_number(value: Any) -> float | int | None:
    """None for what is no number; NaN stays one, and is within no bounds."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        if "_" in value:  # 5_0 is 50 to Python, and to nobody who wrote a table
            return None
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, int | float) else None


def shown(value: object) -> str:
    """For a message of one line."""
    text = value if isinstance(value, str) and value.isprintable() and value else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def names(fields: Iterable[str]) -> str:
    """The names of fields, or the first of many."""
    first = [shown(name) for name in islice(fields, _SHOWN + 1)]
    return ", ".join(first[:_SHOWN] + ["..."] * (len(first) > _SHOWN)) or "none"


def json_lines(path: str | os.PathLike[str]) -> list[Row]:
    """One JSON object a line; what ends the last one may be there or not."""
    data = _read(path)
    if not data.strip():
        raise FileError(f"{path}: holds no lines", "give a file with one JSON object a line")
    rows = []
    for number, line in enumerate(data.rstrip(b"\r\n").split(b"\n"), start=1):
        place = f"{path}: line {number}"
        rows.append(_object(_decode(line, place), place))
    return rows


def read_object(path: str | os.PathLike[str]) -> Row:
    """A file that is one JSON object."""
    return _object(_decode(_read(path), str(path)), str(path))


def read_table(path: str | os.PathLike[str]) -> list[Row]:
    """One or more records: a JSON object, a line each or one, a JSON array of them, or a CSV with a header.

    The first character tells which. Lines of a CSV that begin with # are comments.
    """
    data = _read(path).lstrip()
    if data.startswith(b"{"):
        try:
            return [read_object(path)]
        except FileError:  # several, or one that is not JSON, whose line is told then
            return json_lines(path)
    if data.startswith(b"["):
        items = _decode(data, str(path))
        rows = [_object(item, f"{path}: [{index}]") for index, item in enumerate(items)]
    else:
        rows = list(_csv_rows(path))
    if not rows:
        raise FileError(f"{path}: holds no rows", "give a file with one row or more")
    return rows


def _csv_rows(path: str | os.PathLike[str]) -> Iterator[Row]:
    try:
        text = _read(path).decode()
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path}: byte {error.start} is not UTF-8, expected CSV or JSON", "save it as UTF-8 text"
        ) from error
    # A comment leaves an empty line behind, so that lines keep their numbers.
    lines = ("\n" if line.startswith("#") else line for line in io.StringIO(text, newline=""))
    reader = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise FileError(f"{path}: line {reader.line_num}: not CSV: {error}", _CORRECT) from error
        if cells is None:
            return
        place = f"{path}: line {reader.line_num}"
        if not cells:
            continue
        if header is None:
            header = [cell.strip() for cell in cells]
            if len(set(header)) < len(header):
                raise FileError(f"{place}: two columns of one name, of {names(header)}", "rename one of them")
            continue
        if len(cells) != len(header):
            raise FileError(
                f"{place}: {len(cells)} fields, expected the {len(header)} of the header", "correct or remove the line"
            )
        yield Row(place=place, fields=dict(zip(header, map(str.strip, cells), strict=True)))


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}", "check the path and its permissions") from error


def _decode(data: bytes, place: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{place}: not JSON: {error}", _CORRECT) from error
    except RecursionError as error:
        raise FileError(f"{place}: not JSON that can be read: nested too deeply", _CORRECT) from error


def _object(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise FileError(f"{place}: expected a JSON object, got {type(value).__name__}", _CORRECT)
    return Row(place=place, fields=value)
