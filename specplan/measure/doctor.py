"""What about this machine will spoil a measurement, said before one is taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch
from msgspec import Struct

from specplan.device.identity import identify_device
from specplan.files import Finding
from specplan.measure.clock import time_step
from specplan.measure.gpu_settings import GpuFacts, read_gpu
from specplan.measure.gpu_symptoms import GPU_JUDGES, NO_NVML
from specplan.measure.machine import read_host
from specplan.measure.symptoms import HOST_JUDGES, Machine, Symptom

__all__ = ["Diagnosis", "diagnose", "examine"]

_REPETITIONS: Final = 40
_WARMUPS: Final = 5
# Of a square product, so that it takes some milliseconds: long against what a clock or a launch adds.
_WIDTH: Final = {"cpu": 512, "cuda": 4096}


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What was found, what nobody knows, and of what is as it should be the codes."""

    schema: str = "specplan.diagnosis/1"
    device: str | None
    findings: list[Finding]
    unknown: list[Finding]
    fine: list[str]

    @property
    def has_warnings(self) -> bool:
        return any(finding.severity == "warning" for finding in self.findings)


def examine(device: torch.device, *, root: Path = Path("/")) -> Diagnosis:
    """Watches the processor for a second or two, reads what the machine tells of itself, and times a piece of work.

    `root` is where /proc and /sys are.
    """
    host = read_host(root)
    work_ms, gpu = _work(device)
    return diagnose(
        Machine(
            device=identify_device(device).device,
            host=host,
            gpu=gpu,
            num_threads=torch.get_num_threads(),
            torch_cuda=torch.version.cuda,
            has_cuda=torch.cuda.is_available(),
            work_ms=work_ms,
        )
    )


def diagnose(machine: Machine) -> Diagnosis:
    findings, unknown, fine = [], [], []
    for code, place, symptom in _ask(machine):
        if symptom is None:
            fine.append(code)
        elif symptom.kind == "unknown":
            unknown.append(
                Finding(
                    code=f"{code}-unknown", severity="note", place=place, message=symptom.message, hint=symptom.hint
                )
            )
        else:
            findings.append(
                Finding(code=code, severity=symptom.kind, place=place, message=symptom.message, hint=symptom.hint)
            )
    return Diagnosis(device=machine.device, findings=findings, unknown=unknown, fine=fine)


def _ask(machine: Machine) -> Iterator[tuple[str, str, Symptom | None]]:
    """Code, place and answer of every question that the device has."""
    for code, (place, judge) in HOST_JUDGES.items():
        yield code, place, judge(machine)
    if machine.gpu is None:
        return
    if machine.gpu.reading is None:
        yield "nvml", "gpu", NO_NVML
        return
    for code, judge_gpu in GPU_JUDGES.items():
        yield code, "gpu", judge_gpu(machine.gpu, machine.gpu.reading)


def _work(device: torch.device) -> tuple[list[float], GpuFacts | None]:
    """Milliseconds of the same product again and again, and of a GPU how it is while it computes one."""
    width = _WIDTH[device.type]
    times: list[float] = []
    with suppress(torch.OutOfMemoryError):  # others may have all of it, which is then found elsewhere
        matrix = torch.rand(width, width, device=device)
        times = [time_step(lambda: (matrix @ matrix)[0, :1], device).wall_ms for _ in range(_WARMUPS + _REPETITIONS)]
        if device.type == "cuda":
            for _ in range(_REPETITIONS):
                matrix @ matrix
    return times[_WARMUPS:], None if device.type == "cpu" else read_gpu(device)
