"""What a machine's files tell of it: made for the purpose here, missing and mangled ones included."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specplan.measure.machine import HostFacts, read_host

FILES = {
    "proc/stat": "cpu  100 0 50 800 20 0 10 20 5 0\n",
    "proc/loadavg": "0.50 0.40 0.30 1/99 1234\n",
    "proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    600 kB\nSwapTotal: 500 kB\nSwapFree: 300 kB\n",
    "proc/cpuinfo": "processor : 0\nflags\t\t: fpu vme hypervisor\n",
    "proc/self/cgroup": "0::/slice/job\n",
    "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
    "sys/fs/cgroup/slice/job/cpu.max": "max 100000\n",
    "sys/fs/cgroup/slice/cpu.max": "150000 100000\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
    "sys/class/power_supply/BAT0/type": "Battery\n",
    "sys/class/power_supply/BAT0/status": "Discharging\n",
    "sys/class/power_supply/AC/type": "Mains\n",
    "sys/class/thermal/thermal_zone0/temp": "41000\n",
    "sys/class/thermal/thermal_zone1/temp": "67500\n",
    "proc/driver/nvidia/version": "NVRM version: 550\n",
}
KNOWN_ANYWAY = {"num_cores", "usable_cores", "has_nvidia_driver"}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., HostFacts]:
    def read(changes: dict[str, str | None] | None = None, *, then: dict[str, str] | None = None) -> HostFacts:
        """FILES with some changed or, where None, left out; `then` is written while the processor is watched."""
        write(tmp_path, {**FILES, **(changes or {})})
        return read_host(tmp_path, watch=lambda: write(tmp_path, then or {}))

    return read


def write(root: Path, files: dict[str, str | None]) -> None:
    for name, text in files.items():
        path = root / name
        if text is None:
            path.unlink(missing_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_all_that_files_tell(make: Callable[..., HostFacts]) -> None:
    """Of 1000 ticks 300 were busy: 100 of them stolen, and hardly any of this process."""
    host = make(then={"proc/stat": "cpu  200 0 100 1500 20 0 60 120 5 0\n"})
    assert host.others_share == pytest.approx(0.3, abs=0.02)
    assert host.stolen_share == pytest.approx(0.1)
    assert host.load == 0.5
    assert (host.memory_bytes, host.available_bytes, host.swapped_bytes) == (1024_000, 614_400, 204_800)
    assert (host.is_virtual, host.is_container, host.is_on_battery) == (True, False, True)
    assert host.quota_cores == 1.5  # the cgroup above bounds the one below
    assert host.governors == {"performance", "powersave"}
    assert host.hottest_c == 67.5
    assert host.has_nvidia_driver


def test_an_empty_machine_is_unknown_and_not_fine(tmp_path: Path) -> None:
    host = read_host(tmp_path, watch=lambda: None)
    assert {name for name, value in asdict(host).items() if value is not None} == KNOWN_ANYWAY
    assert not host.has_nvidia_driver
    assert host.num_cores >= host.usable_cores >= 1


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("others_share", {"proc/stat": None}),
        ("others_share", {"proc/stat": "cpu  1 2 3\n"}),
        ("others_share", {"proc/stat": "cpu  a b c d e f g h\n"}),
        ("others_share", {"proc/stat": f"cpu  {'9' * 400} 1 1 1 1 1 1 1\n"}),
        ("others_share", {}),  # a clock that stood still
        ("stolen_share", {}),
        ("load", {"proc/loadavg": "high\n"}),
        ("load", {"proc/loadavg": "nan 0 0\n"}),
        ("load", {"proc/loadavg": "-1 0 0\n"}),
        ("memory_bytes", {"proc/meminfo": "MemTotal: many kB\n"}),
        ("available_bytes", {"proc/meminfo": "MemTotal: 10 kB\n"}),
        ("swapped_bytes", {"proc/meminfo": "SwapTotal: 10 kB\nSwapFree: 3 pages\n"}),
        ("is_virtual", {"proc/cpuinfo": "Features : fp asimd\n"}),
        ("is_container", {"proc/self/cgroup": None}),
        ("governors", {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": None}
                      | {"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "\n"}),
        ("hottest_c", {"sys/class/thermal/thermal_zone0/temp": "warm", "sys/class/thermal/thermal_zone1/temp": "-5"}),
        ("quota_cores", {"proc/self/cgroup": None}),
        ("quota_cores", {"proc/self/cgroup": "nonsense\n"}),
        ("quota_cores", {"sys/fs/cgroup/cgroup.controllers": None}),
        ("quota_cores", {"sys/fs/cgroup/slice/cpu.max": "half 100000\n"}),
        ("quota_cores", {"sys/fs/cgroup/slice/cpu.max": "50000 0\n"}),
        ("quota_cores", {"sys/fs/cgroup/slice/cpu.max": ""}),
    ],
)  # fmt: skip
def test_what_is_missing_or_mangled_is_unknown(
    make: Callable[..., HostFacts], field: str, changes: dict[str, str | None]
) -> None:
    assert getattr(make(changes), field) is None


class TestQuota:
    def test_none_is_unbounded(self, make: Callable[..., HostFacts]) -> None:
        assert make({"sys/fs/cgroup/slice/cpu.max": "max 100000"}).quota_cores == math.inf
        nowhere = {"sys/fs/cgroup/slice/cpu.max": None, "sys/fs/cgroup/slice/job/cpu.max": None}
        assert make(nowhere).quota_cores == math.inf  # the root has no such file

    def test_a_containers_own_is_at_the_mount(self, make: Callable[..., HostFacts]) -> None:
        changes = {"proc/self/cgroup": "0::/docker/0123/../..\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}
        assert make(changes).quota_cores == 0.5

    @pytest.mark.parametrize(
        ("quota", "period", "cores"),
        [("-1", "100000", math.inf), ("250000", "100000", 2.5), ("250000", None, None), ("few", "100000", None)],
    )
    @pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
    def test_the_older_kind(
        self, make: Callable[..., HostFacts], mount: str, quota: str, period: str | None, cores: float | None
    ) -> None:
        host = make(
            {
                "sys/fs/cgroup/cgroup.controllers": None,
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n0::/\n",
                f"sys/fs/cgroup/{mount}/cpu.cfs_quota_us": "-1\n",
                f"sys/fs/cgroup/{mount}/cpu.cfs_period_us": "100000\n",
                f"sys/fs/cgroup/{mount}/job/cpu.cfs_quota_us": f"{quota}\n",
                f"sys/fs/cgroup/{mount}/job/cpu.cfs_period_us": period,
            }
        )
        assert host.quota_cores == cores


@pytest.mark.parametrize(
    ("changes", "is_container"),
    [
        ({}, False),
        ({".dockerenv": ""}, True),
        ({"run/.containerenv": ""}, True),
        ({"proc/self/cgroup": "0::/kubepods/pod1\n"}, True),
    ],
)
def test_containers(make: Callable[..., HostFacts], changes: dict[str, str | None], is_container: bool) -> None:
    assert make(changes).is_container is is_container


def test_plugged_in_and_without_a_battery(make: Callable[..., HostFacts]) -> None:
    assert make({"sys/class/power_supply/BAT0/status": "Charging"}).is_on_battery is False
    assert make({"sys/class/power_supply/BAT0/type": "Mains"}).is_on_battery is False


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(FILES)), data=st.binary(max_size=40), cut=st.integers(0, 80))
def test_no_file_yields_a_traceback(tmp_path: Path, name: str, data: bytes, cut: int) -> None:
    """Any file replaced, or with bytes in its middle."""
    write(tmp_path, FILES)
    whole = FILES[name].encode()
    (tmp_path / name).write_bytes(whole[:cut] + data + whole[cut:])
    host = read_host(tmp_path, watch=lambda: None)
    for value in asdict(host).values():
        assert value is None or isinstance(value, bool | frozenset) or value >= 0


def test_folders_in_the_place_of_files(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).mkdir(parents=True)
    host = read_host(tmp_path, watch=lambda: None)
    assert host.load is host.governors is host.hottest_c is host.quota_cores is None
