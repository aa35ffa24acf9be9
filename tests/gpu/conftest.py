"""These tests need a CUDA device: they skip without one, or fail if SPECPLAN_REQUIRE_CUDA=1 says there is one."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture
def cuda() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("SPECPLAN_REQUIRE_CUDA") == "1":
        pytest.fail("SPECPLAN_REQUIRE_CUDA=1, and torch finds no CUDA device")
    pytest.skip("no CUDA device")
