"""What a doctor says of a machine. NVML is a stand-in here, for there is no GPU to ask."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from specplan.files import Reading
from specplan.measure.doctor import Diagnosis, diagnose, examine
from specplan.measure.gpu_settings import GpuFacts, ask_gpu
from specplan.measure.gpu_symptoms import GPU_JUDGES
from specplan.measure.machine import HostFacts
from specplan.measure.symptoms import HOST_JUDGES, Machine

QUIET = HostFacts(
    others_share=0.01,
    stolen_share=0.0,
    load=0.1,
    num_cores=8,
    usable_cores=8,
    quota_cores=math.inf,
    governors=frozenset({"performance"}),
    memory_bytes=64 * 2**30,
    available_bytes=50 * 2**30,
    swapped_bytes=0.0,
    is_virtual=False,
    is_container=False,
    is_on_battery=False,
    hottest_c=50.0,
)
IGNORANT = HostFacts(num_cores=8, usable_cores=8)
GPU = GpuFacts(
    reading=Reading(at_s=0.0, sm_clock_mhz=1830, throttle=[], other_processes=0),
    are_clocks_set=True,
    is_persistent=True,
    power_limit_w=700.0,
    default_power_limit_w=700.0,
    is_mig=False,
    has_ecc=True,
    has_ecc_after_reboot=True,
)


def machine(host: HostFacts = QUIET, gpu: GpuFacts | None = None, **changes: Any) -> Machine:
    fields: dict[str, Any] = {
        "device": "a CPU",
        "num_threads": 8,
        "torch_cuda": None,
        "has_cuda": False,
        "work_ms": [1.0] * 40,
    }
    return Machine(host=host, gpu=gpu, **fields | changes)


def found(diagnosis: Diagnosis) -> dict[str, tuple[str, str]]:
    """Severity and message by code; and every question has one answer."""
    answered = [
        *(finding.code for finding in diagnosis.findings),
        *(finding.code.removesuffix("-unknown") for finding in diagnosis.unknown),
        *diagnosis.fine,
    ]
    assert len(answered) == len(set(answered))
    assert set(answered) >= set(HOST_JUDGES)
    for finding in (*diagnosis.findings, *diagnosis.unknown):
        assert finding.hint
        assert "\n" not in finding.message + finding.hint
    return {finding.code: (finding.severity, finding.message) for finding in diagnosis.findings}


def test_a_quiet_machine_is_fine() -> None:
    diagnosis = diagnose(machine())
    assert found(diagnosis) == {}
    assert diagnosis.unknown == []
    assert diagnosis.fine == list(HOST_JUDGES)
    assert not diagnosis.has_warnings


def test_a_machine_that_tells_nothing_is_not_fine() -> None:
    diagnosis = diagnose(machine(IGNORANT))
    assert found(diagnosis) == {}
    assert diagnosis.fine == ["threads-over-cores", "timer-noise", "torch-without-cuda"]
    assert {finding.severity for finding in diagnosis.unknown} == {"note"}
    assert all(finding.message.startswith("nobody knows ") for finding in diagnosis.unknown)
    assert not diagnosis.has_warnings


@pytest.mark.parametrize(
    ("code", "host", "severity", "message"),
    [
        ("cpu-shared", {"others_share": 0.21, "stolen_share": 0.01}, "warning", "other processes used 20% of the"),
        ("cpu-stolen", {"others_share": 0.04, "stolen_share": 0.02}, "warning", "virtual machine took 2%"),
        ("cpu-load", {"load": 2.1}, "note", "a load of 2.1 over the last minute on 8 cores"),
        ("threads-over-cores", {"usable_cores": 4}, "warning", "torch has 8 threads on 4 cores"),
        ("cpu-quota", {"quota_cores": 1.5}, "warning", "a cgroup allows 1.5 cores to 8 threads"),
        ("cpu-governor", {"governors": frozenset({"performance", "powersave"})}, "warning", "(governor powersave)"),
        ("memory-low", {"available_bytes": 2 * 2**30}, "warning", "2.0 of 64.0 GiB of memory are free"),
        ("swapped", {"swapped_bytes": 3 * 2**30}, "note", "3 GiB are swapped out"),
        ("virtual-machine", {"is_virtual": True}, "note", "this is a virtual machine"),
        ("container", {"is_container": True}, "note", "this is a container"),
        ("on-battery", {"is_on_battery": True}, "warning", "runs on its battery"),
        ("hot", {"hottest_c": 85.0}, "warning", "85 °C at the hottest place"),
    ],
)  # fmt: skip
def test_each_of_the_hosts_symptoms(code: str, host: dict[str, Any], severity: str, message: str) -> None:
    told = found(diagnose(machine(replace(QUIET, **host))))
    assert list(told) == [code]
    assert told[code][0] == severity
    assert message in told[code][1]


@pytest.mark.parametrize(
    "host",
    [
        {"others_share": 0.05},
        {"others_share": 0.01, "stolen_share": 0.01},
        {"load": 2.0},
        {"quota_cores": 8.0},
        {"available_bytes": 6.5 * 2**30},
        {"hottest_c": 84.0},
    ],
)
def test_up_to_the_threshold_nothing_is_said(host: dict[str, Any]) -> None:
    assert found(diagnose(machine(replace(QUIET, **host)))) == {}


def test_work_that_takes_another_time_each_try() -> None:
    """Half at 1 ms and half at 1.12: the quartiles are 0.12 apart, over a median of 1.06."""
    for slow, is_noisy in ((1.12, True), (1.09, False)):
        told = found(diagnose(machine(work_ms=[1.0] * 20 + [slow] * 20)))
        assert list(told) == ["timer-noise"] * is_noisy
    told = found(diagnose(machine(work_ms=[1.0] * 20 + [1.12] * 20)))
    assert told["timer-noise"][1] == (
        "one piece of work, tried 40 times, took 1 to 1.12 ms, a spread of 11% (interquartile)"
    )
    unknown = diagnose(machine(work_ms=[])).unknown
    assert [finding.code for finding in unknown] == ["timer-noise-unknown"]


@pytest.mark.parametrize(
    ("torch_cuda", "has_cuda", "message"),
    [(None, False, "torch is built without CUDA"), ("12.8", False, "finds no device"), ("12.8", True, None)],
)
def test_a_gpu_that_torch_does_not_use(torch_cuda: str | None, has_cuda: bool, message: str | None) -> None:
    host = replace(QUIET, has_nvidia_driver=True)
    told = found(diagnose(machine(host, torch_cuda=torch_cuda, has_cuda=has_cuda)))
    if message is None:
        assert told == {}
    else:
        assert told["torch-without-cuda"][0] == "warning"
        assert message in told["torch-without-cuda"][1]
    assert found(diagnose(machine(torch_cuda=torch_cuda, has_cuda=has_cuda))) == {}  # no driver, nothing amiss


class TestGpu:
    def test_a_quiet_one_is_fine(self) -> None:
        diagnosis = diagnose(machine(gpu=GPU))
        assert diagnosis.fine == [*HOST_JUDGES, *GPU_JUDGES]

    @pytest.mark.parametrize(
        ("code", "changes", "severity", "message"),
        [
            ("gpu-clocks", {"are_clocks_set": False}, "note", "not locked (1830 MHz under load just now)"),
            ("gpu-persistence", {"is_persistent": False}, "note", "persistence mode is off"),
            ("gpu-power-cap", {"power_limit_w": 350.0}, "note", "capped at 350 W, below the 700 W"),
            ("gpu-mig", {"is_mig": True}, "note", "cut into slices (MIG)"),
            ("gpu-ecc", {"has_ecc_after_reboot": False}, "warning", "is on, and will be off after a reboot"),
        ],
    )
    def test_each_of_its_settings(self, code: str, changes: dict[str, Any], severity: str, message: str) -> None:
        told = found(diagnose(machine(gpu=replace(GPU, **changes))))
        assert list(told) == [code]
        assert told[code][0] == severity
        assert message in told[code][1]

    def test_what_holds_it_back_and_who_else_is_on_it(self) -> None:
        reading = Reading(at_s=0.0, throttle=["power cap", "thermal slowdown (hardware)"], other_processes=2)
        told = found(diagnose(machine(gpu=replace(GPU, reading=reading))))
        assert told == {
            "gpu-throttled": ("warning", "the GPU's clocks are held back: power cap, thermal slowdown (hardware)"),
            "gpu-shared": ("warning", "2 other processes are on the GPU"),
        }

    def test_without_nvml_one_line_says_all(self) -> None:
        diagnosis = diagnose(machine(gpu=GpuFacts()))
        assert [finding.code for finding in diagnosis.unknown] == ["nvml-unknown"]
        assert "nvidia-ml-py" in diagnosis.unknown[0].hint
        assert not any(code.startswith("gpu-") for code in diagnosis.fine)

    def test_what_nvml_does_not_answer_is_unknown(self) -> None:
        diagnosis = diagnose(machine(gpu=GpuFacts(reading=Reading(at_s=0.0))))
        assert [finding.code for finding in diagnosis.unknown] == [f"{code}-unknown" for code in GPU_JUDGES]

    def test_a_driver_beside_a_gpu_that_is_measured(self) -> None:
        host = replace(QUIET, has_nvidia_driver=True)
        assert found(diagnose(machine(host, gpu=GPU, torch_cuda="12.8", has_cuda=True))) == {}


class NVMLError(Exception):
    pass


# In NVML's units: milliwatts, pairs of now and after a reboot, bits of reasons.
ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x2 | 0x4,
    "nvmlDeviceGetPersistenceMode": 0,
    "nvmlDeviceGetPowerManagementLimit": 350_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
    "nvmlDeviceGetMigMode": [1, 0],
    "nvmlDeviceGetEccMode": [0, 1],
}


class FakeGpu:
    """Answers all but what it is told to be silent about."""

    def __init__(self, *silent: str) -> None:
        self.nvml, self.handle, self.silent = self, "handle", silent

    def __getattr__(self, name: str) -> Any:
        def answer(handle: str) -> Any:
            assert handle == "handle"
            if name in self.silent:
                raise NVMLError
            return ANSWERS[name]

        return answer

    def ask(self, question: Any) -> Any:
        try:
            return question()
        except NVMLError:
            return None

    def read(self, at_s: float) -> Reading:
        return Reading(at_s=at_s)


def test_nvmls_answers_in_our_units() -> None:
    assert ask_gpu(FakeGpu()) == GpuFacts(  # type: ignore[arg-type]
        reading=Reading(at_s=0.0),
        are_clocks_set=True,
        is_persistent=False,
        power_limit_w=350.0,
        default_power_limit_w=700.0,
        is_mig=True,
        has_ecc=False,
        has_ecc_after_reboot=True,
    )
    assert ask_gpu(FakeGpu(*ANSWERS)) == GpuFacts(reading=Reading(at_s=0.0))  # type: ignore[arg-type]


def test_this_machine(tmp_path: Path) -> None:
    """Work is timed for real; of a machine without files all else is unknown."""
    diagnosis = examine(torch.device("cpu"), root=tmp_path)
    found(diagnosis)
    assert diagnosis.device
    unknown = {finding.code.removesuffix("-unknown") for finding in diagnosis.unknown}
    assert unknown == set(HOST_JUDGES) - {"threads-over-cores", "timer-noise", "torch-without-cuda"}
