"""The traces and costs in profiles/ are what their pages say; the traces belong to the embedded pair."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from specplan.costs import tables_from_profile
from specplan.files import Profile, Trace
from specplan.models.config import config_sha256

ROOT = Path(__file__).resolve().parents[1]
TRACES = sorted((ROOT / "profiles" / "traces").glob("*.parquet"))
COSTS = sorted((ROOT / "profiles" / "costs").glob("*.json"))
PAIR = ROOT / "specplan" / "models" / "tiny"


def test_at_least_three_kinds_of_text() -> None:
    assert {path.stem for path in TRACES} >= {"tiny-code", "tiny-maths", "tiny-plays"}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_dense_greedy_and_of_the_pair_that_is_shipped(path: Path) -> None:
    trace = Trace.read(path)
    metadata = trace.metadata
    assert (metadata.kind, metadata.sampling, metadata.num_speculative_tokens) == ("dense", "greedy", 7)
    assert trace.confidence is not None
    assert trace.num_requests >= 90
    assert len(trace.request) == trace.output_len.sum()
    for role in ("target", "draft"):
        assert metadata.provenance[f"{role}_config_sha256"] == config_sha256(PAIR / role)
        assert metadata.provenance[f"{role}_weights_sha256"] == weights_sha256(PAIR / role)


def weights_sha256(folder: Path) -> str:
    import hashlib

    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_page_gives_the_figures_of_the_file(path: Path) -> None:
    trace = Trace.read(path)
    row = f"| {path.name} | {trace.num_requests} | {len(trace.request):,} | {trace.accepted_len.mean():.2f} |"
    assert row in (path.parent / "README.md").read_text()


def test_costs_of_a_data_centre_gpu_and_a_consumers() -> None:
    assert {path.stem.partition("-")[0] for path in COSTS} >= {"h100", "a100", "rtx4090"}


@pytest.mark.parametrize("path", COSTS, ids=lambda path: path.stem)
def test_costs_are_cited_small_and_can_be_planned_with(path: Path) -> None:
    profile = Profile.read(path)
    assert path.stat().st_size < 300_000
    assert re.search(r"\([0-9a-f]{7}, (MIT|Apache-2.0)\)", profile.source)
    assert profile.environment.timing_scope.startswith("approximation: ")
    assert {sample.stop_reason for sample in profile.samples} == {"imported"}
    tables = tables_from_profile(profile)
    assert (tables.max_num_reqs, tables.max_num_tokens, tables.contexts) == (32, 1024, [512, 2048])
    assert tables.verify_row(32, 2048)[256] > tables.verify_row(1, 512)[1]


@pytest.mark.parametrize("path", COSTS, ids=lambda path: path.stem)
def test_the_page_names_each_profile(path: Path) -> None:
    profile = Profile.read(path)
    row = (
        f"| {path.name} | {profile.environment.device} | {profile.target.name} | "
        f"{profile.environment.tensor_parallel_size} | {len(profile.samples)} |"
    )
    assert row in (path.parent / "README.md").read_text()


def test_the_commands_on_the_page_make_the_shipped_costs(shared_data: Path, tmp_path: Path) -> None:
    for source in (shared_data / "costs").iterdir():
        (tmp_path / source.name).symlink_to(source)
    (commands,) = re.findall(r"```\n(columns=.*?)```", (ROOT / "profiles/costs/README.md").read_text(), re.DOTALL)
    specplan = f'specplan() {{ {sys.executable} -c "from specplan.cli import main; main()" "$@"; }}'
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-e", "-c", f"{specplan}\n{commands}"], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [path.name for path in COSTS]
    for path in COSTS:
        made, shipped = Profile.read(tmp_path / path.name), Profile.read(path)
        assert msgspec.structs.replace(made, created=shipped.created) == shipped
