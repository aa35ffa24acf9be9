"""Settings and helpers that all tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

try:
    from hypothesis import settings
except ImportError:  # tests/gpu do without, for machines to which little can be brought
    pass
else:
    # No test asserts a time, and an example that a busy machine is slow to run is no failure.
    settings.register_profile("specplan", deadline=None)
    settings.load_profile("specplan")

# Triton decides when a kernel is defined whether it will be interpreted: before anything imports one.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

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
    torch.set_num_threads(1)


# Compiles a kernel to a cubin for a GPU that need not be there, and tells what it takes of it.
COMPILE_AHEAD = """
import importlib, json, subprocess, sys, tempfile
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

asked = json.loads(sys.stdin.read())
kernel = getattr(importlib.import_module(asked["module"]), asked["kernel"])
places = {name: place for place, name in enumerate(kernel.arg_names)}
constants = {(places[name],): value for name, value in asked["constants"].items()}
signature = asked["signature"] | dict.fromkeys(asked["constants"], "constexpr")
signature = {name: signature[name] for name in kernel.arg_names}
options = {"num_warps": asked["num_warps"]}
source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
compiled = triton.compile(source, target=GPUTarget("cuda", asked["capability"], 32), options=options)
# Spills are the assembler's: PTX has registers without end.
target = f"sm_{asked['capability']}{'a' if asked['capability'] >= 90 else ''}"
with tempfile.NamedTemporaryFile("w", suffix=".ptx") as ptx:
    ptx.write(compiled.asm["ptx"])
    ptx.flush()
    command = [get_ptxas(asked["capability"]).path, "-v", f"--gpu-name={target}", "-o", "/dev/null", ptx.name]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stderr.split()
spills = [int(said[place - 2]) for place, word in enumerate(said) if word == "spill"]
assert len(spills) == 2, said
print(json.dumps(
    {"shared_bytes": compiled.metadata.shared, "spilled_bytes": sum(spills), "ptx": compiled.asm["ptx"]}
))
"""


@pytest.fixture
def compile_ahead() -> Callable[..., dict[str, object]]:
    """`compile_ahead(module, kernel, signature={arg: "*fp32"}, constants={...}, capability=90, num_warps=4)`."""
    pytest.importorskip("triton")

    def run(
        module: str,
        kernel: str,
        *,
        signature: dict[str, str],
        constants: dict[str, object],
        capability: int,
        num_warps: int = 4,
    ) -> dict[str, object]:
        asked = {
            "module": module,
            "kernel": kernel,
            "signature": signature,
            "constants": constants,
            "capability": capability,
            "num_warps": num_warps,
        }
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-c", COMPILE_AHEAD],
            input=json.dumps(asked),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return result

    return run
