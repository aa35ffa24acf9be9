"""`make gpu-check` is rehearsed on a CPU: minutes on a GPU are not for finding a misspelt name."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from specplan.files import Profile, Validation
from specplan.measure import ProfilePlan

ROOT = Path(__file__).resolve().parents[1]


def check_module() -> ModuleType:
    """tests/gpu/check.py, which is a script."""
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "tests" / "gpu" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_check_runs_cuts_off_in_time_and_says_what_it_skipped(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tests/gpu/check.py", "--out", str(tmp_path), "--rehearse", "--seconds", "45"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert set(outcomes) == {*check_module().PHASES, "seconds"}
    # On a slow machine the validations, which come last, may find no time: they are rehearsed alone below.
    for phase in ("tests", "microbenchmarks", "large_pair"):
        assert outcomes[phase] == "ok", done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    timings = json.loads((tmp_path / "microbenchmarks.json").read_text())["timings"]
    assert {timing["path"] for timing in timings} >= {"torch, wall", "mode off, wall", "mode graph, wall"}
    large_pair = json.loads((tmp_path / "large_pair.json").read_text())
    profile = Profile.read(tmp_path / "profile-context-64.json")
    points = ProfilePlan(max_num_seqs=4, num_speculative_tokens=7, max_num_batched_tokens=96, contexts=(64,)).points()
    assert profile.samples
    assert profile.complete == (not large_pair["skipped"])
    assert len(profile.samples) + len(large_pair["skipped"]) >= len(points)


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["tiny", "large"])
def test_both_validations_run_to_their_end(tmp_path: Path, pair: str) -> None:
    command = [sys.executable, "tests/gpu/validate.py", "--pair", pair, "--out", str(tmp_path), "--seconds", "600"]
    done = subprocess.run(
        [*command, "--rehearse"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tokens/s measured" in done.stdout
    validation = Validation.read(tmp_path / f"validation-{pair}-2.json")
    assert (validation.imposed is None) == (pair == "tiny")
    for case in validation.cases:
        assert case.lossless is None or case.lossless.num_wrong == 0


def test_time_is_kept_for_the_last_phases_and_passed_on() -> None:
    check = check_module()
    total_s = left_s = check.TOTAL_S
    seconds = {}
    for name in check.PHASES:  # each takes all it may
        seconds[name] = check.seconds_for(name, total_s, left_s=left_s)
        left_s -= seconds[name]
    assert left_s == 0
    assert {name: seconds[name] for name in check.MOST_S} == check.MOST_S
    assert all(seconds[name] >= least for name, least in check.LEAST_S.items())
    assert seconds["validate_large"] == check.LEAST_S["validate_large"]
    assert check.seconds_for("validate_large", total_s, left_s=200) == 200
    assert check.seconds_for("tests", total_s / 10, left_s=total_s / 10) == check.MOST_S["tests"] / 10
    # Where those before it overran, a phase still comes before those after it.
    assert check.seconds_for("large_pair", total_s, left_s=100) == check.LEAST_S["large_pair"]
    assert check.seconds_for("large_pair", total_s, left_s=20) == 20
    assert check.seconds_for("validate_tiny", total_s, left_s=-1) < 0


@pytest.mark.slow
@pytest.mark.parametrize("pair", ["tiny", "large"])
def test_a_validation_out_of_time_says_so_and_keeps_what_there_is(pair: str, tmp_path: Path) -> None:
    earlier = tmp_path / f"validation-{pair}-2.json"
    earlier.write_text("{}")
    done = subprocess.run(
        [sys.executable, "tests/gpu/validate.py", "--pair", pair, "--out", tmp_path, "--seconds", "0.1", "--rehearse"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"skipped, out of time: {pair} pair at concurrency 2, while " in done.stdout
    assert earlier.read_text() == "{}"


@pytest.mark.slow
def test_a_missing_gpu_is_a_failure_unless_it_is_a_rehearsal(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/gpu", "-x"],
        cwd=ROOT,
        env=os.environ | {"SPECPLAN_REQUIRE_CUDA": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "SPECPLAN_REQUIRE_CUDA=1, and torch finds no CUDA device" in done.stdout


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "tests/gpu/check.py", "--out", str(tmp_path / "results")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert done.stderr.splitlines()[0] == "error: torch finds no CUDA device"
    assert not (tmp_path / "results").exists()
