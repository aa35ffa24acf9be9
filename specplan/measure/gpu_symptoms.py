"""What a GPU's settings say of measurements on it, one question at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from specplan.files import Reading
from specplan.measure.gpu_settings import GpuFacts
from specplan.measure.symptoms import Symptom, unknown

__all__ = ["GPU_JUDGES", "NO_NVML"]

NO_NVML: Final = unknown(
    "how the GPU is set, what holds its clocks back and who else is on it",
    "pip install nvidia-ml-py, where NVML answers",
)
_ASK = "look at nvidia-smi -q"


def _throttled(gpu: GpuFacts, reading: Reading) -> Symptom | None:
    if reading.throttle is None:
        return unknown("whether the GPU's clocks are held back", _ASK)
    if reading.throttle:
        return Symptom(
            "warning",
            f"the GPU's clocks are held back: {', '.join(reading.throttle)}",
            "lock them below what power and heat allow (nvidia-smi -lgc), or let it cool down",
        )
    return None


def _shared(gpu: GpuFacts, reading: Reading) -> Symptom | None:
    if reading.other_processes is None:
        return unknown("whether others are on the GPU", _ASK)
    if reading.other_processes:
        what = (
            "another process is" if reading.other_processes == 1 else f"{reading.other_processes} other processes are"
        )
        return Symptom("warning", f"{what} on the GPU", "measure on a GPU of its own")
    return None


def _clocks(gpu: GpuFacts, reading: Reading) -> Symptom | None:
    """Serving runs unlocked as a rule, so this is no fault: it is why a step takes longer once the card is warm."""
    if gpu.are_clocks_set is None:
        return unknown("whether the GPU's clocks are locked", _ASK)
    if not gpu.are_clocks_set:
        speed = "" if reading.sm_clock_mhz is None else f" ({reading.sm_clock_mhz} MHz under load just now)"
        return Symptom(
            "note",
            f"the GPU's clocks are not locked{speed}: they follow its power and heat",
            "nvidia-smi -lgc locks them; measure as you serve",
        )
    return None


def _persistence(gpu: GpuFacts, reading: Reading) -> Symptom | None:
    if gpu.is_persistent is None:
        return unknown("whether the driver stays loaded", _ASK)
    if not gpu.is_persistent:
        return Symptom(
            "note", "persistence mode is off: the driver is set up anew for each process", "nvidia-smi -pm 1"
        )
    return None


def _power_cap(gpu: GpuFacts, reading: Reading) -> Symptom | None:
    """A cap that serving has too belongs in the measurement."""
    if gpu.power_limit_w is None or gpu.default_power_limit_w is None:
        return unknown("whether the GPU's power is capped", _ASK)
    if gpu.power_limit_w < gpu.default_power_limit_w:
        return Symptom(
            "note",
            f"power is capped at {gpu.power_limit_w:.0f} W, below the {gpu.default_power_limit_w:.0f} W it comes with",
            "right where it is served so; otherwise nvidia-smi -pl",
        )
    return None


def _mig(gpu: GpuFacts, reading: Reading) -> Symptom | None:
    if gpu.is_mig is None:
        return unknown("whether the GPU is cut into slices (MIG)", _ASK)
    if gpu.is_mig:
        return Symptom(
            "note",
            "the GPU is cut into slices (MIG), which share its power and clocks",
            "keep the other slices idle; costs hold for a slice of this size",
        )
    return None


def _ecc(gpu: GpuFacts, reading: Reading) -> Symptom | None:
    if gpu.has_ecc is None or gpu.has_ecc_after_reboot is None:
        return unknown("whether the GPU's memory corrects errors (ECC)", _ASK)
    if gpu.has_ecc != gpu.has_ecc_after_reboot:
        now, then = ("on", "off") if gpu.has_ecc else ("off", "on")
        return Symptom(
            "warning",
            f"memory that corrects errors (ECC) is {now}, and will be {then} after a reboot",
            "reboot first: it takes a share of the memory's bandwidth on some cards",
        )
    return None


GPU_JUDGES: Final[Mapping[str, Callable[[GpuFacts, Reading], Symptom | None]]] = {
    "gpu-throttled": _throttled,
    "gpu-shared": _shared,
    "gpu-clocks": _clocks,
    "gpu-persistence": _persistence,
    "gpu-power-cap": _power_cap,
    "gpu-mig": _mig,
    "gpu-ecc": _ecc,
}
