"""The sweep on real steps of a small model: what it visits, when it stops, what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from specplan.costs import tables_from_profile
from specplan.errors import ConfigError, MeasurementError
from specplan.files import Profile
from specplan.measure import MeasuredPoint, ProfilePlan, StoppingRule, SweepProgress, profile_pair
from specplan.measure.clock import time_step
from specplan.measure.environment import describe_environment, pick_device
from specplan.measure.sentinels import drift_between
from specplan.measure.series import point_of
from specplan.measure.steps import StepFactory
from specplan.measure.sweep import sweep
from specplan.models import Decoder, DecoderConfig, LoadedModel

CPU = torch.device("cpu")
# Enough visits to exercise the rule, few enough to be quick.
QUICK = StoppingRule(min_repetitions=6, min_busy_s=0.0, half_width=1e9, burst=3, burst_ms=0.0)
# A rule no point can meet.
NEVER = StoppingRule(half_width=0.0, min_busy_s=1e9, max_busy_s=1e9)


@pytest.fixture(autouse=True)
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not drift, so that visits can be counted."""
    monkeypatch.setattr("specplan.measure.sweep.drift_between", lambda before, after: 0.0)


def small_model(name: str) -> LoadedModel:
    config = DecoderConfig(
        model_type="llama",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    decoder = Decoder(config).requires_grad_(False).eval()
    return LoadedModel(name=name, folder=Path(name), decoder=decoder, weights="random", config_sha256="0" * 64)


def small_plan(**changes: Any) -> ProfilePlan:
    limits: dict[str, Any] = {
        "max_num_seqs": 4,
        "num_speculative_tokens": 2,
        "max_num_batched_tokens": 48,
        "contexts": (8,),
    }
    return ProfilePlan(**(limits | changes))


def test_every_point_of_the_plan_is_in_the_profile(tmp_path: Path) -> None:
    plan = small_plan()
    told: list[SweepProgress] = []
    profile = profile_pair(small_model("big"), small_model("little"), plan, QUICK, on_progress=told.append)
    assert profile.complete
    assert [(s.mode, s.k, s.num_reqs, s.num_tokens) for s in profile.samples] == [
        (p.mode, p.k, p.shape.num_reqs, p.shape.num_tokens) for p in plan.points()
    ]
    for sample in profile.samples:
        assert sample.stop_reason == "converged"
        assert len(sample.repetitions_ms) == 6
        assert 2 <= len(sample.warmup_ms) <= 16  # in each of two visits one, or as many as a short step takes
        assert sample.device_ms == []  # the host is the device
    assert told[-1].fraction == 1.0
    assert (profile.environment.graph_kind, profile.environment.device_type) == ("static", "cpu")
    assert (profile.target.name, profile.draft and profile.draft.name) == ("big", "little")
    profile.write(tmp_path / "profile.json")
    assert Profile.read(tmp_path / "profile.json") == profile


def test_a_time_budget_ends_the_sweep_with_what_it_has() -> None:
    plan = small_plan()
    factory = StepFactory(small_model("big").decoder, small_model("little").decoder, plan)
    rule = StoppingRule(half_width=0.0, min_busy_s=1e9, max_busy_s=1e9, time_budget_s=1.0)
    result = sweep(factory, plan.points(), rule)
    assert {sample.stop_reason for sample in result.samples} == {"time-budget"}


def test_a_point_that_never_settles_is_capped() -> None:
    plan = small_plan(max_num_seqs=1)
    factory = StepFactory(small_model("big").decoder, small_model("little").decoder, plan)
    result = sweep(
        factory, plan.points(), StoppingRule(min_repetitions=5, min_busy_s=0.0, half_width=0.0, max_busy_s=0.0)
    )
    assert {sample.stop_reason for sample in result.samples} == {"cap"}


def test_ctrl_c_keeps_what_is_done() -> None:
    plan = small_plan()
    factory = StepFactory(small_model("big").decoder, small_model("little").decoder, plan)
    visits = 0

    def interrupt(progress: SweepProgress) -> None:
        nonlocal visits
        visits += progress.rounds > 0
        if visits == 10:
            raise KeyboardInterrupt

    result = sweep(factory, plan.points(), NEVER, on_progress=interrupt)
    assert not result.complete
    assert len(result.samples) == 10
    assert {sample.stop_reason for sample in result.samples} == {"interrupted"}


def stop_after(visits: int) -> Callable[[SweepProgress], None]:
    left = visits

    def interrupt(progress: SweepProgress) -> None:
        nonlocal left
        left -= progress.rounds > 0
        if left == 0:
            raise KeyboardInterrupt

    return interrupt


def test_a_stopped_sweep_is_gone_on_from() -> None:
    """What is done is not run again, what is not goes on from where it was."""
    models, plan = (small_model("big"), small_model("little")), small_plan()
    num_points = len(plan.points())
    stopped = profile_pair(*models, plan, QUICK, on_progress=stop_after(num_points + 10))
    done = [sample for sample in stopped.samples if sample.stop_reason == "converged"]
    assert not stopped.complete
    assert len(done) == 10
    told: list[SweepProgress] = []
    whole = profile_pair(*models, plan, QUICK, earlier=stopped, on_progress=told.append)
    assert whole.complete
    assert len(told) == 2 * (num_points - 10)  # made ready, then visited once
    assert (whole.created, len(whole.readings)) == (stopped.created, 2)
    for before, after in zip(stopped.samples, whole.samples, strict=True):
        assert after.repetitions_ms[: len(before.repetitions_ms)] == before.repetitions_ms
        assert len(after.repetitions_ms) == 6
        assert (after.executed_num_tokens, after.stop_reason) == (before.executed_num_tokens, "converged")
    assert profile_pair(*models, plan, QUICK, earlier=whole).samples == whole.samples  # there is nothing left to do


def test_a_verification_stays_when_its_profile_is_gone_on_from() -> None:
    """Another process measured it on the same device: more repetitions of this one do not make it untrue."""
    models, plan = (small_model("big"), small_model("little")), small_plan()
    stopped = profile_pair(*models, plan, QUICK, on_progress=stop_after(len(plan.points()) + 10))
    verified = msgspec.structs.replace(stopped, verification=stopped.samples[:3])
    whole = profile_pair(*models, plan, QUICK, earlier=verified)
    assert whole.complete
    assert whole.verification == verified.verification


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 8}, "its max_num_seqs is 8, and this sweep's 4"),
        ({"capture_sizes": [1, 2]}, r"its capture_sizes is \[1, 2\], and this sweep's \[1, 2, 3, 4, 6, 8, 12"),
        ({"specplan_version": "0.0.1"}, "its specplan_version is 0.0.1"),
        ({"environment": {"torch": "1.0"}}, "its environment.torch is 1.0"),
        ({"target": {"config_sha256": "1" * 64}}, "its target is ModelInfo"),
        (
            {"samples": {"context_len": 16}},
            "52 of its 60 samples are of points that this sweep does not measure; the first, verify graph of 1",
        ),
        (
            {"samples": {"model": "host", "mode": "eager", "k": 0}},
            "1 of its 60 samples are of points that this sweep does not measure; the first, host eager",
        ),
    ],
)
def test_only_the_same_sweep_is_gone_on_from(change: dict[str, Any], message: str) -> None:
    """A sample of the host is no point of a sweep; v = 0 has no context."""
    models, plan = (small_model("big"), small_model("little")), small_plan()
    earlier = profile_pair(*models, plan, QUICK, on_progress=stop_after(60))
    for name, value in change.items():
        if name == "samples":
            if "model" not in value:
                samples = [s if s.context_len == 0 else msgspec.structs.replace(s, **value) for s in earlier.samples]
            else:
                samples = [msgspec.structs.replace(earlier.samples[0], **value), *earlier.samples[1:]]
            value = samples
        elif isinstance(value, dict):
            value = msgspec.structs.replace(getattr(earlier, name), **value)
        earlier = msgspec.structs.replace(earlier, **{name: value})
    with pytest.raises(ConfigError, match=message):
        profile_pair(*models, plan, QUICK, earlier=earlier)


