"""Strict JSON with a schema name: what cannot be read back is never written, and what is malformed is named."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specplan.errors import FileError
from specplan.files._atomic import write_atomically

__all__ = ["decode", "encode", "malformed", "read_bytes", "read_json", "with_place", "write_json"]

T = TypeVar("T", bound=msgspec.Struct)
Hook = Callable[[Any], Any]
DecodeHook = Callable[[type, Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    noun: str
    writer: str
    reader: str


_KINDS = {
    "specplan.profile": _Kind(noun="a profile", writer="specplan profile", reader="specplan tables"),
    "specplan.tables": _Kind(noun="cost tables", writer="specplan tables", reader="specplan simulate --tables"),
    "specplan.validation": _Kind(
        noun="a validation", writer="specplan validate", reader="specplan.files.Validation.read"
    ),
    "specplan.trace": _Kind(noun="a trace", writer="specplan record", reader="specplan simulate"),
}


class _Header(msgspec.Struct):
    schema: Any = None


def read_json(path: str | os.PathLike[str], type_: type[T], *, schema: str, dec_hook: DecodeHook | None = None) -> T:
    """The `type_` in the file at `path`, whose `schema` field must be `schema` ("specplan.profile/1")."""
    return decode(read_bytes(path, schema), type_, schema=schema, dec_hook=dec_hook, where=str(path))


def write_json(
    path: str | os.PathLike[str],
    value: msgspec.Struct,
    *,
    schema: str,
    enc_hook: Hook | None = None,
    dec_hook: DecodeHook | None = None,
) -> None:
    """Write `value`, after checking that the bytes read back: a file that this specplan would refuse is not written."""
    where = f"cannot write {path}"
    data = encode(value, enc_hook=enc_hook, where=where)
    decode(data, type(value), schema=schema, dec_hook=dec_hook, where=where)
    write_atomically(path, data)


def encode(value: msgspec.Struct, *, enc_hook: Hook | None = None, where: str = "cannot encode") -> bytes:
    """`value` as JSON; the same value gives the same bytes. One top-level field, and one item of its lists, a line."""
    plain = msgspec.to_builtins(value, enc_hook=enc_hook)
    for place, number in _non_finite(plain, "$"):
        raise FileError(
            f"{where}: {place}: expected a finite number, got {number}",
            "JSON holds only finite numbers; measure this one again",
        )
    return (_lay_out(plain, "") + "\n").encode()


def _lay_out(value: Any, indent: str) -> str:
    """Top-level fields and lists of lists or objects one item a line, whatever else compact: diffable and not long."""
    inner = indent + " "
    if isinstance(value, dict) and not indent:
        items, brackets = [f"{_compact(key)}: {_lay_out(item, inner)}" for key, item in value.items()], "{}"
    elif isinstance(value, list) and any(isinstance(item, list | dict) for item in value):
        items, brackets = [_lay_out(item, inner) for item in value], "[]"
    else:
        return _compact(value)
    return f"{brackets[0]}\n{inner}" + f",\n{inner}".join(items) + f"\n{indent}{brackets[1]}"


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def read_bytes(path: str | os.PathLike[str], schema: str) -> bytes:
    kind = _KINDS[_split(schema)[0]]
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        hint = f"check the path, or write {kind.noun} with `{kind.writer}`"
        raise FileError(f"{path}: no such file", hint) from error
    except IsADirectoryError as error:
        raise FileError(f"{path}: is a directory, expected a file", "give the path of the file inside it") from error
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}", "check the path and its permissions") from error


def decode(data: bytes, type_: type[T], *, schema: str, dec_hook: DecodeHook | None, where: str) -> T:
    kind = _KINDS[_split(schema)[0]]
    again = f"`{kind.writer}` writes {kind.noun}; run it again, or give another file"
    try:
        data.decode()
        header = msgspec.json.decode(data, type=_Header)
    except UnicodeDecodeError as error:
        raise FileError(f"{where}: byte {error.start} is not UTF-8, expected JSON", again) from error
    except RecursionError as error:
        raise FileError(f"{where}: nested too deeply, expected {schema}", again) from error
    except msgspec.ValidationError as error:
        got = str(error).rpartition("got ")[2].replace("`", "")
        raise FileError(f"{where}: expected a JSON object, got {got}", again) from error
    except msgspec.DecodeError as error:
        raise FileError(f"{where}: {malformed(data, str(error))}", again) from error
    _check_schema(header.schema, schema, where)
    try:
        return msgspec.json.decode(data, type=type_, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise FileError(f"{where}: {with_place(str(error), data)}", again) from error


def _check_schema(found: object, expected: str, where: str) -> None:
    name, version = _split(expected)
    kind = _KINDS[name]
    written_by = f"`{kind.writer}` writes {kind.noun}"
    if not isinstance(found, str):
        raise FileError(f"{where}: no schema, expected {expected}", written_by)
    found_name, _, found_version = found.partition("/")
    if found_name != name or not re.fullmatch(r"[0-9]{1,9}", found_version):
        other = _KINDS.get(found_name) if found_name != name else None
        hint = f"this file holds {other.noun}, read by `{other.reader}`; {written_by}" if other else written_by
        raise FileError(f"{where}: expected {expected}, got {_one_line(found)}", hint)
    if int(found_version) > version:
        raise FileError(
            f"{where}: {found} is newer than this specplan reads ({version})",
            "upgrade specplan to the version that wrote it",
        )
    if int(found_version) < version:
        raise FileError(
            f"{where}: {found} is older than this specplan reads ({version})", f"write it again: `{kind.writer}`"
        )


def _split(schema: str) -> tuple[str, int]:
    name, _, version = schema.partition("/")
    return name, int(version)


def malformed(data: bytes, error: str) -> str:
    """What is wrong with bytes that are not JSON, and where."""
    # Python's own json writes NaN and Infinity, so name the key where that is all that is wrong.
    try:
        lenient = json.loads(data)
    except ValueError:
        pass
    else:
        for place, number in _non_finite(lenient, "$"):
            return f"{place}: expected a finite number, got {number}"
    at = re.search(r"\(byte (\d+)\)", error)
    before = data[: int(at[1])] if at else data
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    what = "it ends too early" if not at else error.split(": ")[-1].partition(" (byte")[0]
    return f"not JSON: {what} at line {line}, column {column}"


def with_place(error: str, data: bytes) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.a[3]`" as "$.a[3]: expected int, got str"."""
    text, _, place = error.rpartition(" - at `") if error.endswith("`") and " - at `" in error else (error, "", "$")
    place, text = place.rstrip("`"), text.replace("`", "")
    if text.startswith((".", "[")):  # raised by a struct's own check, which knows the place below itself
        return place + text
    if text.startswith("Expected") and ", got" not in text and "[...]" not in place:
        text += f", got {_one_line(_at(place, data))}"  # msgspec names a violated bound and not the value
    return f"{place}: {text[0].lower()}{text[1:]}"


def _at(place: str, data: bytes) -> object:
    value = msgspec.json.decode(data)
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", place):
        value = value[key] if key else value[int(index)]
    return value


def _one_line(value: object) -> str:
    text = str(value) if isinstance(value, str) and value.isprintable() and value else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _non_finite(value: object, place: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _non_finite(item, f"{place}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _non_finite(item, f"{place}[{index}]")
