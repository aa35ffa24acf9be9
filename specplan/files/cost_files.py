"""A file that holds costs, as samples or as tables: whichever its `schema` says."""

from __future__ import annotations

import os

import msgspec

from specplan.errors import FileError
from specplan.files._arrays import decode_array
from specplan.files._json import decode, read_bytes
from specplan.files.profile import PROFILE_SCHEMA, Profile
from specplan.files.tables import TABLES_SCHEMA, CostTables

__all__ = ["read_costs"]


class _Header(msgspec.Struct):
    schema: str = ""


def read_costs(path: str | os.PathLike[str]) -> Profile | CostTables:
    """The profile or the cost tables at `path`; the file is read once."""
    data = read_bytes(path, PROFILE_SCHEMA)
    schema = _schema_of(data)
    if schema is None or schema.startswith("specplan.profile/"):
        return decode(data, Profile, schema=PROFILE_SCHEMA, dec_hook=None, where=str(path))
    if schema.startswith("specplan.tables/"):
        return decode(data, CostTables, schema=TABLES_SCHEMA, dec_hook=decode_array, where=str(path))
    shown = schema if schema.isprintable() and len(schema) <= 60 else repr(schema[:60])
    found = f"got {shown}" if schema else "got no schema"
    raise FileError(
        f"{path}: expected a profile or cost tables ({PROFILE_SCHEMA} or {TABLES_SCHEMA}), {found}",
        "`specplan profile` writes a profile, `specplan tables` cost tables",
    )


def _schema_of(data: bytes) -> str | None:
    """None where the bytes are no object with a schema: what is wrong with them is said by whoever decodes them."""
    try:
        return msgspec.json.decode(data, type=_Header).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
