"""The simulator held against the engine, as `specplan validate` does, cut off in time: one file per concurrency.

`--pair tiny`: the embedded pair in float32, over texts of its kind; its outputs are held against the target alone too.
`--pair large`: the pair of large_pair.py, which accepts what a shipped trace says. What the trace imposes does not hang
on float32's last bits, so that there every decision must be the simulator's.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import torch
from large_pair import Clock, large_pair, rehearsal

from specplan.files import Trace, Validation
from specplan.measure import ValidationPlan, validate_pair
from specplan.models import LoadedModel, load_model
from specplan.planning import parse_policy

TRACE = Path(__file__).resolve().parents[2] / "profiles" / "traces" / "tiny-plays.parquet"

# Of the kinds that the embedded pair was trained on.
TEXTS = (
    'def read_lines(path):\n    """Return the lines of a file."""\n    with open(path) as file:\n',
    "class Queue:\n    def __init__(self, maxsize=0):\n        self.maxsize = maxsize\n",
    "import os\nimport sys\n\n\ndef main():\n",
    "    for name, value in sorted(options.items()):\n        if value is None:\n",
    "KING RICHARD:\nWhat says the lord",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\n",
    "Natalia sold clips to 48 of her friends, and then she sold half as many. How many clips",
    "A train travels 60 miles in the first hour and 40 miles in the second.",
)


class OutOfTimeError(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A pair, what it serves, and the concurrencies, the most telling first."""

    target: LoadedModel
    draft: LoadedModel
    concurrencies: tuple[int, ...]
    plan: ValidationPlan  # its concurrencies are replaced
    imposed: Trace | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=("tiny", "large"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    clock = Clock(options.seconds)
    setting = {"tiny": tiny_setting, "large": large_setting}[options.pair](rehearse=options.rehearse)
    print(f"models ready at {clock.elapsed_s:.0f} s", flush=True)

    num_done, faults = 0, []
    for concurrency in setting.concurrencies:
        what = f"{options.pair} pair at concurrency {concurrency}"
        try:
            validation = validate(setting, concurrency, clock)
        except OutOfTimeError as error:
            print(f"skipped, out of time: {what}, while {error}", flush=True)
            continue
        except Exception as error:  # noqa: BLE001 - one concurrency's failure is not the others'
            traceback.print_exc()
            faults.append(f"{what}: {type(error).__name__}: {error}")
            continue
        validation.write(options.out / f"validation-{options.pair}-{concurrency}.json")
        num_done += 1
        faults += report(validation)
        print(f"{what}: done at {clock.elapsed_s:.0f} s", flush=True)
    for fault in faults:
        print(f"FAILED {fault}", flush=True)
    return 1 if faults or not num_done else 0


def validate(setting: Setting, concurrency: int, clock: Clock) -> Validation:
    def check_time(fraction: float, doing: str) -> None:
        if clock.left_s <= 0:
            raise OutOfTimeError(f"{doing}, {fraction:.0%} done")

    return validate_pair(
        setting.target,
        setting.draft,
        TEXTS if setting.imposed is None else None,
        dataclasses.replace(setting.plan, concurrencies=(concurrency,)),
        source="texts of tests/gpu/validate.py" if setting.imposed is None else "random tokens",
        imposed=setting.imposed,
        on_progress=check_time,
    )


def report(validation: Validation) -> list[str]:
    """Prints each case, and says what is a fault: errors of a prediction are findings, and none."""
    faults = []
    for case in validation.cases:
        what = f"concurrency {case.concurrency}, {case.policy}"
        decided = case.decisions
        equal = "" if decided is None else f", {decided.num_equal} of {decided.num_steps} decisions equal"
        lossless = case.lossless
        outputs = (
            ""
            if lossless is None
            else f", {lossless.num_ties} tied and {lossless.num_wrong} wrong of {lossless.num_outputs} outputs"
        )
        print(
            f"  {what}: {case.measured_tokens_per_s:,.0f} tokens/s measured, {case.predicted_tokens_per_s:,.0f} "
            f"predicted ({case.error:+.1%}, rounds spread {case.spread:.1%}){equal}{outputs}",
            flush=True,
        )
        for part in case.parts:
            print(f"    {part.part}: {part.measured_ms:.3f} ms measured, {part.predicted_ms:.3f} ms predicted")
        if lossless is not None and lossless.num_wrong:
            faults.append(f"{what}: {lossless.num_wrong} outputs are not the target's own")
        if validation.imposed is not None and decided is not None and decided.num_equal < decided.num_steps:
            faults.append(f"{what}: outcomes were imposed, and decisions differ: {decided.first_divergence}")
    return faults


def make_plan(*, rehearse: bool, num_rounds: int, max_output_tokens: int) -> ValidationPlan:
    if rehearse:
        return ValidationPlan(
            policies=tuple(map(parse_policy, ("none", "adaptive"))),
            concurrencies=(1,),
            num_speculative_tokens=2,
            num_rounds=2,
            max_output_tokens=5,
            max_num_batched_tokens=32,
        )
    return ValidationPlan(
        policies=tuple(map(parse_policy, ("none", "fixed:3", "adaptive"))),
        concurrencies=(1,),
        num_speculative_tokens=7,
        num_rounds=num_rounds,
        max_output_tokens=max_output_tokens,
    )


def tiny_setting(*, rehearse: bool) -> Setting:
    device = torch.device("cpu" if rehearse else "cuda")
    target, draft = (load_model("tiny", role, device=device, dtype=torch.float32) for role in ("target", "draft"))
    return Setting(
        target=target,
        draft=draft,
        concurrencies=(2, 1) if rehearse else (16, 1, 4),
        plan=make_plan(rehearse=rehearse, num_rounds=5, max_output_tokens=48),
    )


def large_setting(*, rehearse: bool) -> Setting:
    pair = rehearsal() if rehearse else large_pair(torch.device("cuda"))
    plan = make_plan(rehearse=rehearse, num_rounds=2, max_output_tokens=96)
    return Setting(
        target=pair.target,
        draft=pair.draft,
        concurrencies=(2,) if rehearse else (16,),
        plan=plan,
        imposed=beginning(Trace.read(TRACE), num_requests=16, max_output_len=plan.max_output_tokens),
    )


def beginning(trace: Trace, *, num_requests: int, max_output_len: int) -> Trace:
    """The first requests of a trace, and of each its first output tokens."""
    kept = (trace.request < num_requests) & (trace.position < max_output_len)
    assert trace.confidence is not None
    source = f"{trace.metadata.source}, the first {num_requests} requests, up to {max_output_len} tokens of each"
    return dataclasses.replace(
        trace,
        metadata=msgspec.structs.replace(trace.metadata, source=source),
        confidence=trace.confidence[kept],
        arrival_s=trace.arrival_s[:num_requests],
        prompt_len=trace.prompt_len[:num_requests],
        output_len=np.minimum(trace.output_len[:num_requests], max_output_len).astype(np.int32),
        **{name: getattr(trace, name)[kept] for name in ("request", "position", "accepted_len", "verified_len")},
    )


if __name__ == "__main__":
    sys.exit(main())
