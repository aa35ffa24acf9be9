"""How a GPU is set and what holds it back, asked of NVML while it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from specplan.files import Reading
from specplan.measure.conditions import Gpu, open_gpu

__all__ = ["GpuFacts", "read_gpu"]

_CLOCKS_ARE_SET: Final = 0x2  # NVML's reason for clocks that are lower because a user set them


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """None is what NVML does not tell; all of it where there is no `reading`."""

    reading: Reading | None = None
    are_clocks_set: bool | None = None
    is_persistent: bool | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    is_mig: bool | None = None
    has_ecc: bool | None = None
    has_ecc_after_reboot: bool | None = None


def read_gpu(device: torch.device) -> GpuFacts:
    """To be called while the device is busy: idle, it says of its clocks only that it is."""
    gpu = open_gpu(device)
    return GpuFacts() if gpu is None else ask_gpu(gpu)


def ask_gpu(gpu: Gpu) -> GpuFacts:
    nvml, handle = gpu.nvml, gpu.handle
    reasons = gpu.ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    persistence = gpu.ask(lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    limit_mw = gpu.ask(lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle))
    default_mw = gpu.ask(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    mig = gpu.ask(lambda: nvml.nvmlDeviceGetMigMode(handle))  # current, pending
    ecc = gpu.ask(lambda: nvml.nvmlDeviceGetEccMode(handle))
    return GpuFacts(
        reading=gpu.read(0.0),
        are_clocks_set=None if reasons is None else bool(reasons & _CLOCKS_ARE_SET),
        is_persistent=None if persistence is None else bool(persistence),
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        default_power_limit_w=None if default_mw is None else default_mw / 1e3,
        is_mig=None if mig is None else bool(mig[0]),
        has_ecc=None if ecc is None else bool(ecc[0]),
        has_ecc_after_reboot=None if ecc is None else bool(ecc[1]),
    )
