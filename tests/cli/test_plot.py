"""`specplan tables --plot`: a picture of each kind, or a refusal and no file."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import CPU_ENVIRONMENT, TARGET
from typer.testing import Result

from specplan.files import CostTables, Profile, Sample

Run = Callable[..., Result]


@pytest.fixture
def profile_file(tmp_path: Path) -> Path:
    """Verify passes of one and two requests, up to three drafts each."""
    samples = [
        Sample(
            model="verify",
            mode="graph",
            layout="multi-query",
            num_reqs=n,
            num_tokens=t,
            executed_num_reqs=n,
            executed_num_tokens=t,
            k=None,
            context_len=64,
            warmup_ms=[],
            repetitions_ms=[10.0 + t, 11.0 + t, 12.0 + t],
            stop_reason="converged",
        )
        for n, t in ((1, 1), (1, 4), (2, 2), (2, 4), (2, 8))
    ]
    path = tmp_path / "profile.json"
    Profile(
        specplan_version="0.1.0",
        created="2026-01-01T00:00:00Z",
        source="measured",
        environment=CPU_ENVIRONMENT,
        target=TARGET,
        draft=None,
        num_speculative_tokens=3,
        max_num_seqs=2,
        max_num_batched_tokens=8,
        capture_sizes=[1, 2, 4, 8],
        complete=True,
        samples=samples,
    ).write(path)
    return path


@pytest.mark.parametrize(
    ("suffix", "start"),
    [(".png", b"\x89PNG\r\n"), (".svg", b"<?xml "), (".html", b"<!DOCTYPE html>\n"), (".PNG", b"\x89PNG")],
)
def test_a_picture_beside_the_tables(run: Run, profile_file: Path, tmp_path: Path, suffix: str, start: bytes) -> None:
    plot, output = tmp_path / f"costs{suffix}", tmp_path / "tables.json"
    result = run("tables", profile_file, "-o", output, "--plot", plot)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-2:] == [f"wrote {output}", f"wrote {plot}"]
    assert "Verify step, ms" in result.stdout
    assert plot.read_bytes().startswith(start)
    assert CostTables.read(output).max_num_tokens == 8


def test_a_picture_alone_and_with_json(run: Run, profile_file: Path, tmp_path: Path) -> None:
    plot = tmp_path / "costs.svg"
    result = run("tables", profile_file, "--plot", plot, "--json")
    assert json.loads(result.stdout)["schema"] == "specplan.tables/1"
    before = plot.read_bytes()
    assert run("tables", profile_file, "--plot", plot).exit_code == 0  # an older one is replaced
    assert plot.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["costs.svg", "profile.json"]


@pytest.mark.parametrize(
    ("plot", "exit_code", "message"),
    [
        ("costs.pdf", 2, ".html, .png or .svg"),
        ("costs", 2, ".html, .png or .svg"),
        ("nowhere/costs.png", 3, "No such file or directory"),
        ("profile.json", 2, ".html, .png or .svg"),
        ("linked.png", 2, "is also an input"),
        ("costs.svg", 2, "--output and --plot both name"),
        ("folder.svg", 3, "it is a directory"),
    ],
)
def test_what_is_refused_leaves_nothing(
    run: Run, profile_file: Path, tmp_path: Path, plot: str, exit_code: int, message: str
) -> None:
    (tmp_path / "linked.png").symlink_to(profile_file)
    (tmp_path / "folder.svg").mkdir()
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    result = run("tables", profile_file, "-o", tmp_path / "costs.svg", "--plot", tmp_path / plot)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    error, hint = result.stderr.splitlines()
    assert message in error
    assert hint.startswith("hint: ")
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_profile_without_tables_has_no_picture(run: Run, profile_file: Path, tmp_path: Path) -> None:
    content = json.loads(profile_file.read_text()) | {"samples": [], "draft": None}
    profile_file.write_text(json.dumps(content))
    result = run("tables", profile_file, "--plot", tmp_path / "costs.png")
    assert (result.exit_code, result.stdout) == (3, "")
    assert not (tmp_path / "costs.png").exists()


def test_matplotlib_is_loaded_for_a_picture_alone(profile_file: Path) -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from specplan.cli import app
assert CliRunner().invoke(app, ["tables", {str(profile_file)!r}], catch_exceptions=False).exit_code == 0
refused = CliRunner().invoke(app, ["tables", {str(profile_file)!r}, "--plot", "costs.pdf"], catch_exceptions=False)
assert refused.exit_code == 2
assert "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
