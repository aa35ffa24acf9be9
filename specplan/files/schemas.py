"""JSON Schemas of the files, for readers that are not specplan. docs/schemas/ holds what `json_schemas` returns."""

from __future__ import annotations

from typing import Any

import msgspec

from specplan.files.profile import Profile
from specplan.files.tables import CostTables
from specplan.files.validation import Validation

__all__ = ["json_schemas"]


def json_schemas() -> dict[str, bytes]:
    """The schema of each JSON file, by the name it has in docs/schemas/."""
    files: dict[str, type[msgspec.Struct]] = {
        "profile.schema.json": Profile,
        "tables.schema.json": CostTables,
        "validation.schema.json": Validation,
    }
    return {name: _export(type_) for name, type_ in files.items()}


def _export(type_: type[msgspec.Struct]) -> bytes:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **msgspec.json.schema(type_, schema_hook=_array_schema),
    }
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


def _array_schema(_: type) -> dict[str, Any]:
    return {"type": "array", "description": "nested to the axes named in the table's description; sources are strings"}
