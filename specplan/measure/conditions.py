"""What else a device is doing while it is measured: clocks, power, heat, throttling, and who shares it.

What cannot be found out is None, and reads as unknown, never as fine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
        before, self.last_cpu = self.last_cpu, cpu_times()
        return share_of_others(before, self.last_cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Seconds since the machine started, of all cores together."""

    total_s: float
    busy_s: float  # or taken by the host
    stolen_s: float  # by the host of a virtual machine, to run others
    own_s: float  # this process's


def cpu_times(stat: Path = Path("/proc/stat")) -> CpuTimes | None:
    """None where unknown."""
    try:
        fields = stat.read_text(encoding="ascii").split("\n", 1)[0].split()
        # user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's already.
        seconds = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[1:9]]
    except (OSError, ValueError, OverflowError):
        return None
    if fields[:1] != ["cpu"] or len(seconds) < 8:
        return None
    own = os.times()
    return CpuTimes(
        total_s=sum(seconds),
        busy_s=sum(seconds) - seconds[3] - seconds[4],
        stolen_s=seconds[7],
        own_s=own.user + own.system,
    )


def share_of_others(before: CpuTimes | None, now: CpuTimes | None) -> float | None:
    """Of all cores' time between the two, what other processes and the host took."""
    if before is None or now is None or now.total_s <= before.total_s:
        return None
    others_s = (now.busy_s - before.busy_s) - (now.own_s - before.own_s)
    return min(max(others_s, 0.0) / (now.total_s - before.total_s), 1.0)


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
