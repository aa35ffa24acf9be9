"""Settings and helpers that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# No test asserts a time, and an example that a busy machine is slow to run is no failure.
settings.register_profile("specplan", deadline=None)
settings.load_profile("specplan")

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--benchmarks", action="store_true", help="run tests/benchmarks, which time things")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--benchmarks"):
        skip = pytest.mark.skip(reason="times things: run `make benchmarks`")
        for item in items:
            if "benchmarks" in item.path.parts:
                item.add_marker(skip)


@pytest.fixture
def shared_data() -> Path:
    """Real inputs kept beside the repository; a test that wants them is skipped where they are not."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no {SHARED_DATA}: real inputs are not shipped")
    return SHARED_DATA


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two test runs on one machine would otherwise wait for each other's threads at every matrix product."""
    import torch

    torch.set_num_threads(1)
