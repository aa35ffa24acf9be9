"""The house has floors: a module imports only from packages below its own, and the planning wing knows no torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "specplan"

# From the ground up. `specplan` itself is the version.
FLOORS = [
    "errors",
    "shapes",
    "files",
    "costs",
    "planning",
    "simulation",
    "models",
    "device",
    "engine",
    "measure",
    "interop",
    "report",
    "cli",
]
PLANNING_WING = {"files", "costs", "planning", "simulation", "interop", "report"}
DEVICE_WING = {"models", "device", "engine", "measure"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            # `from specplan import files` names a package in its list.
            if node.module == "specplan":
                yield from (f"specplan.{alias.name}" for alias in node.names)


def package_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "specplan" and len(parts) > 1 and parts[1] in FLOORS else None


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    own = package_of(".".join(("specplan", *path.relative_to(PACKAGE).with_suffix("").parts)))
    if own is None:  # specplan/__init__.py
        return
    below = set(FLOORS[: FLOORS.index(own) + 1])
    used = {package for module in imported(ast.parse(path.read_text())) if (package := package_of(module))}
    assert used <= below, f"{path.name} imports upwards: {sorted(used - below)}"
    if own in PLANNING_WING:
        assert not used & DEVICE_WING, f"{path.name} imports from the device wing"


def test_every_package_has_a_floor() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages <= set(FLOORS)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_outgrows_its_place(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def loads(modules_wanted: set[str], code: str) -> set[str]:
    """Which of the modules a fresh interpreter has loaded after `code`."""
    probe = f"{code}\nimport sys\nprint(','.join(sorted(set(sys.modules) & {modules_wanted!r})))"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(filter(None, result.stdout.splitlines()[-1].split(",")))


HEAVY = {"torch", "scipy", "numba", "pyarrow", "numpy", "rich", "matplotlib"}


def test_the_probe_can_fail() -> None:
    assert loads(HEAVY, "import pyarrow") == {"numpy", "pyarrow"}


def test_help_loads_nothing_heavy() -> None:
    code = "from typer.testing import CliRunner\nfrom specplan.cli import app\n"
    commands = ("", "profile", "tables", "record", "simulate", "validate", "check", "compare", "doctor", "import")
    for command in (*commands, "import trace", "import costs"):
        code += f"assert CliRunner().invoke(app, {[*command.split(), '--help']!r}).exit_code == 0\n"
    assert loads(HEAVY, code) == set()


@pytest.mark.parametrize("package", sorted(PLANNING_WING))
def test_the_planning_wing_loads_no_torch(package: str) -> None:
    assert loads(HEAVY - {"numpy"}, f"import specplan.{package}") == set()


def test_simulate_and_tables_load_no_torch(tmp_path: Path) -> None:
    """The commands themselves, on real files: what they import while they run counts too."""
    code = f"""
import numpy as np
from typer.testing import CliRunner
from specplan.cli import app
from specplan.costs import build_cost_tables
from specplan.files import Trace, TraceMetadata

folder = {str(tmp_path)!r}
build_cost_tables([(1, 0.1), (4, 0.2)], [(1, 1), (8, 2), (64, 9)], max_num_reqs=4, max_num_tokens=64).write(
    folder + "/tables.json"
)
rows = np.arange(40, dtype=np.int32)
Trace(
    metadata=TraceMetadata(
        kind="dense", sampling="greedy", num_speculative_tokens=2, target="t", draft="d", tokenizer="t", source="s"
    ),
    request=rows // 10,
    position=rows % 10,
    confidence=np.full((40, 2), 0.5, dtype=np.float32),
    accepted_len=rows % 3,
    verified_len=np.full(40, 2, dtype=np.int32),
    arrival_s=np.zeros(4),
    prompt_len=np.ones(4, dtype=np.int32),
    output_len=np.full(4, 10, dtype=np.int32),
).write(folder + "/trace.parquet")
args = ["simulate", folder + "/trace.parquet", "--tables", folder + "/tables.json", "--concurrency", "1,2"]
assert CliRunner().invoke(app, args, catch_exceptions=False).exit_code == 0
"""
    assert loads({"torch", "numba"}, code) == {"numba"}
