"""A profile verified: which points, and by whom."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specplan.errors import FileError, MeasurementError
from specplan.measure import ProfilePlan, StoppingRule
from specplan.measure.verification import Pair, measure_anew, verification_points
from specplan.shapes import padded_size

QUICK = StoppingRule(min_repetitions=3, min_busy_s=0.0, half_width=1.0, time_budget_s=60.0)


def small_plan(**changes: Any) -> ProfilePlan:
    limits: dict[str, Any] = {
        "max_num_seqs": 6,
        "num_speculative_tokens": 6,
        "max_num_batched_tokens": 96,
        "contexts": (8, 24),
        "capture_sizes": (1, 2, 4, 8, 16, 24, 32),
    }
    return ProfilePlan(**(limits | changes))


def test_some_points_are_measured_again_and_others_lie_between() -> None:
    plan = small_plan()
    planned, points = set(plan.points()), verification_points(plan)
    assert points == verification_points(plan)
    assert points != verification_points(plan, seed=1)
    assert len(points) == len(set(points))
    again = [point for point in points if point in planned]
    between = [point for point in points if point not in planned]
    assert {plan.region_of(point) for point in again} == {"captured", "smooth", "mixed", "draft"}
    assert {plan.region_of(point) for point in between} == {"captured", "smooth", "mixed"}
    assert {point.shape.context_len for point in between} == {8, 16, 24}
    for point in between:
        assert point.shape.num_tokens <= 96
        assert point.shape.is_mixed or point.shape.num_tokens <= point.shape.num_reqs * 7


def test_what_is_not_priced_is_not_verified() -> None:
    plan = small_plan(checks_ragged=True, layouts=("multi-query", "batch-expansion"))
    assert None in {plan.region_of(point) for point in plan.points()}
    for point in verification_points(plan):
        assert plan.region_of(point) is not None
        assert (point.shape.lengths, point.shape.layout) == ("even", "multi-query")


def test_another_process_measures(tmp_path: Path) -> None:
    """Uncaptured sizes run padded there, as an engine would run them."""
    plan = small_plan()
    pair = Pair(target="tiny", draft="tiny", device="cpu", dtype=torch.float32, seed=0)
    told: list[float] = []
    samples = measure_anew(pair, plan, QUICK, on_progress=told.append).samples
    assert len(samples) == len(verification_points(plan))
    assert all(0 <= fraction < 1 for fraction in told)
    padded = [sample for sample in samples if sample.model == "verify" and sample.mode == "graph"]
    assert any(sample.executed_num_tokens > sample.num_tokens for sample in padded)
    for sample in padded:
        assert sample.executed_num_tokens == padded_size(sample.num_tokens, plan.capture_sizes)


def test_no_time_is_no_error() -> None:
    pair = Pair(target="tiny", draft="tiny", device="cpu", dtype=torch.float32, seed=0)
    result = measure_anew(pair, small_plan(), replace(QUICK, time_budget_s=1e-9))
    assert (result.samples, result.failures, result.complete) == ([], [], False)


def test_what_goes_wrong_there_is_said_here(tmp_path: Path) -> None:
    pair = Pair(target=str(tmp_path), draft="tiny", device="cpu", dtype=torch.float32, seed=0)
    with pytest.raises(FileError, match=r"config\.json"):
        measure_anew(pair, small_plan(), QUICK)


class Dying(Pair):
    """Ends the process that takes it out of its envelope."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def test_a_process_that_dies_is_an_error_and_not_a_traceback() -> None:
    pair = Dying(target="tiny", draft="tiny", device="cpu", dtype=torch.float32, seed=0)
    with pytest.raises(MeasurementError, match="ended before it had"):
        measure_anew(pair, small_plan(), QUICK)


# Verifies until it is ended, and tells how long it has waited.
ENDLESS = """
import torch
from specplan.measure import ProfilePlan, StoppingRule
from specplan.measure.verification import Pair, measure_anew

plan = ProfilePlan(max_num_seqs=1, num_speculative_tokens=1, max_num_batched_tokens=4, contexts=(8,))
rule = StoppingRule(half_width=0.0, max_busy_s=1e9, time_budget_s=1e9)
pair = Pair(target="tiny", draft="tiny", device="cpu", dtype=torch.float32, seed=0)
try:
    measure_anew(pair, plan, rule, on_progress=lambda fraction: print("waiting", flush=True))
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("signals", "to_group", "seconds"),
    [
        pytest.param([signal.SIGINT], True, 1, id="a Ctrl-C while it starts"),
        pytest.param([signal.SIGINT], False, 5, id="an interrupt of the parent alone"),
        pytest.param([signal.SIGINT, signal.SIGINT], True, 5, id="an impatient Ctrl-C"),
        pytest.param([signal.SIGTERM], False, 1, id="the parent ended while it starts"),
        pytest.param([signal.SIGKILL], False, 5, id="the parent killed"),
    ],
)
def test_it_goes_with_whoever_waits_for_it(signals: list[signal.Signals], to_group: bool, seconds: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            for _ in range(seconds):
                assert parent.stdout.readline() == "waiting\n"
            for each in signals:
                (os.killpg if to_group else os.kill)(parent.pid, each)
                time.sleep(0.002)
            # Both hold the pipes: they end when the last of the processes has.
            stdout, stderr = parent.communicate(timeout=30)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
    if len(signals) == 1:
        assert stderr == ""
        is_interrupt = signals == [signal.SIGINT]
        assert parent.returncode == (0 if is_interrupt else -signals[0])
        assert ("interrupted" in stdout) == is_interrupt


def test_errors_survive_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(MeasurementError("what", "next")))
    assert (type(error), error.message, error.hint) == (MeasurementError, "what", "next")
