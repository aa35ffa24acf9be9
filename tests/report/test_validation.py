"""A validation as a person reads it."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from builders import make_validation
from rich.console import Console

from specplan.files import ModelInfo, Validation
from specplan.files.validation import (
    CaseValidation,
    Decisions,
    Divergence,
    LosslessCheck,
    PartError,
    SizeError,
)
from specplan.report.validation import validation_report, verdict_sentence, wrong_outputs

LOSSLESS = LosslessCheck(num_outputs=128, num_ties=0, num_wrong=0)


def case(policy: str, concurrency: int, error: float, **changes: Any) -> CaseValidation:
    """Off by so much, because its verify passes are."""
    speed = 1234.5 * concurrency
    fields: dict[str, Any] = {
        "policy": policy,
        "concurrency": concurrency,
        "num_steps": 400,
        "predicted_tokens_per_s": speed * (1 + error),
        "measured_tokens_per_s": speed,
        "round_predictions": [98.0, 100.0, 102.0],
        "round_measurements": [100.0, 100.0, 101.0],
        "step_mape": 0.0712,
        "step_bias": -0.0123,
        "parts": [
            PartError(
                part="verify",
                predicted_ms=2.5 / (1 + error) - 0.5,
                measured_ms=2.0,
                measured_detail_ms={"verify": 1.75, "head": 0.25},
            ),
            PartError(part="draft", predicted_ms=0.0, measured_ms=0.0, measured_detail_ms={"draft": 0.0}),
            PartError(
                part="host", predicted_ms=0.5, measured_ms=0.5, measured_detail_ms={"schedule": 0.125, "plan": 0.375}
            ),
        ],
        "sizes": [],
        "decisions": Decisions(num_steps=400, num_equal=400, first_divergence=None),
        "lossless": LOSSLESS,
    }
    return CaseValidation(**fields | changes)


def validation(*cases: CaseValidation, **changes: Any) -> Validation:
    models = {
        "target": ModelInfo(name="large", num_params=100, config_sha256="00"),
        "draft": ModelInfo(name="small", num_params=10, config_sha256="11"),
    }
    return make_validation(*cases, **{"num_requests": 32} | models | changes)


def printed(given: Validation, width: int = 132) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for renderable in validation_report(given):
        console.print(renderable, markup=False)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def rows(given: Validation) -> list[str]:
    """The lines of all tables and remarks, one space between words."""
    return [" ".join(words) for line in printed(given).splitlines() if (words := line.split())]


def sentences(given: Validation) -> list[str]:
    return [renderable for renderable in validation_report(given) if isinstance(renderable, str)]


def divergence(**changes: Any) -> Decisions:
    fields: dict[str, Any] = {
        "step": 12,
        "request": 3,
        "engine": "request 3: 2 admitted, 1 accepted",
        "simulator": "request 3: 2 admitted, 2 accepted",
        "max_confidence_difference": None,
        "min_logit_gap": None,
    }
    return Decisions(num_steps=400, num_equal=12, first_divergence=Divergence(**fields | changes))


class TestTables:
    def test_a_row_per_case(self) -> None:
        ties = LosslessCheck(num_outputs=128, num_ties=2, num_wrong=0)
        wrong = LosslessCheck(num_outputs=128, num_ties=2, num_wrong=3)
        shown = rows(
            validation(
                case("none", 1, 0.02),
                case("fixed:3", 1, -0.031, decisions=divergence(min_logit_gap=1e-6), lossless=ties),
                case("adaptive", 64, 0.001, lossless=wrong),
                case("ema", 64, 0.0, lossless=None),
            )
        )
        first = "1 none 1,234.5 1,259.2 +2.0% 2.0% 7.1% -1.2% 400 of 400 yes"
        for row in (
            first,
            "1 fixed:3 1,234.5 1,196.2 -3.1% 2.0% 7.1% -1.2% 12 of 400 yes, 2 tied",
            "64 adaptive 79,008.0 79,087.0 +0.1% 2.0% 7.1% -1.2% 400 of 400 3 WRONG",
            "64 ema 79,008.0 79,008.0 +0.0% 2.0% 7.1% -1.2% 400 of 400 -",
        ):
            assert row in shown

    def test_a_verdict_per_concurrency_with_target_and_spread(self) -> None:
        noisy = {"round_predictions": [80.0, 100.0, 120.0]}
        shown = rows(validation(case("none", 1, 0.021), case("none", 4, -0.12, **noisy), case("none", 16, 0.09)))
        assert "1 2.1% 5% 2.0% within +2.1% verify (100%) none none 0.0%" in shown
        assert "4 12.0% 5% 20.0% within -12.0% verify (100%) none none 0.0%" in shown
        assert "16 9.0% 5% 2.0% outside +9.0% verify (100%) none none 0.0%" in shown

    def test_parts_with_their_phases_and_what_step_times_leave(self) -> None:
        given = case("fixed:1", 1, 0.25)
        parts = [
            *given.parts,
            PartError(part="draft-prefill", predicted_ms=0.0, measured_ms=0.25, measured_detail_ms={}),
        ]
        shown = rows(validation(msgspec.structs.replace(given, parts=parts)))
        assert "1 fixed:1 verify 1.500 2.000 -18.2% 53% verify 1.75, head 0.25" in shown
        assert "host 0.500 0.500 +0.0% 0% schedule 0.12, plan 0.38" in shown
        assert "draft-prefill 0.000 0.250 -9.1% 26%" in shown
        assert "steps taken - - +7.3% 21%" in shown
        assert not any(row.startswith("draft ") for row in shown)  # neither predicted nor measured

    def test_sizes_of_the_case_furthest_off(self) -> None:
        def size(num_steps: int, predicted_ms: float, **changes: Any) -> SizeError:
            fields = {"num_reqs": num_steps, "executed_tokens": 8 * num_steps, "has_prompt_tokens": False}
            return SizeError(**fields | changes, num_steps=num_steps, predicted_ms=predicted_ms, measured_ms=2.0)

        calm = case("none", 1, 0.0, sizes=[size(400, 2.0)])
        off = case("fixed:3", 4, 0.0, sizes=[size(n, 1.0, has_prompt_tokens=n == 7) for n in range(1, 9)])
        text = printed(validation(calm, off))
        assert "the case furthest off: fixed:3 at 4 (5 of 8 sizes" in text
        shown = rows(validation(calm, off))
        assert "8 64 no 8 1.000 2.000 -50.0% 22%" in shown
        assert "7 56 yes 7 1.000 2.000 -50.0% 19%" in shown
        assert "3 24 no 3 1.000 2.000 -50.0% 8%" not in shown

    def test_no_table_of_sizes_without_any(self) -> None:
        assert "Steps by size" not in printed(validation(case("none", 1, 0.0)))

    @pytest.mark.parametrize("width", [132, 200])
    def test_every_cell_is_whole(self, width: int) -> None:
        phases = dict.fromkeys(("schedule", "plan", "layout", "commit", "record"), 123.456)
        host = PartError(part="host", predicted_ms=1234.5, measured_ms=1234.5, measured_detail_ms=phases)
        far = {"predicted_tokens_per_s": 1e6, "measured_tokens_per_s": 123456.7, "parts": [host]}
        bad = LosslessCheck(num_outputs=9, num_ties=0, num_wrong=9)
        decisions = Decisions(num_steps=123456, num_equal=123455, first_divergence=None)
        given = validation(case("adaptive", 1024, 0.0, **far, lossless=bad, decisions=decisions))
        text = printed(given, width)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width
        for word in ("1,000,000.0", "123,456.7", "adaptive", "1234.500", "123455", "123.46", "outside"):
            assert word in text


class TestRemarks:
    def test_a_clean_run_has_none_but_what_it_rests_on(self) -> None:
        assert sentences(validation(case("none", 1, 0.0))) == [
            "target large, draft small on a CPU, float32; 32 requests of prompts.jsonl, free-running, up to 64 output "
            "tokens",
            "K = 7, lag 1, steps of up to 1024 tokens; 5 rounds, each profiling and measuring; greedy output, by "
            "specplan's own engine",
        ]

    def test_imposed_outcomes_are_said(self) -> None:
        given = validation(case("none", 1, 0.0), imposed="code.jsonl", source="random tokens")
        assert sentences(given)[0].endswith("32 requests of random tokens, outcomes imposed by a trace of code.jsonl")

    def test_wrong_outputs_are_errors_and_ties_are_notes(self) -> None:
        check = LosslessCheck(num_outputs=128, num_ties=2, num_wrong=3)
        found = sentences(validation(case("fixed:3", 4, 0.0, lossless=check)))
        assert found[0].startswith("error: fixed:3 at 4: 3 of 128 outputs differ from the target decoding alone")
        assert found[1].startswith("note: fixed:3 at 4: 2 of 128 outputs differ")
        assert "within 1e-4: a tie" in found[1]

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"min_logit_gap": 3e-6}, "a logit tie: the target's first token led by 3.0e-06"),
            ({"max_confidence_difference": 2e-7}, "confidences that differ by at most 2.0e-07"),
        ],
    )
    def test_a_divergence_with_its_cause_is_a_note(self, changes: dict[str, Any], said: str) -> None:
        found = sentences(validation(case("adaptive", 16, 0.0, decisions=divergence(**changes))))
        assert found[0] == (
            "note: adaptive at 16: at step 12 the engine first parts from the simulator (request 3: 2 admitted, "
            f"1 accepted; simulated: request 3: 2 admitted, 2 accepted): {said}"
        )

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"request": None}, "unexplained: a fault of the engine or of the simulator"),
            (
                {"min_logit_gap": 0.5, "max_confidence_difference": 0.125},
                "unexplained (confidences differ by at most 1.2e-01 and the target's first token led by at least "
                "5.0e-01): a fault of the engine or of the simulator",
            ),
        ],
    )
    def test_a_divergence_without_one_is_a_warning(self, changes: dict[str, Any], said: str) -> None:
        found = sentences(validation(case("adaptive", 16, 0.0, decisions=divergence(**changes))))
        assert found[0].startswith("warning: adaptive at 16: at step 12 the engine first parts from the simulator")
        assert found[0].endswith(said)


class TestSentence:
    def test_all_within_the_target(self) -> None:
        given = validation(case("none", 1, 0.012), case("none", 4, -0.0316))
        assert verdict_sentence(given) == (
            "Predictions of tokens/s hold at concurrency 1 and 4: median error 1.2% and 3.2%, target 5%; "
            "do not act on a predicted gain of less than 3.2%."
        )

    def test_within_the_target_excused_and_outside(self) -> None:
        noisy = {"round_predictions": [80.0, 100.0, 120.0]}
        given = validation(
            case("none", 1, 0.01), case("none", 4, 0.12, **noisy), case("none", 16, -0.093), case("none", 64, 0.2)
        )
        assert verdict_sentence(given) == (
            "Predictions of tokens/s hold at concurrency 1: median error 1.0%, target 5%; "
            "they are off by 12.0% at 4, more than the target of 5%, and the rounds themselves differ by 20.0% "
            "(measure again on a quiet machine); "
            "they do not hold at 16: median error 9.3%, limit 5.0%, too low, mostly from verify (100%); "
            "they do not hold at 64: median error 20.0%, limit 5.0%, too high, mostly from verify (100%); "
            "do not act on a predicted gain of less than 20.0%."
        )

    def test_nowhere_within(self) -> None:
        assert verdict_sentence(validation(case("none", 8, 0.1))).startswith(
            "Predictions of tokens/s do not hold at concurrency 8: median error 10.0%, limit 5.0%, too high, mostly "
        )

    def test_a_rounding_error_has_no_sign_of_its_own(self) -> None:
        shown = rows(validation(case("none", 1, -1e-9)))
        assert "1 none 1,234.5 1,234.5 +0.0% 2.0% 7.1% -1.2% 400 of 400 yes" in shown
        assert not any("-0.0%" in row for row in shown)

    def test_a_perfect_prediction_promises_no_more_than_it_can_say(self) -> None:
        assert verdict_sentence(validation(case("none", 1, 0.0))).endswith("a predicted gain of less than 0.1%.")

    def test_whether_the_right_policy_is_named(self) -> None:
        right = validation(case("none", 1, 0.01), case("fixed:3", 1, 0.02, measured_tokens_per_s=1240.0))
        assert "the policy predicted fastest is the one measured fastest at every concurrency" in verdict_sentence(
            right
        )
        wrong = validation(case("none", 1, 0.04), case("fixed:3", 1, 0.0, measured_tokens_per_s=1260.0))
        assert "at 1 the simulator names none fastest, and fixed:3 was, by 2.0%" in verdict_sentence(wrong)

    def test_faults_come_first(self) -> None:
        given = validation(
            case("none", 1, 0.01, lossless=LosslessCheck(num_outputs=128, num_ties=0, num_wrong=2)),
            case("adaptive", 1, 0.01, decisions=divergence()),
        )
        assert verdict_sentence(given).startswith(
            "Do not rely on this yet: 2 of 256 outputs are not what the target decodes alone, so the engine is at "
            "fault and in 1 case the engine parts from the simulator for no reason that float32 gives. "
            "As things stand: predictions of tokens/s hold at concurrency 1: "
        )


def test_wrong_outputs_are_counted_over_all_cases() -> None:
    assert wrong_outputs(validation(case("none", 1, 0.0), case("ema", 1, 0.0, lossless=None))) is None
    bad = LosslessCheck(num_outputs=10, num_ties=1, num_wrong=1)
    assert wrong_outputs(validation(case("none", 1, 0.0), case("ema", 1, 0.0, lossless=bad))) == (
        "1 of 138 outputs are not what the target decodes alone"
    )
