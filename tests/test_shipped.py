"""The traces in profiles/traces are what their page says, and belong to the embedded pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from specplan.files import Trace
from specplan.models.config import config_sha256

ROOT = Path(__file__).resolve().parents[1]
TRACES = sorted((ROOT / "profiles" / "traces").glob("*.parquet"))
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
