"""`specplan compare`: what CI reads, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import CPU_ENVIRONMENT, make_profile_of_every_region
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusal import refused
from typer.testing import CliRunner, Result

from specplan.cli import app
from specplan.costs import tables_from_profile
from specplan.files import Trace

Run = Callable[..., Result]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_profile(name: str, *, tables: bool = False, **changes: Any) -> Path:
        path = tmp_path / f"{name}.json"
        profile = make_profile_of_every_region(**changes)
        (tables_from_profile(profile) if tables else profile).write(path)
        return path

    return write_profile


def test_help_has_an_example_and_the_exit_codes(run: Run) -> None:
    assert "  compare " in run("--help").stdout
    told = run("compare", "--help").stdout
    assert "Example: specplan compare old.json new.json" in told
    assert "Exit code 1: a region is slower" in told


@pytest.mark.parametrize("tables", [False, True])
def test_the_exit_code_says_whether_anything_got_slower(
    run: Run, write: Callable[..., Path], tmp_path: Path, tables: bool
) -> None:
    old, new = write("old", tables=tables), write("new", tables=tables, scale=1.2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    slower, faster, same = run("compare", old, new), run("compare", new, old), run("compare", old, old)
    assert [result.exit_code for result in (slower, faster, same)] == [1, 0, 0]
    assert slower.stdout.splitlines()[-1].startswith(
        "Got slower: verify captured (+20.0% [+20.0, +20.0]), verify smooth"
    )
    assert faster.stdout.splitlines()[-1].startswith("Nothing got slower; faster: verify captured (-16.7% [")
    assert same.stdout.splitlines()[-1].startswith("Nothing got slower; same: verify captured, verify smooth")
    assert run("compare", old, new, "--margin", "0.25").exit_code == 0
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before  # nothing is written


def test_json_is_the_same_answer(run: Run, write: Callable[..., Path]) -> None:
    result = run("compare", write("old"), write("new", scale=1.2), "--json")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["schema"], told["kind"], told["margin"]) == ("specplan.comparison/1", "profiles", 0.01)
    assert [region["region"] for region in told["regions"]] == [
        "captured", "smooth", "mixed", "draft", "host", "machinery", "draft-prefill",
    ]  # fmt: skip
    assert {region["verdict"] for region in told["regions"]} == {"slower"}
    point = told["regions"][0]["points"][0]
    assert point["point"] == {
        "context_len": 128, "num_reqs": 1, "num_tokens": 4, "lengths": "even", "mode": "graph",
    }  # fmt: skip
    assert (point["old_ms"], point["new_ms"], point["ratio"]["estimate"]) == (1.0, 1.2, pytest.approx(1.2))
    assert told["old"]["digest"] != told["new"]["digest"]


def test_other_devices_are_compared_when_asked_to_be(run: Run, write: Callable[..., Path]) -> None:
    old = write("old")
    other = write("new", environment=msgspec.structs.replace(CPU_ENVIRONMENT, device="another CPU"))
    hint = refused(run, 2, "costs of different things: device: a CPU in OLD, another CPU in NEW", "compare", old, other)
    assert "--across" in hint
    result = run("compare", old, other, "--across")
    assert result.exit_code == 0
    assert "warning: compared across device: a CPU in OLD, another CPU in NEW" in result.stdout


class TestBadInput:
    def test_files_that_are_not_there(self, run: Run, write: Callable[..., Path], tmp_path: Path) -> None:
        old = write("old")
        assert "specplan profile" in refused(
            run, 3, "nowhere.json: no such file", "compare", old, tmp_path / "nowhere.json"
        )
        refused(run, 3, "is a directory", "compare", tmp_path, old)

    def test_a_profile_against_tables(self, run: Run, write: Callable[..., Path]) -> None:
        hint = refused(
            run, 2, "OLD is cost tables and NEW is a profile", "compare", write("old", tables=True), write("new")
        )
        assert "specplan tables" in hint

    def test_a_trace(self, run: Run, write: Callable[..., Path], trace: Trace, tmp_path: Path) -> None:
        trace.write(tmp_path / "trace.parquet")
        refused(run, 3, "is not UTF-8, expected JSON", "compare", write("old"), tmp_path / "trace.parquet")
        trace.write(tmp_path / "trace.jsonl")
        refused(run, 3, "trace.jsonl: ", "compare", write("old"), tmp_path / "trace.jsonl")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda content: content.update(schema="specplan.validation/1"), "got specplan.validation/1"),
            (lambda content: content.update(schema="specplan.profile/7"), "newer than this specplan reads"),
            (lambda content: content.pop("schema"), "got no schema"),
            (lambda content: content.pop("samples"), "missing required field samples"),
            (lambda content: content["samples"][0].update(repetitions_ms=[]), "$.samples[0].repetitions_ms"),
            (lambda content: content["samples"][1]["repetitions_ms"].append(-1.0), "$.samples[1].repetitions_ms[21]"),
            (lambda content: content["samples"][1]["repetitions_ms"].append(float("nan")), "expected a finite number"),
            (lambda content: content["environment"].update(dtype=16), "$.environment.dtype"),
            (lambda content: content.update(samples=[]), "no point was measured in both"),
        ],
    )
    def test_mangled_profiles(
        self, run: Run, write: Callable[..., Path], change: Callable[[Any], object], message: str
    ) -> None:
        old, new = write("old"), write("new")
        content = json.loads(new.read_text())
        change(content)
        new.write_text(json.dumps(content))
        refused(run, 3, message, "compare", old, new)

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("--margin", "-1"), "the margin is -1.0"),
            (("--margin", "1"), "the margin is 1.0"),
            (("--margin", "nan"), "the margin is nan"),
            (("--margin", "much"), "--margin"),
            (("--bogus",), "--bogus"),
        ],
    )
    def test_options(self, run: Run, write: Callable[..., Path], args: tuple[str, ...], message: str) -> None:
        refused(run, 2, message, "compare", write("old"), write("new"), *args)

    def test_one_file_is_too_few(self, run: Run, write: Callable[..., Path]) -> None:
        assert "compare --help" in refused(run, 2, "NEW", "compare", write("old"))


SCALARS = st.sampled_from([None, True, -1, 0, 1, 2**40, 0.5, 1e308, 5e-324, "", "x", "graph", [], {}, [[]], [1.0]])


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Of every value in a document; of a long list the first two alone."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [*([at] if at else []), *(place for key, item in inner for place in places(item, (*at, key)))]


@pytest.mark.parametrize("kind", ["profile", "tables"])
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_mangled_file_yields_a_traceback(data: st.DataObject, tmp_path: Path, kind: str) -> None:
    """Any value of either replaced by any other, or cut off: an answer, or two lines and an exit code."""
    profile = make_profile_of_every_region()
    whole = profile if kind == "profile" else tables_from_profile(profile)
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    whole.write(old)
    content = json.loads(old.read_text())
    *path, last = data.draw(st.sampled_from(places(content)))
    inside = content
    for key in path:
        inside = inside[key]
    inside[last] = data.draw(SCALARS)
    mangled = json.dumps(content).encode()
    new.write_bytes(mangled[: data.draw(st.one_of(st.none(), st.integers(0, len(mangled))))])
    for pair in ((old, new), (new, old)):
        result = CliRunner().invoke(app, ["compare", *map(str, pair), "--across"], catch_exceptions=False)
        assert result.exit_code in (0, 1, 2, 3)
        if result.exit_code > 1:
            assert result.stdout == ""
            assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["error", "hint"]
        else:
            assert "slower" in result.stdout.splitlines()[-1]
