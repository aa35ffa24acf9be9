"""Every command on real input: what it prints, what it writes, and that it says the same to machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from specplan import __version__
from specplan.files import CostTables, Profile, Trace

Run = Callable[..., Result]


def test_version(run: Run) -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout.strip()) == (0, __version__)


@pytest.mark.parametrize("command", ["profile", "tables", "record", "simulate", "import trace", "import costs"])
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    *group, name = command.split()
    assert f"  {name} " in run(*group, "--help").stdout
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: specplan {command} " in result.stdout
    assert "--json" in result.stdout


def test_from_a_bare_config_to_tables(run: Run, model_folder: Path, tmp_path: Path) -> None:
    profile, tables = tmp_path / "profile.json", tmp_path / "tables.json"
    limits = ["-k", "2", "--max-num-seqs", "2", "--max-num-batched-tokens", "16", "--context-len", "8"]
    measured = run(
        "profile", "--target", model_folder, "--draft", model_folder, *limits, "--time-budget", "2", "-o", profile
    )
    assert measured.exit_code == 0
    assert "static-buffer steps, not CUDA graphs" in measured.stdout
    assert f"wrote {profile}" in measured.stdout
    assert Profile.read(profile).target.weights == "random"

    priced = run("tables", profile, "-o", tables)
    assert priced.exit_code == 0
    assert "Verify step, ms" in priced.stdout
    assert "Draft step, ms" in priced.stdout
    assert "held-out error, captured" in priced.stdout
    built = CostTables.read(tables)
    assert (built.max_num_reqs, built.max_num_tokens, built.max_step_tokens) == (2, 6, 16)
    assert built.profile_digest == Profile.read(profile).digest()

    as_json = run("tables", profile, "--json")
    assert json.loads(as_json.stdout) == json.loads(tables.read_text())


def test_a_sweep_is_listed_then_run_then_gone_on_from(run: Run, model_folder: Path, tmp_path: Path) -> None:
    profile, partial = tmp_path / "profile.json", tmp_path / "profile.json.partial"
    limits = ["-k", "1", "--max-num-seqs", "2", "--max-num-batched-tokens", "4", "--time-budget", "1"]
    pair = ("profile", "--target", model_folder, "--draft", model_folder, "-o", profile, *limits)
    listed = run(*pair, "--dry-run")
    assert listed.exit_code == 0
    assert not profile.exists()
    *points, total = listed.stdout.splitlines()
    assert points[0] == "verify graph, multi-query, even: 1 requests, 1 tokens, context 4"
    assert any(line.startswith("verify eager") and "of them of 1 prompts" in line for line in points)
    assert total.startswith(f"{len(points)} points: ")
    assert total.endswith("ended after 1 s")
    summary = json.loads(run(*pair, "--dry-run", "--json").stdout)
    assert len(summary["points"]) == len(points)
    assert (summary["least_s"], summary["most_s"]) == pytest.approx((len(points) * 0.3, len(points) * 1.5))

    refused = run(*pair, "--resume")
    assert refused.exit_code == 2
    assert f"nothing to resume: there is neither {profile} nor {partial}" in refused.stderr
    assert run(*pair).exit_code == 0
    first = Profile.read(profile)
    first.write(partial)  # as a killed sweep would have left it
    profile.unlink()
    assert run(*pair, "--resume").exit_code == 0
    assert not partial.exists()
    again = Profile.read(profile)
    assert again.created == first.created
    for before, after in zip(first.samples, again.samples, strict=True):
        assert after.repetitions_ms[: len(before.repetitions_ms)] == before.repetitions_ms
    assert sum(len(s.repetitions_ms) for s in again.samples) > sum(len(s.repetitions_ms) for s in first.samples)
    other = run(*pair, "--resume", "--context-len", "8")
    assert other.exit_code == 2
    assert "cannot go on from this profile" in other.stderr


def test_a_profile_is_read_in_other_ways(run: Run, model_folder: Path, tmp_path: Path) -> None:
    profile, tables = tmp_path / "profile.json", tmp_path / "tables.json"
    limits = ["-k", "1", "--max-num-seqs", "2", "--max-num-batched-tokens", "4", "--time-budget", "1"]
    assert run("profile", "--target", model_folder, "--draft", model_folder, "-o", profile, *limits).exit_code == 0
    compared = run("tables", profile, "--compare-semantics")
    assert compared.exit_code == 0
    assert "planned by" in compared.stdout
    losses = json.loads(run("tables", profile, "--compare-semantics", "--json").stdout)["losses"]
    assert {(loss["planned"], loss["running"]) for loss in losses} == {
        (planned, running) for planned in ("padded", "linear", "exact", "floor") for running in ("padded", "linear")
    }
    assert run("tables", profile, "--semantics", "exact", "-o", tables).exit_code == 0
    assert CostTables.read(tables).semantics == "exact"
    refused = run("tables", profile, "--semantics", "ceil")
    assert refused.exit_code == 2
    assert "ceil" in refused.stderr


def test_layouts_are_compared_where_both_are_asked_for(run: Run, model_folder: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    pair = ("profile", "--target", model_folder, "--draft", model_folder, "-o", profile)
    limits = ["-k", "1", "--max-num-seqs", "2", "--max-num-batched-tokens", "4", "--time-budget", "1"]
    assert run(*pair, *limits, "--layout", "multi-query", "--layout", "batch-expansion").exit_code == 0
    shown = run("tables", profile, "-o", tmp_path / "tables.json")
    assert "Verify step in batch expansion" in " ".join(shown.stdout.split())
    compared = CostTables.read(tmp_path / "tables.json").layout_costs
    assert [(costs.num_reqs, costs.k) for costs in compared] == 2 * [(1, 0), (1, 1), (2, 0), (2, 1)]  # contexts

    assert run(*pair, *limits).exit_code == 0
    assert "batch expansion" not in " ".join(run("tables", profile).stdout.split())
    refused = run(*pair, *limits, "--layout", "batch-expansion")
    assert refused.exit_code == 2
    assert "hint: pass --layout multi-query" in refused.stderr


def test_profile_tells_machines_what_it_wrote(run: Run, model_folder: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    limits = ["-k", "1", "--max-num-seqs", "1", "--max-num-batched-tokens", "4", "--time-budget", "1"]
    result = run("profile", "--target", model_folder, "--draft", model_folder, *limits, "-o", profile, "--json")
    told = json.loads(result.stdout)
    assert told["profile"] == str(profile)
    assert told["digest"] == Profile.read(profile).digest()


def test_simulate_compares_and_recommends(run: Run, trace_file: Path, tables_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    args = ("simulate", trace_file, "--tables", tables_file, "--policy", "fixed:2", "--policy", "adaptive")
    result = run(*args, "--concurrency", "1,4", "-o", output)
    assert result.exit_code == 0
    for word in ("none", "fixed:2", "adaptive", "eploy", "calibrated"):
        assert word in result.stdout
    assert "  oracle" not in result.stdout  # its rows come only when asked for
    again = tmp_path / "again.json"
    run(*args, "--concurrency", "1,4", "-o", again)
    assert output.read_bytes() == again.read_bytes()
    as_json = json.loads(run(*args, "--concurrency", "1,4", "--json").stdout)
    assert as_json == json.loads(output.read_text())
    assert {(row["policy"], row["concurrency"]) for row in as_json["policies"]} == {
        (policy, concurrency) for policy in ("none", "fixed:2", "adaptive") for concurrency in (1, 4)
    }


def test_simulate_can_plan_with_other_costs_than_it_charges(run: Run, trace_file: Path, tables_file: Path) -> None:
    flat = json.loads(tables_file.read_text())
    flat["verify_ms"] = [[[1.0] * len(row) for row in page] for page in flat["verify_ms"]]
    planner = tables_file.with_name("flat.json")
    planner.write_text(json.dumps(flat))
    args = ("simulate", trace_file, "--tables", tables_file, "--policy", "adaptive", "--concurrency", "16", "--json")
    alone, misled = (
        next(row for row in json.loads(run(*args, *extra).stdout)["policies"] if row["policy"] == "adaptive")
        for extra in ((), ("--planner-tables", planner))
    )
    assert misled["mean_budget"] > alone["mean_budget"]  # free tokens are all taken
    assert misled["output_tokens_per_s"] < alone["output_tokens_per_s"]  # and paid for


def test_import_makes_an_outcome_only_trace(run: Run, tables_file: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "accepted.jsonl", tmp_path / "trace.jsonl"
    lines = [{"tokens_per_step": [1, 3, 2, 1, 4], "prompt_len": 5}, {"tokens_per_step": [2, 1], "prompt_len": 7}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run("import", "trace", source, "--field", "tokens_per_step", "-o", output)
    assert result.exit_code == 0
    assert "2 requests, 7 positions, K = 3" in result.stdout
    assert Trace.read(output).confidence is None
    args = ("simulate", output, "--tables", tables_file, "--concurrency", "1,4")
    replayed = run(*args, "--policy", "fixed:3", "--policy", "oracle")
    assert replayed.exit_code == 0
    refused = run(*args, "--policy", "adaptive")
    assert refused.exit_code == 2
    assert "policy adaptive needs confidences" in refused.stderr


def test_record_writes_a_trace_that_simulate_replays(run: Run, tables_file: Path, tmp_path: Path) -> None:
    prompts, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.parquet"
    prompts.write_text('{"prompt": "def main(argv):\\n    "}\n\n{"prompt": "KING:\\n", "id": 7}\n')
    args = ("record", "--target", "tiny", "--draft", "tiny", "--prompts", prompts, "--max-output-tokens", "12")
    result = run(*args, "-k", "4", "-o", trace)
    assert result.exit_code == 0
    recorded = Trace.read(trace)
    assert (recorded.num_requests, recorded.num_speculative_tokens) == (2, 4)
    assert recorded.metadata.kind == "dense"
    assert len(recorded.request) == int(recorded.output_len.sum())
    assert f"2 requests, {len(recorded.request)} positions" in result.stdout
    told = json.loads(run(*args, "-k", "4", "-o", trace, "--json").stdout)
    assert told["mean_accepted_len"] == pytest.approx(recorded.accepted_len.mean())
    assert run("simulate", trace, "--tables", tables_file, "--concurrency", "1").exit_code == 0
