"""`specplan validate`: what is refused before any work, how it ends, and a run of it for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import make_validation
from refusal import refused
from typer.testing import Result

import specplan.measure
from specplan.files import Trace, Validation
from specplan.files.validation import CaseValidation, Decisions, LosslessCheck, PartError
from specplan.measure import ValidationPlan

Run = Callable[..., Result]
PAIR = ("validate", "--target", "tiny", "--draft", "tiny")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "def main(argv):\\n    "}\n{"prompt": "KING:\\n"}\n{"prompt": "1 + 2 ="}\n')
    return path


def made_up(**changes: Any) -> Validation:
    """What a run might return."""
    part = PartError(
        part="verify", predicted_ms=1.0, measured_ms=1.02, measured_detail_ms={"verify": 0.9, "head": 0.12}
    )
    case = CaseValidation(
        policy="none",
        concurrency=1,
        num_steps=40,
        predicted_tokens_per_s=102.0,
        measured_tokens_per_s=100.0,
        round_predictions=[101.0, 102.0],
        round_measurements=[100.0, 100.0],
        step_mape=0.03,
        step_bias=-0.02,
        parts=[part],
        sizes=[],
        decisions=Decisions(num_steps=10, num_equal=10, first_divergence=None),
        lossless=LosslessCheck(num_outputs=3, num_ties=0, num_wrong=0),
    )
    return make_validation(msgspec.structs.replace(case, **changes))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command asks of `validate_pair`; set `answer` to what it is to return, or raise."""
    seen: dict[str, Any] = {"answer": made_up()}

    def validate_pair(target: object, draft: object, texts: object, plan: ValidationPlan, **options: Any) -> Validation:
        options["on_progress"](0.5, "half of it")
        seen.update(texts=texts, plan=plan, source=options["source"], imposed=options["imposed"])
        if isinstance(seen["answer"], BaseException):
            raise seen["answer"]
        answer: Validation = seen["answer"]
        return answer

    monkeypatch.setattr(specplan.measure, "validate_pair", validate_pair)
    return seen


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a model is the first heavy thing: what is to be refused is refused before it."""

    def load_pair(*args: object, **options: object) -> None:
        raise AssertionError("models were loaded before the input was checked")

    monkeypatch.setattr("specplan.cli.loading.load_pair", load_pair)


def test_help_has_an_example_and_says_how_it_ends(run: Run) -> None:
    assert "  validate " in run("--help").stdout
    told = " ".join(run("validate", "--help").stdout.split())
    assert "Example: specplan validate --target tiny --draft tiny --prompts prompts.jsonl" in told
    assert "with 4 where an output is not what the target decodes alone" in told
    assert "--json" in told


@pytest.mark.usefixtures("no_models")
class TestBadInput:
    @pytest.mark.parametrize(("rounds", "message"), [("1", "--rounds is 1"), ("0", "--rounds is 0"), ("-3", "is -3")])
    def test_rounds(self, run: Run, prompts: Path, rounds: str, message: str) -> None:
        refused(run, 2, message, *PAIR, "--prompts", prompts, f"--rounds={rounds}")

    @pytest.mark.parametrize("concurrency", ["0", "1,,2", "four"])
    def test_concurrency(self, run: Run, prompts: Path, concurrency: str) -> None:
        refused(run, 2, "--concurrency", *PAIR, "--prompts", prompts, f"--concurrency={concurrency}")

    def test_policy(self, run: Run, prompts: Path) -> None:
        refused(run, 2, "'clever'", *PAIR, "--prompts", prompts, "--policy", "clever")

    def test_neither_prompts_nor_outcomes(self, run: Run) -> None:
        assert "--impose" in refused(run, 2, "neither --prompts nor --impose", *PAIR)

    def test_both_prompts_and_outcomes(self, run: Run, prompts: Path, trace_file: Path) -> None:
        refused(run, 2, "both --prompts and --impose", *PAIR, "--prompts", prompts, "--impose", trace_file)

    def test_prompts(self, run: Run, prompts: Path, tmp_path: Path) -> None:
        refused(run, 3, "no prompts file", *PAIR, "--prompts", tmp_path / "nowhere.jsonl")
        prompts.write_text('{"prompt": "x"}\n{"text": "y"}\n')
        refused(run, 3, "line 2", *PAIR, "--prompts", prompts)

    def test_output(self, run: Run, prompts: Path, tmp_path: Path) -> None:
        args = (*PAIR, "--prompts", prompts)
        assert "mkdir" in refused(run, 3, "cannot write", *args, "-o", tmp_path / "no" / "validation.json")
        refused(run, 2, "is also an input", *args, "-o", prompts)

    def test_a_trace_to_impose_that_is_logged(self, run: Run, trace: Trace, tmp_path: Path) -> None:
        logged = replace(trace, metadata=msgspec.structs.replace(trace.metadata, kind="logged"))
        logged.write(tmp_path / "logged.jsonl")
        refused(run, 2, "is logged, expected a dense one", *PAIR, "--impose", tmp_path / "logged.jsonl")

    def test_a_trace_to_impose_with_fewer_drafts(self, run: Run, trace_file: Path) -> None:
        hint = refused(run, 2, "K is 7, and the trace to impose holds 3", *PAIR, "--impose", trace_file)
        assert "-k 3" in hint

    def test_a_trace_to_impose_without_confidences(self, run: Run, trace: Trace, tmp_path: Path) -> None:
        replace(trace, confidence=None).write(tmp_path / "outcomes.jsonl")
        args = (*PAIR, "--impose", tmp_path / "outcomes.jsonl", "-k", "3")
        refused(run, 2, "policy adaptive needs confidences", *args, "--policy", "adaptive")

    def test_no_trace_to_impose(self, run: Run, tmp_path: Path) -> None:
        refused(run, 3, "nowhere.parquet", *PAIR, "--impose", tmp_path / "nowhere.parquet")

    @pytest.mark.parametrize(("option", "value"), [("--lag", "x"), ("--lag", "3"), ("--seed", "-1"), ("--bogus", "1")])
    def test_what_the_parser_refuses(self, run: Run, prompts: Path, option: str, value: str) -> None:
        assert "validate --help" in refused(run, 2, option, *PAIR, "--prompts", prompts, option, value)


class TestWhatIsAsked:
    def test_defaults(self, run: Run, prompts: Path, asked: dict[str, Any]) -> None:
        assert run(*PAIR, "--prompts", prompts).exit_code == 0
        plan: ValidationPlan = asked["plan"]
        assert [policy.name for policy in plan.policies] == ["none", "fixed:3", "adaptive"]
        assert (plan.concurrencies, plan.num_speculative_tokens, plan.lag) == ((1, 4, 16, 64), 7, 1)
        assert (plan.num_rounds, plan.max_output_tokens, plan.max_num_batched_tokens) == (5, 64, 1024)
        assert (asked["source"], asked["imposed"]) == ("prompts.jsonl", None)
        assert asked["texts"] == ["def main(argv):\n    ", "KING:\n", "1 + 2 ="]

    def test_the_default_drafts_no_more_than_k(self, run: Run, prompts: Path, asked: dict[str, Any]) -> None:
        assert run(*PAIR, "--prompts", prompts, "-k", "2").exit_code == 0
        assert [policy.name for policy in asked["plan"].policies] == ["none", "fixed:2", "adaptive"]
        refused(run, 2, "num_speculative_tokens is 0", *PAIR, "--prompts", prompts, "-k", "0")

    def test_each_case_once(self, run: Run, prompts: Path, asked: dict[str, Any]) -> None:
        args = ("--policy", "none", "--policy", "fixed:1", "--policy", "none", "--concurrency", "4,1,4")
        assert run(*PAIR, "--prompts", prompts, *args).exit_code == 0
        assert [policy.name for policy in asked["plan"].policies] == ["none", "fixed:1"]
        assert asked["plan"].concurrencies == (1, 4)

    def test_few_rounds_are_run_and_remarked_on(self, run: Run, prompts: Path, asked: dict[str, Any]) -> None:
        few = run(*PAIR, "--prompts", prompts, "--rounds", "4")
        assert (few.exit_code, asked["plan"].num_rounds) == (0, 4)
        assert few.stderr.splitlines()[0].startswith("4 rounds: ")
        assert "5 or more" in few.stderr
        assert "5 or more" not in run(*PAIR, "--prompts", prompts, "--rounds", "5").stderr

    def test_imposed_outcomes_need_no_prompts(self, run: Run, trace_file: Path, asked: dict[str, Any]) -> None:
        assert run(*PAIR, "--impose", trace_file, "-k", "3").exit_code == 0
        assert (asked["texts"], asked["source"]) == (None, "random tokens")
        assert asked["imposed"].num_requests == 24

    def test_outcomes_without_confidences_leave_adaptive_out(
        self, run: Run, trace: Trace, tmp_path: Path, asked: dict[str, Any]
    ) -> None:
        replace(trace, confidence=None).write(tmp_path / "outcomes.jsonl")
        assert run(*PAIR, "--impose", tmp_path / "outcomes.jsonl", "-k", "3").exit_code == 0
        assert [policy.name for policy in asked["plan"].policies] == ["none", "fixed:3"]

    def test_a_policy_that_drafts_more_than_k(self, run: Run, prompts: Path, asked: dict[str, Any]) -> None:
        refused(run, 2, "fixed:9", *PAIR, "--prompts", prompts, "--policy", "fixed:9")
        assert "plan" not in asked


class TestHowItEnds:
    def test_the_report_and_the_file(self, run: Run, prompts: Path, tmp_path: Path, asked: dict[str, Any]) -> None:
        output = tmp_path / "validation.json"
        result = run(*PAIR, "--prompts", prompts, "-o", output)
        assert result.exit_code == 0
        for said in ("predicted and measured", "+2.0%", "within", "Predictions of tokens/s hold", f"wrote {output}"):
            assert said in result.stdout
        assert "half of it" in result.stderr
        assert Validation.read(output) == asked["answer"]

    def test_json_is_the_file_and_nothing_else(
        self, run: Run, prompts: Path, tmp_path: Path, asked: dict[str, Any]
    ) -> None:
        output = tmp_path / "validation.json"
        result = run(*PAIR, "--prompts", prompts, "-o", output, "--json")
        assert result.exit_code == 0
        assert json.loads(result.stdout) == json.loads(output.read_bytes())
        assert json.loads(result.stdout)["cases"][0]["policy"] == "none"

    def test_an_error_however_large_is_a_finding(self, run: Run, prompts: Path, asked: dict[str, Any]) -> None:
        asked["answer"] = made_up(predicted_tokens_per_s=200.0)
        result = run(*PAIR, "--prompts", prompts)
        assert result.exit_code == 0
        assert "do not hold" in result.stdout

    @pytest.mark.parametrize("extra", [(), ("--json",)])
    def test_wrong_outputs_end_with_4_after_all_is_said(
        self, run: Run, prompts: Path, tmp_path: Path, asked: dict[str, Any], extra: tuple[str, ...]
    ) -> None:
        asked["answer"] = made_up(lossless=LosslessCheck(num_outputs=3, num_ties=0, num_wrong=1))
        output = tmp_path / "validation.json"
        result = run(*PAIR, "--prompts", prompts, "-o", output, *extra)
        assert result.exit_code == 4
        assert "error: the engine is not lossless here: 1 of 3 outputs" in result.stderr
        assert "hint: " in result.stderr
        assert Validation.read(output) == asked["answer"]
        if extra:
            assert json.loads(result.stdout) == json.loads(output.read_bytes())
        else:
            assert "error: none at 1: 1 of 3 outputs differ" in result.stdout
            assert "Do not rely on this yet" in result.stdout

    def test_ctrl_c_leaves_nothing(self, run: Run, prompts: Path, tmp_path: Path, asked: dict[str, Any]) -> None:
        asked["answer"] = KeyboardInterrupt()
        result = run(*PAIR, "--prompts", prompts, "-o", tmp_path / "validation.json")
        assert (result.exit_code, result.stdout) == (130, "")
        assert "interrupted" in result.stderr
        assert list(tmp_path.iterdir()) == [prompts]


@pytest.mark.slow
def test_for_real(run: Run, prompts: Path, tmp_path: Path) -> None:
    output = tmp_path / "validation.json"
    limits = ("--rounds", "2", "--max-output-tokens", "6", "--concurrency", "1,2")
    result = run(*PAIR, "--prompts", prompts, "--policy", "none", "--policy", "fixed:1", *limits, "-o", output)
    assert result.exit_code == 0, result.output
    found = Validation.read(output)
    assert (found.num_requests, found.num_rounds, found.imposed, found.source) == (3, 2, None, "prompts.jsonl")
    assert [(case.concurrency, case.policy) for case in found.cases] == [
        (1, "none"), (1, "fixed:1"), (2, "none"), (2, "fixed:1"),
    ]  # fmt: skip
    for case in found.cases:
        assert case.num_steps > 0
        assert case.predicted_tokens_per_s > 0
        assert case.measured_tokens_per_s > 0
        assert len(case.round_predictions) == len(case.round_measurements) == 2
        assert case.decisions is not None
        assert case.lossless is not None
        assert case.lossless.num_wrong == 0
        assert {part.part for part in case.parts} >= {"verify", "host"}
        assert sum(size.num_steps for size in case.sizes) == case.num_steps
    assert "Median over the policies" in result.stdout
    assert f"wrote {output}" in result.stdout
