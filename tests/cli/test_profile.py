"""`specplan profile` where something comes between: interrupts, full disks, no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import Result

from specplan.files import Profile

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
    assert Profile.read(tmp_path / "profile.json").verification == []
