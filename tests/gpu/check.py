"""`make gpu-check OUT=folder`: everything that needs a GPU, in one command of at most eight minutes.

Tests, then microbenchmarks, then a profile of a pair as large as what is served, then the simulator held against the
engine on the embedded pair and on the large one, each in a process of its own: an error that a device does not recover
from ends one of them and not the others. Exit code 0 if all did what they should. `--rehearse` runs the same on a CPU
and the embedded pair, to find the mistakes that need no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

TOTAL_S = 7 * 60.0
# In this order; of TOTAL_S, and of less in proportion. What a phase leaves over, the next ones get.
PHASES = ("tests", "microbenchmarks", "large_pair", "validate_tiny", "validate_large")
MOST_S = {"tests": 150.0, "microbenchmarks": 70.0}
LEAST_S = {"large_pair": 60.0, "validate_tiny": 40.0, "validate_large": 85.0}  # kept while earlier phases run
SCRIPTS = {
    "validate_tiny": ("validate.py", "--pair", "tiny"),
    "validate_large": ("validate.py", "--pair", "large"),
}
GRACE_S = 45.0  # for a phase to write what it has; past that it is ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON results")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with the embedded pair, in a minute")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for all phases together")
    options = parser.parse_args()
    if not options.rehearse and not has_cuda():
        print("error: torch finds no CUDA device", file=sys.stderr)
        print(
            "hint: --rehearse runs the same on a CPU: python tests/gpu/check.py --rehearse --out DIR", file=sys.stderr
        )
        return 5
    options.out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    if not options.rehearse:
        environment["SPECPLAN_REQUIRE_CUDA"] = "1"

    outcomes: dict[str, str | float] = {}
    for name in PHASES:
        seconds = seconds_for(name, options.seconds, left_s=options.seconds - (time.monotonic() - start_s))
        print(f"== {name}, at most {seconds:.0f} s", flush=True)
        outcomes[name] = "skipped: out of time"
        if seconds > 0:
            command = command_of(name, options.out, seconds, rehearse=options.rehearse)
            outcomes[name] = run_phase(command, environment, seconds)
        outcomes["seconds"] = round(time.monotonic() - start_s, 1)
        (options.out / "outcomes.json").write_text(json.dumps(outcomes, indent=2) + "\n")
    print(f"== {outcomes}", flush=True)
    return 0 if all(outcomes[name] == "ok" for name in PHASES) else 1


def seconds_for(name: str, total_s: float, *, left_s: float) -> float:
    """What a phase may take: what is left without what is kept for later ones, between its own least and most.

    Where phases before it overran, it comes before those after it.
    """
    scale = total_s / TOTAL_S
    later = PHASES[PHASES.index(name) + 1 :]
    spare_s = left_s - scale * sum(LEAST_S.get(other, 0.0) for other in later)
    return min(max(spare_s, min(left_s, scale * LEAST_S.get(name, 0.0))), scale * MOST_S.get(name, TOTAL_S))


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def command_of(name: str, out: Path, seconds: float, *, rehearse: bool) -> list[str]:
    if name == "tests":
        # A new torch may warn of what an old one did not: that is not what is checked here.
        report = f"--junitxml={out.resolve() / 'tests.xml'}"
        return [
            sys.executable,
            "-m",
            "pytest",
            "-v",
            "--durations=15",
            "-o",
            "filterwarnings=default",
            report,
            str(HERE),
        ]
    script, *arguments = SCRIPTS.get(name, (f"{name}.py",))
    command = [sys.executable, str(HERE / script), *arguments, "--out", str(out), "--seconds", str(seconds)]
    return [*command, "--rehearse"] if rehearse else command


def run_phase(command: list[str], environment: dict[str, str], seconds: float) -> str:
    try:
        code = subprocess.run(command, env=environment, cwd=ROOT, timeout=seconds + GRACE_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return "ended: out of time"
    return "ok" if code == 0 else f"failed: exit code {code}"


if __name__ == "__main__":
    sys.exit(main())
