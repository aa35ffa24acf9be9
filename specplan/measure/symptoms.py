"""What the facts of a machine say of measurements on it, one question at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from specplan.measure.gpu_settings import GpuFacts
from specplan.measure.machine import HostFacts

__all__ = ["HOST_JUDGES", "Machine", "Symptom", "unknown"]

_SHARED: Final = 0.05  # of the processor's time, to other processes
_STOLEN: Final = 0.01  # of it, to the host of a virtual machine
_LOADED: Final = 0.25  # processes a core, over the last minute
_FREE: Final = 0.10  # of memory
_HOT_C: Final = 85.0
_SPREAD: Final = 0.10  # interquartile range over median

_STOP_OTHERS = "stop what else runs here, or measure on a machine of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All that is judged. `gpu` is None where a CPU is the device; `work_ms` is one piece of work again and again."""

    device: str | None
    host: HostFacts
    gpu: GpuFacts | None
    num_threads: int
    torch_cuda: str | None  # the version that torch was built for
    has_cuda: bool  # whether torch finds a device
    work_ms: list[float]  # empty where the device had no memory for it


class Symptom(NamedTuple):
    kind: Literal["warning", "note", "unknown"]
    message: str
    hint: str


def unknown(what: str, hint: str) -> Symptom:
    return Symptom("unknown", f"nobody knows {what}", hint)


def _cpu_shared(machine: Machine) -> Symptom | None:
    host = machine.host
    if host.others_share is None or host.stolen_share is None:
        return unknown("how much of the processor others use", "look at top, and measure while nothing else runs")
    share = host.others_share - host.stolen_share
    if share > _SHARED:
        return Symptom("warning", f"other processes used {share:.0%} of the processor just now", _STOP_OTHERS)
    return None


def _cpu_stolen(machine: Machine) -> Symptom | None:
    share = machine.host.stolen_share
    if share is None:
        return unknown("whether a host takes time from this machine", "measure twice, and see: specplan compare")
    if share > _STOLEN:
        return Symptom(
            "warning",
            f"the host of this virtual machine took {share:.0%} of the processor just now",
            "measure on dedicated cores, or when the host is quiet",
        )
    return None


def _cpu_load(machine: Machine) -> Symptom | None:
    load, cores = machine.host.load, machine.host.num_cores
    if load is None:
        return unknown("the load of the last minute", "look at uptime, and measure while nothing else runs")
    if load > _LOADED * cores:
        return Symptom(
            "note",
            f"a load of {load:.2g} over the last minute on {cores} cores: something ran here, or still does by turns",
            _STOP_OTHERS,
        )
    return None


def _threads(machine: Machine) -> Symptom | None:
    threads, cores = machine.num_threads, machine.host.usable_cores
    if threads > cores:
        return Symptom(
            "warning",
            f"torch has {threads} threads on {cores} cores: they wait for each other at every matrix product",
            f"set OMP_NUM_THREADS={cores}",
        )
    return None


def _cpu_quota(machine: Machine) -> Symptom | None:
    quota, threads = machine.host.quota_cores, machine.num_threads
    if quota is None:
        return unknown("whether a cgroup bounds the processor's time", "look at cpu.max of this process's cgroup")
    if quota < threads:
        return Symptom(
            "warning",
            f"a cgroup allows {quota:.3g} cores to {threads} threads: the kernel stops them in the middle of a step",
            f"set OMP_NUM_THREADS={max(int(quota), 1)}, or lift the quota",
        )
    return None


def _cpu_governor(machine: Machine) -> Symptom | None:
    governors = machine.host.governors
    if governors is None:
        return unknown(
            "how the cores' frequencies are chosen", "look at cpupower frequency-info, of a virtual machine on its host"
        )
    others = sorted(governors - {"performance"})
    if others:
        return Symptom(
            "warning",
            f"cores change their frequency with the load (governor {', '.join(others)})",
            "cpupower frequency-set -g performance",
        )
    return None


def _memory_low(machine: Machine) -> Symptom | None:
    free, total = machine.host.available_bytes, machine.host.memory_bytes
    if free is None or not total:
        return unknown("how much memory is free", "look at free -h")
    if free < _FREE * total:
        return Symptom(
            "warning",
            f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB of memory are free: caches will not fit, or be swapped",
            "stop what holds memory, or measure smaller models",
        )
    return None


