"""Whether a trace and the costs it is replayed under are of the same things."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from builders import CPU_ENVIRONMENT

from specplan.costs import build_cost_tables
from specplan.errors import ConfigError
from specplan.files import CostTables, ModelInfo, Trace, TraceMetadata
from specplan.simulation import simulate
from specplan.simulation.bindings import bind

TARGET = ModelInfo(name="target", num_params=1, config_sha256="a" * 64)
DRAFT = ModelInfo(name="draft", num_params=1, config_sha256="b" * 64)
OTHER = ModelInfo(name="other", num_params=1, config_sha256="c" * 64)
ENVIRONMENT = msgspec.structs.replace(CPU_ENVIRONMENT, tensor_parallel_size=1)


def make_tables(**changes: object) -> CostTables:
    built = build_cost_tables([(1, 0.1), (4, 0.2)], [(1, 1.0), (16, 2.0)], max_num_reqs=4, max_num_tokens=16)
    known = {"environment": ENVIRONMENT, "target": TARGET, "draft": DRAFT}
    return msgspec.structs.replace(built, **known | changes)


def make_trace(**provenance: str) -> Trace:
    rows = np.arange(40, dtype=np.int32)
    return Trace(
        metadata=TraceMetadata(
            kind="dense",
            sampling="greedy",
            num_speculative_tokens=2,
            target="target",
            draft="draft",
            tokenizer="target",
            source="prompts",
            provenance=provenance or {"target_config_sha256": "a" * 64, "draft_config_sha256": "b" * 64},
        ),
        request=rows // 10,
        position=rows % 10,
        confidence=None,
        accepted_len=rows % 3,
        verified_len=np.full(40, 2, dtype=np.int32),
        arrival_s=np.zeros(4),
        prompt_len=np.ones(4, dtype=np.int32),
        output_len=np.full(4, 10, dtype=np.int32),
    )


def test_all_of_a_piece() -> None:
    tables = make_tables()
    bindings = bind(make_trace(), tables, tables)
    assert bindings.mismatches == bindings.planner_mismatches == bindings.unknown == []
    bindings.require()
    twin = bind(make_trace(), tables, make_tables())  # the same device and pair, measured twice
    assert (twin.mismatches, twin.planner_mismatches, twin.unknown) == ([], [], [])


def test_a_trace_of_another_pair() -> None:
    tables = make_tables(draft=OTHER)
    bindings = bind(make_trace(), tables, tables)
    assert bindings.mismatches == [
        "the trace's draft, draft (config bbbbbbbbbbbb), is not the one whose steps are priced, other (config "
        "cccccccccccc)"
    ]
    with pytest.raises(ConfigError, match="is not the one whose steps are priced") as raised:
        bindings.require()
    assert "profiled for the trace's pair" in raised.value.hint


def test_a_planner_that_believes_other_costs() -> None:
    elsewhere = msgspec.structs.replace(ENVIRONMENT, device="NVIDIA H100", device_uuid="0b1c", dtype="bfloat16")
    bindings = bind(make_trace(), make_tables(), make_tables(environment=elsewhere))
    assert bindings.mismatches == []
    assert bindings.planner_mismatches == [
        "the planner's tables are not of what is charged: device: a CPU in those charged, NVIDIA H100 in the planner",
        "the planner's tables are not of what is charged: dtype: float32 in those charged, bfloat16 in the planner",
    ]
    with pytest.raises(ConfigError, match=r"device: a CPU .*; .*dtype: float32"):
        bindings.require()


def test_two_cards_of_a_kind_are_one_device() -> None:
    cards = [msgspec.structs.replace(ENVIRONMENT, device="NVIDIA H100", device_uuid=uuid) for uuid in ("a", "b")]
    bindings = bind(make_trace(), *(make_tables(environment=card) for card in cards))
    assert bindings.planner_mismatches == []


def test_what_nobody_knows_is_told_and_refused_by_nobody() -> None:
    curves = make_tables(environment=None, draft=None)
    bindings = bind(make_trace(target_config_sha256="a" * 64), make_tables(), curves)
    assert (bindings.mismatches, bindings.planner_mismatches) == ([], [])
    assert bindings.unknown == [
        "whether the trace's draft is the one whose steps are priced",
        "whether the planner's tables are of the device, processors, dtype, tensor parallel size, draft that is "
        "charged",
    ]
    bindings.require()


def test_a_simulation_tells_and_where_strict_refuses() -> None:
    trace, tables = make_trace(), make_tables(target=OTHER)

    def run(**changes: object) -> tuple[list[str], list[str], list[str]]:
        arguments = {"tables": tables, "policies": ["fixed:1"], "concurrencies": [1], "num_resamples": 0} | changes
        result = simulate(trace, **arguments)
        return result.mismatches, result.planner_mismatches, result.unknown

    mismatches, planner_mismatches, unknown = run(planner_tables=make_tables(environment=None))
    assert len(mismatches) == len(planner_mismatches) == len(unknown) == 1
    with pytest.raises(ConfigError, match="the trace's target"):
        run(strict=True)
    assert run(tables=make_tables(), strict=True) == ([], [], [])
    imported = replace(trace, metadata=msgspec.structs.replace(trace.metadata, provenance={}))
    assert simulate(
        imported, tables=make_tables(), policies=["none"], concurrencies=[1], num_resamples=0, strict=True
    ).unknown == ["whether the trace's target, draft is the one whose steps are priced"]
