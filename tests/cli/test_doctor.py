"""`specplan doctor` on the machine that runs the tests, whatever is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from specplan.files import Finding
from specplan.measure import doctor
from specplan.measure.doctor import Diagnosis

Run = Callable[..., Result]


def test_help_has_an_example(run: Run) -> None:
    assert "  doctor " in run("--help").stdout
    assert "Example: specplan doctor --strict && specplan profile" in run("doctor", "--help").stdout


def test_this_machine(run: Run) -> None:
    result = run("doctor", "--device", "cpu", "--strict", "--json")
    told = json.loads(result.stdout)
    assert told["schema"] == "specplan.diagnosis/1"
    severities = [finding["severity"] for finding in told["findings"]]
    assert result.exit_code == int("warning" in severities)
    codes = [finding["code"] for finding in told["findings"] + told["unknown"]]
    assert len(codes) + len(told["fine"]) == 14  # of a host
    assert result.stderr == ""


@pytest.mark.parametrize(("severity", "exit_code"), [("warning", 1), ("note", 0)])
def test_strict_exits_with_one_where_there_is_a_warning(
    run: Run, monkeypatch: pytest.MonkeyPatch, severity: str, exit_code: int
) -> None:
    finding = Finding(code="hot", severity=severity, place="processor", message="90 °C", hint="wait")
    unknown = Finding(code="swapped-unknown", severity="note", place="memory", message="nobody knows", hint="look")
    diagnosis = Diagnosis(device="a CPU", findings=[finding], unknown=[unknown], fine=["container"])
    monkeypatch.setattr(doctor, "examine", lambda device: diagnosis)
    result = run("doctor", "--strict")
    assert result.exit_code == exit_code
    assert result.stdout.splitlines() == [
        f"{severity}: processor: 90 °C (wait)",
        "unknown: memory: nobody knows (look)",
        "fine: container",
        f"a CPU: {exit_code} warning{'s' * (1 - exit_code)}, {1 - exit_code} note{'s' * exit_code}, 1 unknown, 1 fine",
    ]
    assert run("doctor").exit_code == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--device", "tpu"), "unknown device 'tpu'"),
        (("--device", "cuda:99"), "cuda:99"),
        (("--device", "cpu:1"), "unknown device 'cpu:1'"),
        (("--device", ""), "unknown device ''"),
        (("--bogus",), "--bogus"),
        (("profile.json",), "profile.json"),
    ],
)
def test_what_it_is_not_asked(run: Run, args: tuple[str, ...], message: str) -> None:
    result = run("doctor", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]
    assert message in lines[0]
