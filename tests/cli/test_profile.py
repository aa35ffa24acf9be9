"""`specplan profile` where something comes between: interrupts, full disks, no time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import Result

from specplan.errors import FileError
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
