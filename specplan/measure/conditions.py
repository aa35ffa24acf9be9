"""What else a device is doing while it is measured: clocks, power, heat, throttling, and who shares it.

What cannot be found out is None, and reads as unknown, never as fine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from specplan.files import Reading

__all__ = ["ConditionReader"]

T = TypeVar("T")

# NVML's bits for clocks that are lower than they could be. Idling and a limit that the user set are none of these.
THROTTLE_REASONS: Final = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}


class ConditionReader:
    """Reads the state of the device of a sweep, as often as it is asked."""

    def __init__(self, device: torch.device) -> None:
        self.start_s = time.monotonic()
        self.gpu = None if device.type == "cpu" else open_gpu(device)
        self.last_cpu = cpu_times() if device.type == "cpu" else None

    def read(self) -> Reading:
        at_s = time.monotonic() - self.start_s
        if self.gpu is not None:
            return self.gpu.read(at_s)
        return Reading(at_s=at_s, others_share=self.others_share())

    def others_share(self) -> float | None:
        """The share of all cores' time that went to others since the last reading: other processes, and what the host
        of a virtual machine took for itself."""
        before, now = self.last_cpu, cpu_times()
        self.last_cpu = now
        if before is None or now is None:
            return None
        total_s, busy_s, own_s = (after - earlier for after, earlier in zip(now, before, strict=True))
        if total_s <= 0:
            return None
        return min(max(busy_s - own_s, 0.0) / total_s, 1.0)


def cpu_times(stat: Path = Path("/proc/stat")) -> tuple[float, float, float] | None:
    """Seconds of all cores, of these busy or taken by the host, and of these this process's own; None where unknown."""
    try:
        fields = stat.read_text(encoding="ascii").split("\n", 1)[0].split()
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    if fields[:1] != ["cpu"] or len(fields) < 9:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's already.
    seconds = [int(field) / ticks for field in fields[1:9]]
    own = os.times()
    return sum(seconds), sum(seconds) - seconds[3] - seconds[4], own.user + own.system


class Gpu:
    """One device as NVML sees it. Each question is asked apart: a device may answer some and not others."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml, self.handle = nvml, handle

    def read(self, at_s: float) -> Reading:
        nvml, handle = self.nvml, self.handle
        reasons = self.ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        milliwatts = self.ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        processes = self.ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return Reading(
            at_s=at_s,
            sm_clock_mhz=self.ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            max_sm_clock_mhz=self.ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            temperature_c=self.ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            throttle=None if reasons is None else [text for bit, text in THROTTLE_REASONS.items() if reasons & bit],
            # This process is one of them, under whatever number: in a container NVML tells the host's.
            other_processes=None if processes is None else max(len(processes) - 1, 0),
        )

    def ask(self, question: Callable[[], T]) -> T | None:
        with suppress(self.nvml.NVMLError):
            return question()
        return None


def open_gpu(device: torch.device) -> Gpu | None:
    """NVML's handle for a CUDA device, found by its UUID: the two count devices in different orders."""
    try:
        import pynvml
    except ImportError:
        return None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return Gpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"))
    return None
