"""`make gpu-check` is rehearsed on a CPU: minutes on a GPU are not for finding a misspelt name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specplan.files import Profile
from specplan.measure import ProfilePlan

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_check_runs_cuts_off_in_time_and_says_what_it_skipped(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tests/gpu/check.py", "--out", str(tmp_path), "--rehearse", "--seconds", "18"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads((tmp_path / "outcomes.json").read_text())
    assert [outcomes[name] for name in ("tests", "microbenchmarks", "large_pair")] == ["ok", "ok", "ok"]
    timings = json.loads((tmp_path / "microbenchmarks.json").read_text())["timings"]
    assert {timing["path"] for timing in timings} >= {"torch, wall", "mode off, wall", "mode graph, wall"}
    large_pair = json.loads((tmp_path / "large_pair.json").read_text())
    profile = Profile.read(tmp_path / "profile-context-64.json")
    points = ProfilePlan.default(
        max_num_seqs=4, num_speculative_tokens=7, max_num_batched_tokens=96, context_len=64
    ).points()
    assert profile.samples
    assert profile.complete == (not large_pair["skipped"])
    assert len(profile.samples) + len(large_pair["skipped"]) >= len(points)


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
