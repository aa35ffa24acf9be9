"""`specplan check FILE`: faults made by hand are named, with a place and what to do next."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from specplan.cli import app
from specplan.costs import tables_from_profile
from specplan.files import Profile

Run = Callable[..., Result]
ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "profiles" / "costs" / "h100-llama2-7b.json"


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    """Real curves, small: one request, and 32, at one context."""
    whole: dict[str, Any] = json.loads(SHIPPED.read_text())
    whole["samples"] = [
        sample for sample in whole["samples"] if sample["num_reqs"] in (1, 32) and sample["context_len"] == 512
    ]
    return whole


@pytest.fixture
def spoiled(tmp_path: Path, content: dict[str, Any]) -> Callable[[Callable[[dict[str, Any]], None]], Path]:
    def spoil(change: Callable[[dict[str, Any]], None]) -> Path:
        spoiled = copy.deepcopy(content)
        for sample in spoiled["samples"]:
            change(sample)
        path = tmp_path / "spoiled.json"
        path.write_text(json.dumps(spoiled))
        return path

    return spoil


def outlier(sample: dict[str, Any]) -> None:
    if (sample["num_reqs"], sample["num_tokens"]) == (32, 128):
        sample["repetitions_ms"] = [9 * ms for ms in sample["repetitions_ms"]]


def flat(sample: dict[str, Any]) -> None:
    sample["repetitions_ms"] = [12.0]


def full_width(sample: dict[str, Any]) -> None:
    if sample["mode"] == "graph" and sample["num_reqs"] == 32:
        sample["executed_num_tokens"] = 512


def swapped(sample: dict[str, Any]) -> None:
    tokens, context = sample["num_tokens"], sample["context_len"]
    sample |= {"num_tokens": context, "executed_num_tokens": context, "context_len": tokens}


def microseconds(sample: dict[str, Any]) -> None:
    sample["repetitions_ms"] = [1000 * ms for ms in sample["repetitions_ms"]]


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (outlier, "outlier"),
        (flat, "flat-verify"),
        (full_width, "size-not-executed"),
        (swapped, "swapped-columns"),
        (microseconds, "implausible-unit"),
    ],
)
def test_a_fault_is_named(run: Run, spoiled: Callable[..., Path], fault: Callable[..., None], code: str) -> None:
    path = spoiled(fault)
    result = run("check", path, "--strict")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(f"warning {code}: "))
    assert lines[at + 1].startswith("  next: ")
    assert lines[-1].startswith(f"{path}: ")
    assert run("check", path).exit_code == 0
    findings = json.loads(run("check", path, "--json").stdout)["findings"]
    assert code in {finding["code"] for finding in findings}
    assert all(finding[field] for finding in findings for field in ("code", "severity", "place", "message", "hint"))


def test_none_of_them_is_found_where_there_is_none(run: Run, spoiled: Callable[..., Path]) -> None:
    codes = {
        finding["code"]
        for finding in json.loads(run("check", spoiled(lambda sample: None), "--json").stdout)["findings"]
    }
    assert not codes & {"outlier", "flat-verify", "size-not-executed", "swapped-columns", "implausible-unit"}


def test_a_profile_and_its_tables_are_judged_alike(run: Run, tmp_path: Path) -> None:
    tables = tmp_path / "tables.json"
    tables_from_profile(Profile.read(SHIPPED)).write(tables)
    judged = [json.loads(run("check", path, "--json").stdout)["findings"] for path in (SHIPPED, tables)]
    assert judged[0] == judged[1] != []


def test_costs_of_another_device_are_named(run: Run) -> None:
    result = run("check", SHIPPED, "--here", "cpu", "--strict")
    assert result.exit_code == 1
    assert "warning wrong-device: device: device: H100 in these costs, " in result.stdout
    assert "next: measure this device: specplan profile" in result.stdout


def test_a_file_and_an_engines_limits_in_one(run: Run) -> None:
    result = run("check", SHIPPED, "--max-num-seqs", "32", "-k", "7", "--capture-sizes", "64,32,16,8")
    assert result.exit_code == 0
    assert "warning capture-sizes-unsorted: " in result.stdout
    assert "\nroute: " in result.stdout


BROKEN = st.sampled_from([None, -1, 0, 0.5, 1e300, 2**70, "x", [], {}, True, float("nan"), 1e-320, ["m"], 4096])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("kind", ["profile", "tables"])
def test_no_mangled_file_yields_a_traceback_or_a_silent_table(
    tmp_path: Path, content: dict[str, Any], kind: str, data: st.DataObject
) -> None:
    """Any value anywhere: it is refused with two lines, or priced."""
    small = copy.deepcopy(content)
    small["samples"] = small["samples"][:6]
    path = tmp_path / "mangled.json"
    if kind == "tables":
        path.write_text(json.dumps(small))
        small = json.loads(tables_from_profile(Profile.read(path), max_num_tokens=40).to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        mangle(small, data)
    path.write_text(json.dumps(small))
    commands = [["check", str(path)]] + ([["tables", str(path)]] if kind == "profile" else [])
    for command in commands:
        result = CliRunner().invoke(app, command)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert result.exit_code in (0, 3)
        if result.exit_code:
            assert result.stdout == ""
            assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]
        else:
            assert result.stdout


def mangle(value: Any, data: st.DataObject) -> None:
    """Walks to some place of a JSON value, and breaks it there."""
    while True:
        key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.integers(0, 3)):
            value = inner
            continue
        if isinstance(value, dict) and data.draw(st.integers(0, 4)) == 0:
            del value[key]
        else:
            value[key] = copy.deepcopy(data.draw(BROKEN))  # or one example would mangle the next
        return
