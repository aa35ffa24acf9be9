"""Whether the device was quiet while it was measured: held back, shared, or waiting for its host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specplan.files.profile import Profile, Reading
from specplan.files.tables import Finding

__all__ = ["judge_conditions"]

_SHARED = 0.05  # of a CPU's time, to others
_HOST_BOUND = 0.20  # of a step, waiting for the host


def judge_conditions(profile: Profile) -> list[Finding]:
    return [
        *_unknown(profile),
        *_throttled(profile.readings),
        *_shared(profile.readings),
        *_drift(profile),
        *_host_bound(profile),
    ]


def _unknown(profile: Profile) -> Iterator[Finding]:
    known = [
        reading for reading in profile.readings if reading.throttle is not None or reading.others_share is not None
    ]
    if profile.is_measured and not known:
        yield Finding(
            code="conditions-unknown",
            severity="note",
            place="readings",
            message="nobody knows whether clocks were held back, or who else used the device, while it was measured",
            hint="install nvidia-ml-py where NVML answers, and measure again",
        )


def _throttled(readings: list[Reading]) -> Iterator[Finding]:
    known = [reading for reading in readings if reading.throttle is not None]
    held = [reading for reading in known if reading.throttle]
    if held:
        reasons = sorted({reason for reading in held for reason in reading.throttle or ()})
        yield Finding(
            code="throttled",
            severity="warning",
            place=f"$.readings[{readings.index(held[0])}]",
            message=f"clocks were held back at {len(held)} of {len(known)} readings: {', '.join(reasons)}",
            hint="lock the clocks below what power and heat allow (nvidia-smi -lgc), and measure again",
        )


def _shared(readings: list[Reading]) -> Iterator[Finding]:
    shares = [reading.others_share for reading in readings if reading.others_share is not None]
    if shares and float(np.mean(shares)) > _SHARED:
        yield Finding(
            code="shared-device",
            severity="warning",
            place="readings",
            message=f"others used {np.mean(shares):.0%} of the processor while it was measured, at most "
            f"{max(shares):.0%}",
            hint="stop what else runs here, or measure on a machine of its own",
        )
    processes = [reading.other_processes for reading in readings if reading.other_processes]
    if processes:
        yield Finding(
            code="shared-device",
            severity="warning",
            place="readings",
            message=f"{max(processes)} other processes were on the GPU at {len(processes)} of {len(readings)} readings",
            hint="measure on a GPU of its own: what runs beside a step is in its time",
        )


def _drift(profile: Profile) -> Iterator[Finding]:
    drifting = sum(sample.num_drifting for sample in profile.samples)
    if drifting:
        total = sum(len(sample.repetitions_ms) for sample in profile.samples)
        changes = [max(sentinel.median_ms) / min(sentinel.median_ms) - 1 for sentinel in profile.sentinels]
        moved = f"; a step timed again and again took up to {max(changes):.0%} longer" if changes else ""
        yield Finding(
            code="drift",
            severity="warning",
            place="sentinels",
            message=f"the machine drifted under {drifting} of {total} repetitions{moved}",
            hint="wait until clocks and heat have settled, stop what else runs, and measure again",
        )


def _host_bound(profile: Profile) -> Iterator[Finding]:
    """Of captured steps: what is launched kernel by kernel waits for the host, and is priced where it runs so."""
    captured = [sample for sample in profile.samples if sample.mode == "graph" and sample.model == "verify"]
    known = [(sample, sample.host_bound_fraction) for sample in captured]
    bound = [(fraction, sample) for sample, fraction in known if fraction is not None and fraction > _HOST_BOUND]
    if bound:
        fraction, sample = max(bound, key=lambda item: item[0])
        yield Finding(
            code="host-bound",
            severity="note",
            place=f"verify graph, {sample.num_reqs} requests, {sample.num_tokens} tokens",
            message=f"{len(bound)} of {len(captured)} captured steps wait for the host for over {_HOST_BOUND:.0%} of "
            f"their time, this one for {fraction:.0%}",
            hint="their times say as much of the processor as of the GPU; larger models hide it",
        )
