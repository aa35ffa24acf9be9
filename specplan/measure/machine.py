"""What a machine is like before anything is timed, as its files tell: None is what they do not, never "fine"."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specplan.measure.conditions import cpu_times, share_of_others

__all__ = ["HostFacts", "read_host"]

_OBSERVE_S: Final = 1.5
_CONTAINER_MARKS: Final = ("docker", "kubepods", "containerd", "lxc", "podman")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Shares are of all cores' time while the processor was watched, in which this process slept."""

    others_share: float | None = None  # other processes', and what the host of a virtual machine took
    stolen_share: float | None = None  # the latter alone
    load: float | None = None  # the mean number of processes that ran or waited to, over the last minute
    num_cores: int
    usable_cores: int  # that this process may run on
    quota_cores: float | None = None  # that its cgroups let it run on; infinite without a quota
    governors: frozenset[str] | None = None  # that choose the cores' frequencies
    memory_bytes: float | None = None
    available_bytes: float | None = None
    swapped_bytes: float | None = None
    is_virtual: bool | None = None
    is_container: bool | None = None
    is_on_battery: bool | None = None
    hottest_c: float | None = None
    has_nvidia_driver: bool = False


def read_host(root: Path = Path("/"), *, watch: Callable[[], None] = lambda: time.sleep(_OBSERVE_S)) -> HostFacts:
    """`root` is where /proc and /sys are. `watch` fills the time between two readings of the processor with nothing."""
    before = cpu_times(root / "proc/stat")
    watch()
    now = cpu_times(root / "proc/stat")
    others_share = share_of_others(before, now)
    stolen_share = None
    if before is not None and now is not None and others_share is not None:
        stolen_share = min(max(now.stolen_s - before.stolen_s, 0.0) / (now.total_s - before.total_s), others_share)
    memory = _meminfo(root / "proc/meminfo")
    free_swap, all_swap = memory.get("SwapFree"), memory.get("SwapTotal")
    return HostFacts(
        others_share=others_share,
        stolen_share=stolen_share,
        load=_number((_text(root / "proc/loadavg") or "").partition(" ")[0]),
        num_cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)),
        quota_cores=_quota(root),
        governors=_governors(root / "sys/devices/system/cpu"),
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        swapped_bytes=None if free_swap is None or all_swap is None else max(all_swap - free_swap, 0.0),
        is_virtual=_is_virtual(root / "proc/cpuinfo"),
        is_container=_is_container(root),
        is_on_battery=_is_on_battery(root / "sys/class/power_supply"),
        hottest_c=_hottest(root / "sys/class/thermal"),
        has_nvidia_driver=_is_there(root / "proc/driver/nvidia/version"),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder on the way to it that may not be entered
        return False


def _number(text: str | None) -> float | None:
    """Of 0 or more and finite; what is no such number is not known."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < math.inf else None


def _meminfo(path: Path) -> dict[str, float]:
    """Bytes, by the name of the line."""
    found = {}
    for line in (_text(path) or "").splitlines():
        name, _, amount = line.partition(":")
        value, _, unit = amount.strip().partition(" ")
        number = _number(value)
        if number is not None and unit == "kB":
            found[name] = number * 1024
    return found


def _quota(root: Path) -> float | None:
    """The tightest of the cgroups that this process is in, in cores; infinite where they have none."""
    paths = _cgroup_paths(_text(root / "proc/self/cgroup") or "")
    mount = root / "sys/fs/cgroup"
    is_unified = _is_there(mount / "cgroup.controllers")
    path = paths.get("" if is_unified else "cpu")
    if path is None:
        return None
    if is_unified:
        files = [folder / "cpu.max" for folder in _ancestors(mount, path)]
        asked = [(_text(file) or "").split() for file in files if _is_there(file)]
    else:
        cpu = next((mount / name for name in ("cpu", "cpu,cpuacct") if _is_there(mount / name)), None)
        if cpu is None:
            return None
        folders = [folder for folder in _ancestors(cpu, path) if _is_there(folder / "cpu.cfs_quota_us")]
        asked = [[_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")] for folder in folders]
    quotas = [_cores(*fields) if len(fields) == 2 else None for fields in asked]
    known = [quota for quota in quotas if quota is not None]
    return min(known, default=math.inf) if len(known) == len(quotas) else None


def _cores(quota_us: str, period_us: str) -> float | None:
    """`max` and -1 are no quota."""
    if quota_us in ("max", "-1"):
        return math.inf
    quota, period = _number(quota_us), _number(period_us)
    return quota / period if quota is not None and period else None


def _cgroup_paths(text: str) -> dict[str, str]:
    """By controller, as lines of /proc/self/cgroup have them: `4:cpu,cpuacct:/a/b`; the unified one has no name."""
    paths = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            paths.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return paths


def _ancestors(mount: Path, path: str) -> Iterator[Path]:
    """The folders from the cgroup up to the mount. Of a container the path may be the host's, and not be there."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _governors(cpus: Path) -> frozenset[str] | None:
    found = [_text(path) for path in cpus.glob("cpu[0-9]*/cpufreq/scaling_governor")]
    return frozenset(name for name in found if name) or None


def _is_virtual(cpuinfo: Path) -> bool | None:
    """By the flag that x86 processors have under a hypervisor; others do not say."""
    for line in (_text(cpuinfo) or "").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() == "flags":
            return "hypervisor" in flags.split()
    return None


def _is_container(root: Path) -> bool | None:
    if any(_is_there(root / mark) for mark in (".dockerenv", "run/.containerenv")):
        return True
    groups = _text(root / "proc/self/cgroup")
    return None if groups is None else any(mark in groups for mark in _CONTAINER_MARKS)


def _is_on_battery(supplies: Path) -> bool | None:
    if not _is_there(supplies):
        return None
    batteries = [folder for folder in _folders(supplies) if _text(folder / "type") == "Battery"]
    return any(_text(folder / "status") == "Discharging" for folder in batteries)


def _hottest(zones: Path) -> float | None:
    """In degrees; files hold thousandths. A zone that is off reads 0 or less."""
    found = [_number(_text(folder / "temp")) for folder in _folders(zones)]
    return max((number / 1000 for number in found if number), default=None)


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []
