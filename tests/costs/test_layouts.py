"""Layouts compared, on a device where batch expansion takes 1 ms more for each query of a request past its first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from specplan.costs import tables_from_profile
from specplan.costs.layouts import compare_layouts
from specplan.files import CostTables, Profile, Sample

MakeProfile = Callable[..., Profile]
MakeSample = Callable[..., Sample]


def expanded(profile: Profile, mode: str = "graph") -> Iterable[Sample]:
    """Every verify sample of a mode in batch expansion."""
    for sample in profile.samples:
        if sample.model == "verify" and sample.mode == mode:
            more_ms = sample.num_tokens / sample.num_reqs - 1
            repetitions_ms = [ms + more_ms for ms in sample.repetitions_ms]
            yield msgspec.structs.replace(sample, layout="batch-expansion", repetitions_ms=repetitions_ms)


def steps(profile: Profile) -> list[tuple[int, int]]:
    return [(costs.num_reqs, costs.k) for costs in compare_layouts(profile)]


def test_every_step_that_was_measured_in_both(make_profile: MakeProfile) -> None:
    contexts = [0, 128]
    profile = make_profile(contexts=contexts)
    measured_ms = {
        (sample.context_len, sample.num_reqs, sample.num_tokens): sample.repetitions_ms[0]
        for sample in profile.samples
        if (sample.model, sample.mode) == ("verify", "graph")
    }
    compared = compare_layouts(make_profile(contexts=contexts, extra=expanded(profile)))
    assert [(costs.context_len, costs.num_reqs, costs.k) for costs in compared] == [
        (context, n, k) for context in contexts for n in (1, 2, 4) for k in range(4)
    ]
    for costs in compared:
        # 4 requests with 2 drafts each bring 12 tokens, and run 16.
        assert costs.num_tokens == costs.num_reqs * [1, 2, 4, 4][costs.k]
        assert costs.multi_query_ms == measured_ms[costs.context_len, costs.num_reqs, costs.num_tokens]
        assert costs.batch_expansion_ms == costs.multi_query_ms + [0, 1, 3, 3][costs.k]
        assert (costs.multi_query_ci_ms, costs.batch_expansion_ci_ms) == (0.0, 0.0)
        assert costs.is_too_close_to_call == (costs.k == 0)


def test_a_step_measured_in_one_layout_is_left_out(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    profile = make_profile()
    assert steps(profile) == []
    assert steps(make_profile(keep=lambda sample: sample.model == "draft", extra=expanded(profile))) == []
    assert steps(make_profile(extra=expanded(make_profile(contexts=[64])))) == []  # another context
    without = make_profile(keep=lambda sample: sample.num_reqs != 2, extra=expanded(profile))
    assert steps(without) == [(n, k) for n in (1, 4) for k in range(4)]
    one = make_sample("verify", "graph", 2, 4, None, 128, [9.0], "batch-expansion")
    assert steps(make_profile(extra=[one])) == [(2, 1)]


def test_steps_are_compared_in_the_mode_they_run_in(make_profile: MakeProfile) -> None:
    """Eagerly at captured sizes they do not; past the capture limit they do."""
    profile = make_profile()
    assert steps(make_profile(extra=expanded(profile, "eager"))) == []
    (costs,) = compare_layouts(make_profile(num_speculative_tokens=7, extra=expanded(profile, "eager")))[-1:]
    assert (costs.num_reqs, costs.k, costs.num_tokens) == (4, 7, 32)
    assert costs.batch_expansion_ms == costs.multi_query_ms + 7


def test_medians_and_their_intervals(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    def is_too_close(shift_ms: float) -> bool:
        spread = np.linspace(-0.5, 0.5, 50)
        extra = [
            make_sample("verify", "graph", 1, 1, None, 128, (10.0 + spread).tolist()),
            make_sample("verify", "graph", 1, 1, None, 128, (10.0 + shift_ms + spread).tolist(), "batch-expansion"),
        ]
        (costs,) = compare_layouts(make_profile(keep=lambda sample: sample.model == "draft", extra=extra))
        assert costs.ratio == pytest.approx(1 + shift_ms / 10)
        assert 0.05 < costs.multi_query_ci_ms < 0.25
        assert 0.05 < costs.batch_expansion_ci_ms < 0.25
        return costs.is_too_close_to_call

    assert is_too_close(0.0625)
    assert is_too_close(-0.0625)
    assert not is_too_close(0.75)
    assert not is_too_close(-0.75)


def test_tables_carry_it_and_price_multi_query_alone(make_profile: MakeProfile, tmp_path: Path) -> None:
    profile = make_profile()
    alone, both = tables_from_profile(profile), tables_from_profile(make_profile(extra=expanded(profile)))
    assert alone.layout_costs == []
    assert len(both.layout_costs) == 12
    for name in ("verify_table_ms", "verify_source", "verify_ci_ms", "draft_table_ms"):
        assert np.array_equal(getattr(alone, name), getattr(both, name))
    assert (alone.error, alone.findings, alone.capture_sizes) == (both.error, both.findings, both.capture_sizes)
    both.write(tmp_path / "tables.json")
    assert CostTables.read(tmp_path / "tables.json").layout_costs == both.layout_costs