def _swapped(machine: Machine) -> Symptom | None:
    swapped = machine.host.swapped_bytes
    if swapped is None:
        return unknown("whether memory is swapped out", "look at free -h")
    if swapped > 0:
        return Symptom(
            "note",
            f"{swapped / 2**30:.2g} GiB are swapped out: a step that touches them waits for a disk",
            "free memory, then swapoff -a and swapon -a",
        )
    return None


def _virtual_machine(machine: Machine) -> Symptom | None:
    if machine.host.is_virtual is None:
        return unknown("whether this is a virtual machine", "look at systemd-detect-virt")
    if machine.host.is_virtual:
        return Symptom(
            "note",
            "this is a virtual machine: what its host does besides is in every time, and seen here as stolen at best",
            "measure twice, and see what the machine does of itself: specplan compare",
        )
    return None


def _container(machine: Machine) -> Symptom | None:
    if machine.host.is_container is None:
        return unknown("whether this is a container", "look at systemd-detect-virt -c")
    if machine.host.is_container:
        return Symptom(
            "note", "this is a container: its neighbours' processes are not seen, only the time they take", _STOP_OTHERS
        )
    return None


def _on_battery(machine: Machine) -> Symptom | None:
    if machine.host.is_on_battery is None:
        return unknown("whether this machine runs on a battery", "plug it in where it has one")
    if machine.host.is_on_battery:
        return Symptom("warning", "this machine runs on its battery, and saves power", "plug it in")
    return None


def _hot(machine: Machine) -> Symptom | None:
    hottest = machine.host.hottest_c
    if hottest is None:
        return unknown("how hot the processor is", "look at sensors, of a virtual machine on its host")
    if hottest >= _HOT_C:
        return Symptom(
            "warning",
            f"{hottest:.0f} °C at the hottest place: clocks fall where it gets hotter",
            "let it cool down, and see to its fans",
        )
    return None


def _timer_noise(machine: Machine) -> Symptom | None:
    if not machine.work_ms:
        return unknown("how far a step's time spreads: the device has no memory left", "stop what holds its memory")
    low, middle, high = np.percentile(machine.work_ms, [25, 50, 75])
    spread = float((high - low) / middle)
    if spread > _SPREAD:
        return Symptom(
            "warning",
            f"one piece of work, tried {len(machine.work_ms)} times, took {min(machine.work_ms):.3g} to "
            f"{max(machine.work_ms):.3g} ms, a spread of {spread:.0%} (interquartile)",
            "see to what else is found here; steps will spread as much",
        )
    return None


def _torch_without_cuda(machine: Machine) -> Symptom | None:
    if machine.gpu is not None or machine.has_cuda or not machine.host.has_nvidia_driver:
        return None
    if machine.torch_cuda is None:
        return Symptom(
            "warning",
            "there is an NVIDIA driver, and torch is built without CUDA: the processor would be measured",
            "install a CUDA build of torch",
        )
    return Symptom(
        "warning",
        f"there is an NVIDIA driver, and torch (for CUDA {machine.torch_cuda}) finds no device: the processor would be "
        "measured",
        "see whether nvidia-smi lists a device, CUDA_VISIBLE_DEVICES hides it, or the driver is too old for this torch",
    )


# By code: the place that is looked at, and who judges it. None says that it is as it should be.
HOST_JUDGES: Final[Mapping[str, tuple[str, Callable[[Machine], Symptom | None]]]] = {
    "cpu-shared": ("processor", _cpu_shared),
    "cpu-stolen": ("processor", _cpu_stolen),
    "cpu-load": ("processor", _cpu_load),
    "threads-over-cores": ("processor", _threads),
    "cpu-quota": ("cgroup", _cpu_quota),
    "cpu-governor": ("processor", _cpu_governor),
    "memory-low": ("memory", _memory_low),
    "swapped": ("memory", _swapped),
    "virtual-machine": ("machine", _virtual_machine),
    "container": ("machine", _container),
    "on-battery": ("power", _on_battery),
    "hot": ("processor", _hot),
    "timer-noise": ("clock", _timer_noise),
    "torch-without-cuda": ("torch", _torch_without_cuda),
}
