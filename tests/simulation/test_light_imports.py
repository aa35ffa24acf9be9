from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "scipy", "numba", "pyarrow", "rich")
PROBE = f"import sys, {{package}}; print(*(name for name in {HEAVY} if name in sys.modules))"


def loaded_by(package: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", PROBE.format(package=package)], check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize("package", ["planning", "simulation", "interop", "report", "files.trace"])
def test_heavy_libraries_are_loaded_where_they_are_used(package: str) -> None:
    assert loaded_by(f"specplan.{package}") == ""


def test_the_probe_can_fail() -> None:
    assert loaded_by("pyarrow") == "pyarrow"
