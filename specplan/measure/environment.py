"""Facts about the device and the software that a step time depends on."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from specplan.device.identity import cpu_name
from specplan.errors import ConfigError
from specplan.files import Environment

__all__ = ["describe_environment", "pick_device", "pick_dtype"]

TIMING_SCOPE = {
    "cpu": "verify: forward, lm_head, argmax, accepted counts; draft: k forwards with lm_head, softmax and argmax; "
    "wall clock; laying out the batch is left out",
    "cuda": "verify: forward, lm_head, argmax, accepted counts, copy to the host, wall clock; draft: k forwards with "
    "lm_head, softmax and argmax, CUDA events of a queued replay in graph mode, wall clock with the copy of the "
    "confidences in eager mode; laying out and uploading the batch is left out",
}


def pick_device(name: str) -> torch.device:
    """`auto` is the CUDA device if there is one; otherwise `cpu`, `cuda` or `cuda:N`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in TIMING_SCOPE or (device.type == "cpu" and device.index):
        raise ConfigError(f"unknown device {name!r}", "use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {name} asked for, {torch.cuda.device_count()} CUDA devices found",
            "use --device cpu, or install a CUDA build of torch",
        )
    return device


def pick_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on CUDA, where it is what serving runs; float32 on a CPU."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def describe_environment(device: torch.device, dtype: torch.dtype) -> Environment:
    """What the profile says of the device it was measured on."""
    on_cuda = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if on_cuda else None
    return Environment(
        device=properties.name if properties else cpu_name(),
        device_type="cuda" if on_cuda else "cpu",
        device_uuid=str(properties.uuid) if properties else None,
        sm_count=properties.multi_processor_count if properties else None,
        num_threads=None if on_cuda else torch.get_num_threads(),
        driver=nvidia_driver() if on_cuda else None,
        cuda=torch.version.cuda if on_cuda else None,
        torch=str(torch.__version__),
        python=platform.python_version(),
        platform=platform.platform(),
        dtype=str(dtype).removeprefix("torch."),
        graph_kind="cuda-graph" if on_cuda else "static",
        timing_scope=TIMING_SCOPE[device.type],
        tensor_parallel_size=1,
    )


def nvidia_driver() -> str | None:
    """The driver's version, as its kernel module reports it."""
    try:
        with Path("/proc/driver/nvidia/version").open(encoding="utf-8") as version:
            words = version.readline().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit()), None)
