"""What a device is doing while it is measured. NVML is a stand-in here, for there is no GPU to ask."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specplan.measure import conditions
from specplan.measure.conditions import ConditionReader, CpuTimes, cpu_times

CPU = torch.device("cpu")


class NVMLError(Exception):
    pass


def fake_nvml(**changes: Any) -> Any:
    def not_supported(*arguments: object) -> None:
        raise NVMLError

    answers = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x1 | 0x4 | 0x40,
        "nvmlDeviceGetPowerUsage": lambda handle: 412_500,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: ["this", "another"],
        "nvmlDeviceGetClockInfo": lambda handle, clock: 1830,
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: 1980,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
    }
    return SimpleNamespace(**answers | {name: value or not_supported for name, value in changes.items()})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    properties = SimpleNamespace(uuid="0b1c")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return torch.device("cuda", 3)


def test_a_gpu_is_found_by_its_uuid_and_read(monkeypatch: pytest.MonkeyPatch, gpu: torch.device) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    reader = ConditionReader(gpu)
    assert reader.gpu is not None
    assert reader.gpu.handle == "GPU-0b1c"
    reading = reader.read()
    assert (reading.sm_clock_mhz, reading.max_sm_clock_mhz) == (1830, 1980)
    assert (reading.power_w, reading.temperature_c, reading.other_processes) == (412.5, 61, 1)
    assert reading.throttle == ["power cap", "thermal slowdown (hardware)"]  # idling is no throttling


def test_what_nvml_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch, gpu: torch.device) -> None:
    some = fake_nvml(nvmlDeviceGetCurrentClocksThrottleReasons=None, nvmlDeviceGetPowerUsage=None)
    monkeypatch.setitem(sys.modules, "pynvml", some)
    reading = ConditionReader(gpu).read()
    assert reading.throttle is reading.power_w is None
    assert reading.temperature_c == 61


@pytest.mark.parametrize("nvml", [None, fake_nvml(nvmlInit=None), fake_nvml(nvmlDeviceGetHandleByUUID=None)])
def test_without_nvml_all_is_unknown(monkeypatch: pytest.MonkeyPatch, gpu: torch.device, nvml: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    reading = ConditionReader(gpu).read()
    assert reading.throttle is reading.sm_clock_mhz is reading.other_processes is reading.others_share is None


def test_a_processor_is_shared_by_what_this_process_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 s of all cores 6 were busy, 2 of them with this process."""
    times = iter(
        [
            CpuTimes(total_s=100.0, busy_s=50.0, stolen_s=0.0, own_s=7.0),
            CpuTimes(total_s=110.0, busy_s=56.0, stolen_s=0.0, own_s=9.0),
            None,
            CpuTimes(total_s=120.0, busy_s=60.0, stolen_s=0.0, own_s=9.0),
        ]
    )
    monkeypatch.setattr(conditions, "cpu_times", lambda: next(times))
    reader = ConditionReader(CPU)
    shares = [reader.read().others_share for _ in range(3)]
    assert shares == [pytest.approx(0.4), None, None]


def test_the_processors_own_count_of_time(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 50 800 20 0 10 20 5 0\ncpu0 1 2 3\n")
    seconds = cpu_times(stat)
    assert seconds is not None
    assert seconds.busy_s / seconds.total_s == pytest.approx(0.18)  # idle and waiting for a disk are not busy
    assert seconds.stolen_s / seconds.total_s == pytest.approx(0.02)
    assert seconds.own_s > 0
    for text in ("", "cpu0 1 2 3", "cpu x y"):
        stat.write_text(text)
        assert cpu_times(stat) is None
    assert cpu_times(tmp_path / "none") is None
