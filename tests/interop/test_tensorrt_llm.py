from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from foreign_timings import COSTS_ADDITIVE, COSTS_EXACT

from specplan.costs import tables_from_profile
from specplan.errors import ConfigError, FileError
from specplan.files import Profile

Imported = Callable[..., Profile]


def test_the_additive_table_keeps_its_staircase(imported: Imported) -> None:
    """Of 32 requests and K = 5: 32 to 63 tokens cost 10 + 1.5 + 2, 64 to 159 one more, from 160 to 192 three more."""
    options = {"num_speculative_tokens": 5, "context_len": 1024}
    for capture_limit in (0, 512):  # as a step that pads, and as one that does not
        profile = imported("tensorrt-llm", json.dumps(COSTS_ADDITIVE), capture_limit=capture_limit, **options)
        assert [(s.num_tokens, s.repetitions_ms) for s in profile.samples if s.num_reqs == 32] == [
            (32, [13.5]),
            (63, [13.5]),
            (64, [14.5]),
            (159, [14.5]),
            (160, [16.5]),
            (192, [16.5]),
        ]
        assert [(s.num_tokens, s.repetitions_ms) for s in profile.samples if s.num_reqs == 8] == [
            (8, [12.0]),
            (48, [12.0]),
        ]
        row = tables_from_profile(profile).verify_row(32, 1024)
        assert [row[size] for size in (40, 63, 64, 100, 159, 160, 190)] == [13.5, 13.5, *[14.5] * 3, 16.5, 16.5]
    with pytest.raises(ConfigError, match="does not say how many tokens are drafted"):
        imported("tensorrt-llm", json.dumps(COSTS_ADDITIVE), context_len=1024, capture_limit=0)


def test_exact_cells(imported: Imported) -> None:
    profile = imported("tensorrt-llm", json.dumps(COSTS_EXACT), context_len=1024)
    # V = 0 is the engine's own full step; the ragged cell of as many tokens, 6.5 ms, never runs beside it.
    assert [(s.mode, s.num_reqs, s.num_tokens, s.repetitions_ms) for s in profile.samples] == [
        ("graph", 64, 384, [6.0]),
        ("graph", 64, 352, [5.2]),
        ("graph", 128, 768, [8.0]),
        ("graph", 128, 704, [7.0]),
        ("graph", 128, 736, [7.2]),
    ]
    assert (profile.num_speculative_tokens, profile.environment.device) == (5, "B300")
    assert "drafting and the host are in it" in profile.environment.timing_scope


def test_steps(imported: Imported) -> None:
    lines = [
        {"batch_size": 8, "verify_len": 3, "step_time_ms": 12.5, "iteration": 7},
        {"batch_size": 8, "verify_len": 3, "step_time_ms": 12.0, "iteration": 6},
        {"batch_size": 16, "verify_len": 0, "step_time_ms": 11.0, "iteration": 8},
    ]
    content = "\n".join(map(json.dumps, lines))
    options = {"num_speculative_tokens": 5, "context_len": 1024, "capture_limit": 512}
    profile = imported("tensorrt-llm-steps", content, **options)
    assert [(s.num_reqs, s.num_tokens, s.repetitions_ms) for s in profile.samples] == [
        (8, 32, [12.0, 12.5]),
        (16, 16, [11.0]),
    ]
    for change, message in [({"verify_len": -1}, "verify_len is -1"), ({"batch_size": None}, "no batch_size")]:
        with pytest.raises(FileError, match=f"line 2: {message}"):
            imported("tensorrt-llm-steps", content.splitlines()[0] + "\n" + json.dumps(lines[1] | change), **options)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (COSTS_ADDITIVE | {"token_counts": [0, 160, 64]}, r"token_counts\[2\] is 64, expected more than 160"),
        (COSTS_ADDITIVE | {"step_time_ms": [1.0]}, "step_time_ms holds 1, expected as many as token_counts"),
        (COSTS_ADDITIVE | {"fixed_overhead_ms": -1}, "fixed_overhead_ms is -1, expected 0 or more"),
        (COSTS_ADDITIVE | {"batch_sizes": [8]}, "batch_overhead_ms holds 2, expected as many as batch_sizes"),
        (COSTS_ADDITIVE | {"batch_sizes": [8, 2**20]}, "1048576 requests, 6291456 tokens: a step of 6291456 tokens"),
        (COSTS_EXACT | {"schema_version": 3}, "schema_version is 3, expected 2"),
        (COSTS_EXACT | {"schema_version": "2"}, "schema_version is 2, expected 2"),
        (COSTS_EXACT | {"cost_tables": []}, r"cost_tables is \[\], expected a JSON object"),
        (COSTS_EXACT | {"cost_tables": {}}, "holds no timings of verify passes"),
        (COSTS_EXACT | {"cost_tables": {"x": {}}}, "a graph's requests is x, expected a whole number"),
        (
            COSTS_EXACT | {"cost_tables": {"64": {"token_counts": [385], "step_time_ms": [1.0]}}},
            "385, expected a whole",
        ),
        (
            COSTS_EXACT | {"cost_tables": {"64": {"token_counts": [63], "step_time_ms": [1.0]}}},
            "num_tokens: expected at",
        ),
        (COSTS_EXACT | {"engine_fingerprint": {"gpu": "B300"}}, "engine_fingerprint: no max_draft_len"),
    ],
)
def test_mistakes_are_named(imported: Imported, table: dict[str, Any], message: str) -> None:
    told = {"num_speculative_tokens": 5} if "schema_version" not in table else {}
    mode = {"capture_limit": 0} if "schema_version" not in table else {}
    with pytest.raises(FileError, match=message):
        imported("tensorrt-llm", json.dumps(table), context_len=1024, **told, **mode)
