"""What a device is, as far as costs hold for it; no model needs to be loaded."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from specplan.costs.binding import Identity, processors

__all__ = ["cpu_name", "identify_device"]


def identify_device(device: torch.device) -> Identity:
    """The place alone (`costs.binding.PLACE`): dtype and models are whoever's who runs something there."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Identity(
            device=properties.name,
            device_uuid=str(properties.uuid),
            processors=processors(sm_count=properties.multi_processor_count),
        )
    if device.type == "cpu":
        return Identity(device=cpu_name(), processors=processors(num_threads=torch.get_num_threads()))
    return Identity()


def cpu_name() -> str:
    """The processor's name where the system tells one."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as cpuinfo:
            names = [line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
