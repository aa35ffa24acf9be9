"""`specplan check`: what an engineer reads, what a machine reads, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from refusal import refused
from typer.testing import Result

from specplan.costs import build_cost_tables
from specplan.planning import GraphMode

Run = Callable[..., Result]
SIX = ("check", "--max-num-seqs", "6", "-k", "6")


@pytest.fixture
def tables_to_40(tmp_path: Path) -> Path:
    """Graphs up to 40 tokens, eager steps above them."""
    path = tmp_path / "to40.json"
    build_cost_tables(
        [(1, 0.2), (8, 0.4)],
        [(1, 2.0), (8, 2.1), (16, 2.4), (32, 3.2), (40, 3.7), (64, 9.0), (128, 12.0)],
        max_num_reqs=8,
        max_num_tokens=128,
        capture_limit=40,
    ).write(path)
    return path


def test_help_has_an_example_and_names_every_mode(run: Run) -> None:
    assert "  check " in run("--help").stdout
    told = run("check", "--help").stdout
    assert "Example: specplan check --max-num-seqs 6 -k 6 --capture-limit 40" in told
    for mode in GraphMode:
        assert mode.value in told


def test_past_the_limit_without_tables(run: Run) -> None:
    result = run(*SIX, "--capture-limit", "40")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert 4 <= len(lines) <= 8
    assert lines[0].startswith("route: full-and-piecewise: decode batches replay full graphs")
    assert "40, as given" in lines[0]
    assert lines[1].startswith("warning: 42 > 40 runs eagerly: ")
    assert lines[1].endswith("from 6 requests on")
    for fitting in ("admitting 34 of its 36 drafts", "K = 5", "5 requests", "a capture limit of 42"):
        assert sum(f"fits: {fitting} " in line for line in lines) == 1
    assert lines[-1] == "next: cost tables that reach it say what this costs"


def test_past_the_limit_priced(run: Run, tables_to_40: Path) -> None:
    result = run(*SIX, "--capture-limit", "40", tables_to_40)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) <= 9
    assert result.stdout.startswith(f"{tables_to_40}: 0 warnings, 0 notes\n")
    assert (
        "price: 9.400 ms eagerly, 4.100 ms at the largest captured size, 40 tokens: +5.300 ms, +129.3% "
        "(6 requests, any context; draft, verify and overhead)"
    ) in result.stdout
    assert "not in these tables" in result.stdout
    assert "*" not in result.stdout
    assert "at most" not in result.stdout
    assert run(*SIX, tables_to_40).stdout == result.stdout.replace("as given", "the tables'")


def test_bounds_and_extrapolation_are_explained(run: Run, tables_file: Path, tmp_path: Path) -> None:
    bounded = run(*SIX, "--capture-limit", "40", tables_file).stdout  # these have graphs up to 64
    assert "price: at most 9.600 ms eagerly" in bounded
    assert "\nat most: these tables hold no such step" in bounded
    path = tmp_path / "short.json"
    build_cost_tables(
        [(8, 0.2)], [(8, 1.0), (16, 1.5), (32, 4.0)], max_num_reqs=8, max_num_tokens=64, capture_limit=16
    ).write(path)
    extrapolated = run(*SIX, path).stdout
    assert "ms* eagerly" in extrapolated
    assert extrapolated.endswith("* rests on extrapolation\n")


def test_at_most_is_said_of_padded_tables_alone(run: Run, tmp_path: Path) -> None:
    for semantics in ("linear", "floor"):
        path = tmp_path / f"{semantics}.json"
        build_cost_tables(
            [(8, 0.2)], [(8, 1.0), (32, 4.0)], max_num_reqs=8, max_num_tokens=64, capture_limit=32, semantics=semantics
        ).write(path)
        told = run("check", path, "--max-num-seqs", "8", "-k", "1", "--capture-limit", "16").stdout
        assert "at most " not in told.split("price: ")[1]
        assert told.startswith(f"these tables are {semantics}: ")


def test_within_the_limit(run: Run, tables_to_40: Path) -> None:
    result = run("check", "--max-num-seqs", "4", "-k", "9", tables_to_40)
    assert result.exit_code == 0
    told = [line.partition(":")[0] for line in result.stdout.splitlines()]
    assert told == [str(tables_to_40), "route", "ok", "price", "next"]
    assert "ok: 40 <= 40 replays a graph" in result.stdout
    assert "4.100 ms as a replay (4 requests" in result.stdout
    assert (
        "note: 35 tokens replay the graph of 40" in run("check", "--max-num-seqs", "5", "-k", "6", tables_to_40).stdout
    )


def test_a_resolved_mode_names_the_one_it_replaces(run: Run) -> None:
    told = run(*SIX, "--graph-mode", "full", "--no-piecewise", "--attention", "up-to:7").stdout
    assert told.startswith("route: full-decode-only in place of full: decode batches replay full graphs, mixed ")
    assert "batches run eagerly (attention: up-to:7" in told


def test_the_context_of_the_prices_is_named(run: Run, tables_to_40: Path) -> None:
    content = json.loads(tables_to_40.read_text()) | {"profile_digest": "sha256", "contexts": [2048]}
    tables_to_40.write_text(json.dumps(content))
    assert "(6 requests, context 2048;" in run(*SIX, tables_to_40).stdout


def test_sizes_that_are_given_are_the_sizes(run: Run) -> None:
    told = run(*SIX, "--capture-sizes", "1,64").stdout
    assert "42 tokens replay the graph of 64" in told
    assert "the worst, 7 tokens, runs at 64" in told
    assert "vLLM's rule" not in told


def test_one_request(run: Run) -> None:
    told = run("check", "--max-num-seqs", "2", "-k", "4", "--capture-limit", "5").stdout
    assert "  fits: 1 request " in told


def test_json_says_the_same(run: Run, tables_to_40: Path) -> None:
    told = json.loads(run(*SIX, tables_to_40, "--json").stdout)["route"]
    assert (told["graph_mode"], told["capture_limit"], told["eager_from_num_reqs"]) == ("full-and-piecewise", 40, 6)
    assert told["full_batch"]["route"] == {"num_tokens": 42, "padded_tokens": 42, "mode": "eager"}
    assert told["full_batch"]["price"]["cost_ms"] == pytest.approx(9.4)
    assert told["crossing"]["extra_ms"] == pytest.approx(5.3)
    assert [finding["code"] for finding in told["findings"]] == ["past-capture-limit"]
    assert [choice["change"] for choice in told["choices"]] == [
        "draft-budget",
        "num-speculative-tokens",
        "num-reqs",
        "capture-limit",
    ]
    alone = json.loads(run(*SIX, "--json").stdout)
    assert (alone["file"], alone["findings"], alone["route"]["full_batch"]["price"]) == (None, [], None)


class TestRefused:
    @pytest.mark.parametrize("mode", ["none", "piecewise"])
    def test_modes(self, run: Run, mode: str) -> None:
        assert "full-and-piecewise" in refused(run, 4, f"graph mode {mode}", *SIX, "--graph-mode", mode)

    @pytest.mark.parametrize(
        ("attention", "message"),
        [("up-to:6", "1 + K = 7 > 6"), ("uniform", "equal query lengths"), ("never", "never part of a full graph")],
    )
    def test_attention(self, run: Run, attention: str, message: str) -> None:
        assert "7 tokens" in refused(run, 4, message, *SIX, "--attention", attention)

    def test_no_graphs(self, run: Run) -> None:
        refused(run, 4, "nothing is captured", *SIX, "--capture-limit", "0")

    def test_no_graphs_in_json_either(self, run: Run) -> None:
        refused(run, 4, "graph mode none", *SIX, "--graph-mode", "none", "--json")


class TestBadInput:
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("--graph-mode", "half"), "unknown graph mode 'half'"),
            (("--attention", "sometimes"), "unknown attention support 'sometimes'"),
            (("--attention", "up-to:0"), "bound of 0"),
            (("--capture-limit", "-1"), "capture limit is -1"),
            (("--capture-limit", "99999999"), "capture limit is 99999999"),
            (("--capture-limit", "many"), "--capture-limit"),
            (("--bogus", "1"), "--bogus"),
        ],
    )
    def test_options(self, run: Run, args: tuple[str, ...], message: str) -> None:
        refused(run, 2, message, *SIX, *args)

    @pytest.mark.parametrize(
        ("max_num_seqs", "k", "message"), [("0", "6", "max_num_seqs 0"), ("6", "0", "K is 0"), ("-1", "-1", "K is -1")]
    )
    def test_limits(self, run: Run, max_num_seqs: str, k: str, message: str) -> None:
        refused(run, 2, message, "check", "--max-num-seqs", max_num_seqs, "-k", k)

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (("-k", "6"), "--max-num-seqs is missing"),
            (("--max-num-seqs", "6"), "-k is missing"),
            ((), "nothing to check"),
            (("--here", "cpu"), "without a file"),
            (("--capture-sizes", "1,2", *SIX[1:], "--capture-limit", "2"), "in place of --capture-limit"),
            (("--capture-sizes", "1,x", *SIX[1:]), "--capture-sizes holds 'x'"),
            (("--capture-sizes", "0", *SIX[1:]), "--capture-sizes holds '0'"),
            (("--capture-sizes", 5000 * "9", *SIX[1:]), "--capture-sizes holds '999"),
            (("--capture-sizes", "", *SIX[1:]), "--capture-sizes holds ''"),
        ],
    )
    def test_options_that_do_not_go_together(self, run: Run, args: tuple[str, ...], message: str) -> None:
        refused(run, 2, message, "check", *args)

    def test_enormous_limits_answer_at_once(self, run: Run) -> None:
        result = run("check", "--max-num-seqs", str(10**15), "-k", str(10**9), "--capture-limit", str(2**20))
        assert result.exit_code == 0

    def test_files(self, run: Run, tmp_path: Path) -> None:
        refused(run, 3, "nowhere.json", *SIX, tmp_path / "nowhere.json")
        (tmp_path / "bad.json").write_text("{")
        refused(run, 3, "JSON", *SIX, tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("limits", "message", "hint"),
    [
        (("--max-num-seqs", "9", "-k", "6"), "9 requests", "--max-num-seqs"),
        (("--max-num-seqs", "8", "-k", "16"), "reach 128 tokens", "--max-num-batched-tokens"),
        ((*SIX[1:], "--capture-limit", "50"), "graphs up to 40", "--capture-limit"),
    ],
)
def test_a_step_outside_the_tables_is_routed_without_its_price(
    run: Run, tables_to_40: Path, limits: tuple[str, ...], message: str, hint: str
) -> None:
    args = ("check", *limits, tables_to_40)
    result = run(*args)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("warning step-not-priced: route: "))
    assert message in lines[at]
    assert hint in lines[at + 1]
    assert any(line.startswith("route: ") for line in lines)
    assert not any(line.startswith("price: ") for line in lines)
    assert run(*args, "--strict").exit_code == 1


def test_checking_loads_no_torch(tables_to_40: Path) -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom specplan.cli import app\n"
        f"result = CliRunner().invoke(app, {[*SIX, str(tables_to_40)]!r})\n"
        "print(result.exit_code, sorted({'torch', 'scipy', 'numba', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0 []\n"


def test_the_manual_shows_what_it_says(run: Run) -> None:
    manual = Path(__file__).resolve().parents[2] / "docs" / "planning.md"
    assert run(*SIX, "--capture-limit", "40").stdout in manual.read_text()
