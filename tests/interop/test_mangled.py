"""No file, however mangled, ends in a traceback, or in a profile that cannot be read or priced."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from foreign_timings import (
    COSTS_ADDITIVE,
    COSTS_EXACT,
    DUMP,
    FORWARD_CASES,
    OPERATOR_TIMES,
    SPS_ADDITIVE,
    SPS_BY_TOKENS,
    STEP_ROWS,
    STEP_SAMPLES,
)
from hypothesis import given
from hypothesis import strategies as st

from specplan.costs import tables_from_profile
from specplan.errors import SpecplanError
from specplan.files import Profile
from specplan.interop import FORMATS, Facts, ReadingOptions, import_costs

# A sound file of each form, and what it has to be told.
JSON_SOURCES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "steps": ("steps", [{"num_reqs": 2, "num_tokens": 8, "context_len": 64, "mode": "graph", "ms": 2.5}], {}),
    "vllm-forward": ("vllm-forward", FORWARD_CASES, {"capture_limit": 16}),
    "vllm-forward, sizes": ("vllm-forward", FORWARD_CASES, {"capture_sizes": (1, 8, 24)}),
    "vllm-steps": ("vllm-steps", STEP_SAMPLES, {"context_len": 64}),
    "sglang-sps": (
        "sglang-sps",
        SPS_BY_TOKENS,
        {"context_len": 64, "capture_limit": 16, "max_num_seqs": 8},
    ),
    "sglang-sps, sizes": (
        "sglang-sps",
        SPS_BY_TOKENS,
        {"context_len": 64, "capture_sizes": (12, 24), "max_num_seqs": 8},
    ),
    "sglang-sps, additive": ("sglang-sps", SPS_ADDITIVE, {"context_len": 64, "capture_limit": 16}),
    "sglang-dump": ("sglang-dump", DUMP, {}),
    "tensorrt-llm": ("tensorrt-llm", COSTS_ADDITIVE, {"context_len": 64, "capture_limit": 16}),
    "tensorrt-llm, exact": ("tensorrt-llm", COSTS_EXACT, {"context_len": 64}),
    "tensorrt-llm-steps": (
        "tensorrt-llm-steps",
        {"batch_size": 2, "verify_len": 3, "step_time_ms": 2.5, "iteration": 1},
        {"context_len": 64, "capture_limit": 16},
    ),
}
CSV_SOURCES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "steps": ("steps", STEP_ROWS, {}),
    "vidur": ("vidur", OPERATOR_TIMES, {"max_num_seqs": 4, "capture_limit": 8, "tensor_parallel_size": 1}),
}
HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 100),
    st.sampled_from([2**20, 2**20 + 1, 2**31, 2**63, 10**400, 0.5, 1e-320, -0.0, 1e308, "", "x", "nan", "-1", "1e999"]),
    st.floats(),
    st.text(max_size=5),
    st.builds(list),  # each its own, as more may be done to it
    st.builds(dict),
    st.lists(st.integers(-2, 9), max_size=3),
    st.builds(lambda: [[[{}]]]),
)


def test_every_format_is_mangled() -> None:
    assert {name for name, _, _ in (*JSON_SOURCES.values(), *CSV_SOURCES.values())} == set(FORMATS)


@pytest.mark.parametrize("source", JSON_SOURCES)
def test_the_json_sources_are_sound(source: str) -> None:
    format, content, told = JSON_SOURCES[source]
    assert is_imported(format, json.dumps(content).encode(), told)


@pytest.mark.parametrize("source", CSV_SOURCES)
def test_the_csv_sources_are_sound(source: str) -> None:
    format, content, told = CSV_SOURCES[source]
    assert is_imported(format, content.encode(), told)


@pytest.mark.parametrize("source", JSON_SOURCES)
@given(data=st.data())
def test_a_value_of_another_kind(source: str, data: st.DataObject) -> None:
    format, content, told = JSON_SOURCES[source]
    content = json.loads(json.dumps(content))
    for _ in range(data.draw(st.integers(1, 3))):
        content = mangled(content, data)
    is_imported(format, json.dumps(content).encode(), told)


@pytest.mark.parametrize("source", CSV_SOURCES)
@given(data=st.data())
def test_a_cell_of_another_kind(source: str, data: st.DataObject) -> None:
    format, content, told = CSV_SOURCES[source]
    cells = [line.split(",") for line in content.splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        line = data.draw(st.sampled_from(cells))
        line[data.draw(st.integers(0, len(line) - 1))] = str(data.draw(HOSTILE))
    is_imported(format, "\n".join(map(",".join, cells)).encode("utf-8", "surrogatepass"), told)


@pytest.mark.parametrize("source", [*JSON_SOURCES, "a CSV of steps", "vidur"])
@given(data=st.data())
def test_bytes_cut_and_put_in(source: str, data: st.DataObject) -> None:
    name = "steps" if source == "a CSV of steps" else source
    format, content, told = JSON_SOURCES[source] if source in JSON_SOURCES else CSV_SOURCES[name]
    whole = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    for _ in range(data.draw(st.integers(1, 3))):
        start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
        if data.draw(st.booleans()):
            stop = min(stop, start + 3)
        whole = whole[:start] + data.draw(st.binary(max_size=6)) + whole[stop:]
    is_imported(format, whole, told)


def mangled(value: Any, data: st.DataObject) -> Any:
    """With something hostile in place of a part, or without that part."""
    if not isinstance(value, dict | list) or not value or data.draw(st.integers(0, 9)) == 0:
        return data.draw(HOSTILE)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = data.draw(st.sampled_from(keys))
    if data.draw(st.integers(0, 9)) == 0:
        del value[key]
    else:
        value[key] = mangled(value[key], data)
    return value


def is_imported(format: str, content: bytes, told: dict[str, Any]) -> bool:
    """Whether the file is taken, and then holds; what is refused is refused as a user is told, on one line."""
    with TemporaryDirectory() as folder:
        path, output = Path(folder) / "source", Path(folder) / "profile.json"
        path.write_bytes(content)
        options = ReadingOptions(num_layers=2 if format == "vidur" else None)
        facts = Facts(num_speculative_tokens=None if is_told_k(format, content) else 5, **told)
        try:
            profile, _ = import_costs([path], format=format, options=options, given=facts)
            profile.write(output)
        except SpecplanError as error:
            hold_to_its_form(error)
            assert not output.exists()
            return False
        assert Profile.read(output) == profile
        assert all(ms > 0 for sample in profile.samples for ms in sample.repetitions_ms)
        try:
            tables = tables_from_profile(profile, max_num_tokens=64)
        except SpecplanError as error:
            hold_to_its_form(error)
            return True
        assert np.isfinite(tables.verify_table_ms).all()
        return True


def hold_to_its_form(refusal: SpecplanError) -> None:
    assert refusal.message.isprintable()
    assert refusal.hint.isprintable()
    assert len(refusal.message) < 2000


def is_told_k(format: str, content: bytes) -> bool:
    return (format == "sglang-dump" and b"gamma" in content) or (format == "tensorrt-llm" and b"schema" in content)
