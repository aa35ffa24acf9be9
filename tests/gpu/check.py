"""`make gpu-check OUT=folder`: everything that needs a GPU, in one command of at most eight minutes.

Tests, then microbenchmarks, then a profile of a pair as large as what is served, each in a process of its own: an
error that a device does not recover from ends one of them and not the others. Exit code 0 if all three did what they
should. `--rehearse` runs the same on a CPU and the embedded pair, to find the mistakes that need no GPU.
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
MOST_S = {"tests": 150.0, "microbenchmarks": 90.0}
GRACE_S = 45.0  # for a phase to write what it has; past that it is ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON results")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with the embedded pair, in a minute")
    parser.add_argument("--seconds", type=float, default=TOTAL_S, help="for all phases together")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start_s = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    if not options.rehearse:
        environment["SPECPLAN_REQUIRE_CUDA"] = "1"

    outcomes = {}
    for name in ("tests", "microbenchmarks", "large_pair"):
        left_s = options.seconds - (time.monotonic() - start_s)
        seconds = min(left_s, MOST_S.get(name, left_s))
        print(f"== {name}, at most {seconds:.0f} s", flush=True)
        if seconds <= 0:
            outcomes[name] = "skipped: out of time"
            continue
        outcomes[name] = run_phase(
            command_of(name, options.out, seconds, rehearse=options.rehearse), environment, seconds
        )
    outcomes["seconds"] = round(time.monotonic() - start_s, 1)
    (options.out / "outcomes.json").write_text(json.dumps(outcomes, indent=2) + "\n")
    print(f"== {outcomes}", flush=True)
    return 0 if all(outcomes[name] == "ok" for name in ("tests", "microbenchmarks", "large_pair")) else 1


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
    command = [sys.executable, str(HERE / f"{name}.py"), "--out", str(out), "--seconds", str(seconds)]
    return [*command, "--rehearse"] if rehearse else command


def run_phase(command: list[str], environment: dict[str, str], seconds: float) -> str:
    try:
        code = subprocess.run(command, env=environment, cwd=ROOT, timeout=seconds + GRACE_S, check=False).returncode
    except subprocess.TimeoutExpired:
        return "ended: out of time"
    return "ok" if code == 0 else f"failed: exit code {code}"


if __name__ == "__main__":
    sys.exit(main())
