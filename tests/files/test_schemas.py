from __future__ import annotations

import json
from pathlib import Path

from specplan.files.schemas import json_schemas

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def test_the_shipped_schemas_are_those_of_the_code() -> None:
    """To update them: write each of `json_schemas()` to its name in docs/schemas/."""
    assert {path.name: path.read_bytes() for path in SCHEMAS.iterdir()} == json_schemas()


def test_schemas_carry_the_bounds() -> None:
    profile = json.loads(json_schemas()["profile.schema.json"])
    repetitions = profile["$defs"]["Sample"]["properties"]["repetitions_ms"]
    assert repetitions == {
        "type": "array",
        "items": {"type": "number", "minimum": 1e-06, "maximum": 1e9},
        "minItems": 1,
    }
