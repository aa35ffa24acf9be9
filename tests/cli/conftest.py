"""Small real inputs for the commands: a pair of models, a profile, tables and a trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from specplan.cli import app
from specplan.costs import build_cost_tables
from specplan.files import Trace, TraceMetadata

SMALL_CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture
def run() -> Callable[..., Result]:
    """Runs a command as a user would; an exception that is no expected error fails the test with its traceback."""

    def run_command(*args: str | Path) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)

    return run_command


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL_CONFIG))
    return folder


@pytest.fixture
def tables_file(tmp_path: Path) -> Path:
    """Costs of a padded, then smooth machine: up to 16 requests and 128 tokens."""
    tables = build_cost_tables(
        [(1, 0.2), (4, 0.3), (16, 0.6)],
        [(1, 1.0), (8, 1.1), (16, 1.4), (32, 2.2), (64, 4.0), (96, 9.0), (128, 12.0)],
        max_num_reqs=16,
        max_num_tokens=128,
        capture_limit=64,
    )
    path = tmp_path / "tables.json"
    tables.write(path)
    return path


@pytest.fixture
def trace() -> Trace:
    """Two dozen requests, K = 3."""
    num_requests, k = 24, 3
    rng = np.random.default_rng(0)
    output_len = rng.integers(5, 30, num_requests).astype(np.int32)
    rows = int(output_len.sum())
    confidence = rng.uniform(0.2, 1.0, (rows, k)).astype(np.float32)
    accepted = np.cumprod(rng.uniform(size=(rows, k)) < confidence, axis=1).sum(axis=1).astype(np.int32)
    return Trace(
        metadata=TraceMetadata(
            kind="dense",
            sampling="greedy",
            num_speculative_tokens=k,
            target="target",
            draft="draft",
            tokenizer="target",
            source="made for a test",
        ),
        request=np.repeat(np.arange(num_requests, dtype=np.int32), output_len),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in output_len]),
        confidence=confidence,
        accepted_len=accepted,
        verified_len=np.full(rows, k, dtype=np.int32),
        arrival_s=np.zeros(num_requests),
        prompt_len=np.full(num_requests, 10, dtype=np.int32),
        output_len=output_len,
    )


@pytest.fixture
def trace_file(trace: Trace, tmp_path: Path) -> Path:
    path = tmp_path / "trace.parquet"
    trace.write(path)
    return path
