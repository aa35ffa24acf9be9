"""`specplan profile` where something comes between: interrupts, full disks, no time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from typer.testing import Result

from specplan.errors import FileError
from specplan.files import Failure, Profile, Sample
from specplan.measure.sweep import SweepResult

Run = Callable[..., Result]


@pytest.fixture
def profile(run: Run, model_folder: Path, tmp_path: Path) -> Callable[..., Result]:
    """Profiles a few points to `tmp_path / "profile.json"`."""
    limits = ["-k", "1", "--max-num-seqs", "1", "--max-num-batched-tokens", "4", "--time-budget", "1"]
    output = tmp_path / "profile.json"

    def run_profile(*args: str | Path) -> Result:
        return run("profile", "--target", model_folder, "--draft", model_folder, "-o", output, *limits, *args)

    return run_profile


def test_an_interrupted_verification_leaves_the_profile_and_says_so(
    profile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("specplan.measure.verification.measure_anew", interrupted)
    result = profile("--verify-error")
    assert result.exit_code == 130
    said = f"interrupted: {tmp_path / 'profile.json'} is written, and is not verified; the same command with --resume"
    assert said in result.stderr
    first = Profile.read(tmp_path / "profile.json")
    assert first.verification == []

    msgspec.structs.replace(first, verification=first.samples[:3]).write(tmp_path / "profile.json")
    result = profile("--verify-error", "--resume")
    assert result.exit_code == 130
    assert "is written, and keeps its earlier verification; the same command" in result.stderr
    assert Profile.read(tmp_path / "profile.json").verification == first.samples[:3]


def test_a_folder_where_checkpoints_go_is_refused_beforehand(profile: Run, tmp_path: Path) -> None:
    partial = tmp_path / "profile.json.partial"
    partial.mkdir()
    result = profile()
    assert result.exit_code == 3
    assert result.stderr.startswith(f"error: cannot write {partial}: it is a directory")
    assert "hint: what is measured is kept there until it is whole: move it away, or give another" in result.stderr
    assert not (tmp_path / "profile.json").exists()


def test_a_sweep_goes_on_where_its_checkpoints_fail(
    profile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specplan.measure.sweep.SAVE_EVERY_S", 0.0)
    write = Profile.write

    def write_or_fail(self: Profile, path: Path) -> None:
        if path.suffix == ".partial":
            raise FileError(f"cannot write {path}: No space left on device", "make room")
        write(self, path)

    monkeypatch.setattr(Profile, "write", write_or_fail)
    result = profile()
    assert result.exit_code == 0
    assert result.stderr.count("No space left on device; measuring goes on") == 1
    assert Profile.read(tmp_path / "profile.json").samples


def test_a_verification_cut_short_is_told(profile: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure(
        model="verify",
        mode="eager",
        layout="multi-query",
        num_reqs=1,
        num_tokens=2,
        k=None,
        context_len=4,
        message="no memory",
    )
    taken: list[Sample] = []
    failures: list[Failure] = []

    def cut_short(*args: Any, **kwargs: Any) -> SweepResult:
        return SweepResult(samples=taken, failures=failures, complete=False)

    monkeypatch.setattr("specplan.measure.verification.measure_anew", cut_short)
    result = profile("--verify-error", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["verified"] == 0
    said = re.search(r"out of time: the profile is written, and none of (\d+) points was verified", result.stderr)
    assert said is not None
    assert "the same command with --resume, and a larger --time-budget, of which this is a third," in result.stderr
    num_points = int(said[1])

    taken += Profile.read(tmp_path / "profile.json").samples[:2]
    result = profile("--verify-error")
    assert result.exit_code == 0
    assert "2 points verified by another process" in result.stdout
    assert f"out of time: the profile is written, and 2 of {num_points} points were verified" in result.stderr

    taken[:] = taken[1:]
    result = profile("--verify-error", "--resume")
    assert Profile.read(tmp_path / "profile.json").verification == taken  # instead of the earlier one
    assert f"1 of {num_points} points were verified" in result.stderr

    failures += [failure] * (num_points - 1)
    result = profile("--verify-error")
    assert result.exit_code == 0
    assert f"{num_points - 1} of {num_points} points could not be verified: no memory" in result.stderr
    assert "out of time: the profile" not in result.stderr


def test_a_dry_run_refuses_what_a_run_would(profile: Run) -> None:
    measured, listed = (profile("--context-len", "100000", *more) for more in ([], ["--dry-run"]))
    assert listed.exit_code == measured.exit_code == 2
    assert listed.stderr == measured.stderr
    assert "past the models' 128 positions" in listed.stderr
    assert listed.stdout == ""
