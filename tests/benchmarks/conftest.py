"""Benchmarks report ratios of two ways to do one thing, timed in turn within one run: these machines are noisy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

ROUNDS = 7
REPORT = pytest.StashKey[list[str]]()


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`compare(what, fast=..., plain=...)` reports how many times sooner the fast way is done; it asserts nothing."""

    def run(what: str, *, fast: Callable[[], object], plain: Callable[[], object]) -> None:
        fast()
        plain()
        ratios, fast_ms, plain_ms = [], [], []
        for _ in range(ROUNDS):
            fast_ms.append(time_ms(fast))
            plain_ms.append(time_ms(plain))
            ratios.append(plain_ms[-1] / fast_ms[-1])
        request.config.stash.setdefault(REPORT, []).append(
            f"{what}: {statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f}), "
            f"{statistics.median(fast_ms):.3g} ms against {statistics.median(plain_ms):.3g} ms"
        )

    return run


def time_ms(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(REPORT, []):
        terminalreporter.write_line(line)