def test_a_killed_sweep_leaves_its_last_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specplan.measure.sweep.SAVE_EVERY_S", 0.0)
    models, plan = (small_model("big"), small_model("little")), small_plan()
    saved: list[Profile] = []
    profile_pair(*models, plan, QUICK, on_checkpoint=saved.append)
    assert [len(profile.samples) for profile in saved[:3]] == [1, 2, 3]
    assert not saved[-1].complete
    again = profile_pair(*models, plan, QUICK, earlier=saved[20])
    assert again.complete


def test_a_block_under_which_the_machine_drifts_is_visited_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three blocks settles, the second drifts on and is marked, the third is steady."""
    monkeypatch.setattr("specplan.measure.sweep.BLOCK", 20)
    drifts = iter([0.02, 0.0, 0.02, 0.03])
    monkeypatch.setattr("specplan.measure.sweep.drift_between", lambda before, after: next(drifts, 0.0))
    models, plan = (small_model("big"), small_model("little")), small_plan()
    once = StoppingRule(min_repetitions=3, min_busy_s=0.0, half_width=1e9, burst=3, burst_ms=0.0)
    visited: list[MeasuredPoint] = []

    def note(progress: SweepProgress) -> None:
        if progress.rounds:
            visited.append(progress.point)

    profile = profile_pair(*models, plan, once, on_progress=note)
    num_points = len(plan.points())
    assert len(visited) == num_points + 2 * 20
    assert visited[:20] == visited[20:40] != visited[40:60] == visited[60:80]
    assert {len(sample.repetitions_ms) for sample in profile.samples} == {3}  # what drifted at first is gone
    marked = [sample for sample in profile.samples if sample.num_drifting]
    assert {point_of(sample) for sample in marked} == set(visited[60:80])
    assert {sample.num_drifting for sample in marked} == {3}
    assert [len(sentinel.at_s) for sentinel in profile.sentinels] == [1 + -(-num_points // 20) + 2] * 2
    tokens = [sentinel.num_tokens for sentinel in profile.sentinels]
    assert tokens[0] == 1 < tokens[1]
    assert all(sentinel.at_s == sorted(sentinel.at_s) for sentinel in profile.sentinels)
    found = [finding for finding in tables_from_profile(profile).findings if finding.code == "drift"]
    assert found[0].message.startswith(f"the machine drifted under 60 of {3 * num_points} repetitions; a step timed")


def test_a_drift_is_more_than_noise_and_more_than_a_hundredth() -> None:
    flat, noisy = np.full(9, 10.0), np.array([9.0, 9.2, 9.5, 9.8, 10.0, 10.2, 10.5, 10.8, 11.0])
    assert drift_between([flat, flat], [flat * 1.005, flat * 1.03]) == pytest.approx(0.03)
    assert drift_between([flat], [flat * 0.9]) == pytest.approx(0.1)
    assert drift_between([flat], [flat * 1.009]) == 0.0
    assert drift_between([noisy], [noisy * 1.02]) == 0.0
    assert drift_between([noisy], [noisy * 1.5]) == pytest.approx(0.5)
    assert drift_between([], []) == 0.0


def test_a_sweep_without_a_single_point_is_an_error() -> None:
    plan = small_plan()
    factory = StepFactory(small_model("big").decoder, small_model("little").decoder, plan)
    with pytest.raises(MeasurementError, match="before its first point"):
        sweep(factory, plan.points(), StoppingRule(time_budget_s=1e-9))


def test_a_static_step_runs_padded_to_its_capture_size() -> None:
    plan = small_plan()
    factory = StepFactory(small_model("big").decoder, small_model("little").decoder, plan)
    assert 5 not in plan.capture_sizes
    for mode, executed in (("graph", 6), ("eager", 5)):
        step = factory.make(plan.verify_point(mode, 4, 5, 8))
        assert (step.executed_num_reqs, step.executed_num_tokens) == (4, executed)
        assert time_step(step.run, CPU).wall_ms > 0


def test_both_layouts_are_in_the_profile() -> None:
    plan = small_plan(layouts=("multi-query", "batch-expansion"))
    profile = profile_pair(small_model("big"), small_model("little"), plan, QUICK)
    assert profile.complete
    assert [(s.layout, s.mode, s.k, s.num_reqs, s.num_tokens) for s in profile.samples] == [
        (p.shape.layout, p.mode, p.k, p.shape.num_reqs, p.shape.num_tokens) for p in plan.points()
    ]
    compared = tables_from_profile(profile).layout_costs
    assert {(costs.num_reqs, costs.k) for costs in compared} == {(n, k) for n in (1, 2, 4) for k in range(3)}


def test_a_step_attends_in_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_plan(layouts=("multi-query", "batch-expansion"))
    factory = StepFactory(small_model("big").decoder, small_model("little").decoder, plan)
    attend, rows = F.scaled_dot_product_attention, []
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **b: rows.append(len(a[0])) or attend(*a, **b))
    for mode in ("graph", "eager"):
        point = plan.verify_point(mode, 4, 12, 8)
        expanded = replace(point, shape=replace(point.shape, layout="batch-expansion"))
        for one, expected in ((point, 4), (expanded, 12)):
            rows.clear()
            step = factory.make(one)
            assert (step.executed_num_reqs, step.executed_num_tokens) == (4, 12)
            assert set(rows) == {expected}


def test_a_plan_past_the_models_positions_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="a context of 62, steps of up to 3 tokens per request and prompts make sequences of 65, past",
    ):
        profile_pair(small_model("big"), small_model("little"), small_plan(contexts=(62,)), QUICK)


def test_devices_are_named_or_refused() -> None:
    assert pick_device("cpu") == CPU
    for name in ("gpu", "mps", "tpu:0"):
        with pytest.raises(ConfigError, match="unknown device"):
            pick_device(name)
    with pytest.raises(ConfigError, match="CUDA devices found"):
        pick_device("cuda:99")


def test_the_environment_says_what_the_graph_column_is() -> None:
    environment = describe_environment(CPU, torch.float32)
    assert environment.graph_kind == "static"
    assert environment.dtype == "float32"
    assert environment.device
    assert environment.num_threads == torch.get_num_threads()
