"""What a validation amounts to, at the thresholds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from builders import make_validation

from specplan.files import Validation
from specplan.files.validation import (
    CaseValidation,
    Decisions,
    Divergence,
    LosslessCheck,
    PartError,
    SizeError,
)
from specplan.simulation.verdicts import (
    TARGET_ERROR,
    contributions,
    furthest_off_its_sizes,
    judge_levels,
    num_unexplained,
    num_wrong,
    sizes_by_error,
)


def part(name: Any, predicted_ms: float, measured_ms: float) -> PartError:
    return PartError(part=name, predicted_ms=predicted_ms, measured_ms=measured_ms, measured_detail_ms={})


def size(num_reqs: int, num_steps: int, predicted_ms: float, measured_ms: float = 1.0) -> SizeError:
    return SizeError(
        num_reqs=num_reqs,
        executed_tokens=num_reqs,
        has_prompt_tokens=False,
        num_steps=num_steps,
        predicted_ms=predicted_ms,
        measured_ms=measured_ms,
    )


def case(policy: str, error: float, *, concurrency: int = 1, spread: float = 0.0, **changes: Any) -> CaseValidation:
    fields: dict[str, Any] = {
        "policy": policy,
        "concurrency": concurrency,
        "num_steps": 10,
        "predicted_tokens_per_s": 100.0 * (1 + error),
        "measured_tokens_per_s": 100.0,
        "round_predictions": [100.0 * (1 - spread), 100.0 * (1 + spread)],
        "round_measurements": [100.0, 100.0],
        "step_mape": 0.1,
        "step_bias": -0.1,
        "parts": [part("verify", 1.0 / (1 + error), 1.0)],
        "sizes": [],
        "decisions": Decisions(num_steps=10, num_equal=10, first_divergence=None),
        "lossless": None,
    }
    return CaseValidation(**fields | changes)


def validation(*cases: CaseValidation) -> Validation:
    return make_validation(*cases, max_num_batched_tokens=64, max_output_tokens=8, num_rounds=2)


class TestLevels:
    @pytest.mark.parametrize(
        ("error", "spread", "verdict"),
        [
            (0.0, 0.0, "within"),
            (0.049, 0.0, "within"),
            (-0.049, 0.0, "within"),
            (0.051, 0.0, "outside"),
            (-0.051, 0.0, "outside"),
            (0.051, 0.04, "outside"),  # a spread below the target leaves the target
            (0.08, 0.09, "within"),
            (0.10, 0.09, "outside"),
        ],
    )
    def test_the_target_or_the_spread_where_that_is_more(self, error: float, spread: float, verdict: str) -> None:
        (level,) = judge_levels(validation(case("none", error, spread=spread)))
        assert level.verdict == verdict
        assert level.limit == pytest.approx(max(TARGET_ERROR, spread))
        assert level.spread == pytest.approx(spread)

    def test_at_the_limit_it_is_within(self) -> None:
        exact = case("none", 0.0, predicted_tokens_per_s=125.0, round_predictions=[75.0, 100.0, 125.0])
        (level,) = judge_levels(validation(exact))
        assert (level.median_error, level.limit, level.verdict) == (0.25, 0.25, "within")

    def test_medians_over_the_policies_of_one_concurrency(self) -> None:
        low = [case("none", -0.02), case("fixed:1", 0.04, spread=0.3), case("adaptive", 0.3, spread=0.01)]
        first, second = judge_levels(validation(case("none", 0.5, concurrency=16), *low))
        assert (first.concurrency, second.concurrency) == (1, 16)
        assert first.median_error == pytest.approx(0.04)
        assert first.bias == pytest.approx(0.04)
        assert first.spread == pytest.approx(0.01)
        assert second.median_error == pytest.approx(0.5)

    def test_errors_of_one_sign_cancel_in_a_gain(self) -> None:
        same, apart = [case("none", 0.1), case("fixed:1", 0.1)], [case("none", -0.1), case("fixed:1", 0.2)]
        assert judge_levels(validation(*same))[0].gain_error == pytest.approx(0.0)
        assert judge_levels(validation(*apart))[0].gain_error == pytest.approx(1.2 / 0.9 - 1)
        assert judge_levels(validation(case("none", -0.1)))[0].gain_error == pytest.approx(0.1)

    def test_the_sign_is_kept_apart(self) -> None:
        (level,) = judge_levels(validation(case("none", -0.2), case("fixed:1", -0.1), case("adaptive", 0.3)))
        assert level.median_error == pytest.approx(0.2)
        assert level.bias == pytest.approx(-0.1)

    def test_the_pick_and_what_it_loses(self) -> None:
        cases = [
            case("none", 0.0, predicted_tokens_per_s=120.0, measured_tokens_per_s=90.0),
            case("fixed:3", 0.0, predicted_tokens_per_s=110.0, measured_tokens_per_s=100.0),
        ]
        (level,) = judge_levels(validation(*cases))
        assert (level.predicted_fastest, level.measured_fastest) == ("none", "fixed:3")
        assert level.pick_loss == pytest.approx(0.1)
        (alone,) = judge_levels(validation(cases[0]))
        assert (alone.predicted_fastest, alone.pick_loss) == ("none", 0.0)

    def test_an_oracle_is_not_picked(self) -> None:
        cases = [case("none", 0.0), case("oracle", 0.0, predicted_tokens_per_s=300.0, measured_tokens_per_s=300.0)]
        (level,) = judge_levels(validation(*cases))
        assert (level.predicted_fastest, level.measured_fastest, level.pick_loss) == ("none", "none", 0.0)
        (alone,) = judge_levels(validation(cases[1]))
        assert alone.predicted_fastest == "oracle"

    def test_the_main_source_over_all_policies(self) -> None:
        """Verify is off both ways; that the two cancel must not acquit it."""
        cases = [
            case("none", 0.0, parts=[part("verify", 1.2, 1.0), part("host", 0.1, 0.15)]),
            case("fixed:1", 0.0, parts=[part("verify", 0.8, 1.0), part("host", 0.1, 0.15)]),
        ]
        cases = [in_step(case) for case in cases]
        (level,) = judge_levels(validation(*cases))
        assert level.main_source == "verify"
        assert level.main_share == pytest.approx(0.4 / 0.5)


def in_step(case: CaseValidation) -> CaseValidation:
    """The same case, with tokens/s that are off by its step times alone."""
    predicted = sum(part.predicted_ms for part in case.parts)
    measured = sum(part.measured_ms for part in case.parts)
    return msgspec.structs.replace(
        case, predicted_tokens_per_s=100.0 * measured / predicted, measured_tokens_per_s=100.0
    )


class TestContributions:
    PARTS = (part("verify", 1.5, 1.0), part("draft", 0.5, 0.75), part("host", 0.25, 0.25))

    def test_step_times_explain_all_where_the_steps_are_the_same(self) -> None:
        found = contributions(in_step(case("fixed:1", 0.0, parts=list(self.PARTS))))
        assert [one.source for one in found] == ["verify", "draft", "host", "steps taken"]
        assert [one.error for one in found] == pytest.approx([0.25, -0.125, 0.0, 0.0])
        assert [one.share for one in found] == pytest.approx([2 / 3, 1 / 3, 0.0, 0.0])
        assert [one.part for one in found] == [*self.PARTS, None]

    def test_they_sum_to_the_error_of_the_time_per_token(self) -> None:
        given = case("fixed:1", -0.3, parts=list(self.PARTS))
        found = contributions(given)
        assert sum(one.error for one in found) == pytest.approx(
            given.measured_tokens_per_s / given.predicted_tokens_per_s - 1
        )
        assert sum(one.share for one in found) == pytest.approx(1.0)
        assert found[-1].error == pytest.approx(1 / 0.7 - 1 - 0.125)

    def test_no_error_has_no_shares(self) -> None:
        found = contributions(case("none", 0.0, parts=[part("verify", 1.0, 1.0), part("draft", 0.0, 0.0)]))
        assert [(one.error, one.share) for one in found] == [(0.0, 0.0)] * 3


class TestSizes:
    def test_the_case_furthest_off_counts_steps_and_time(self) -> None:
        rare = case("none", 0.0, sizes=[size(1, 1, 9.0), size(2, 99, 1.0)])
        common = case("fixed:1", 0.0, sizes=[size(1, 50, 1.3), size(2, 50, 1.0)])
        slow = case("fixed:2", 0.0, sizes=[size(1, 100, 101.0, 100.0)])  # much time, small error
        assert furthest_off_its_sizes(validation(rare, common, slow)) is common

    def test_none_without_sizes(self) -> None:
        assert furthest_off_its_sizes(validation(case("none", 0.0))) is None

    def test_most_time_wrong_first_whatever_its_sign(self) -> None:
        given = case("none", 0.0, sizes=[size(1, 10, 1.1), size(2, 10, 0.5), size(3, 1, 4.0)])
        assert [found.num_reqs for found in sizes_by_error(given)] == [2, 3, 1]


def parted(difference: float | None, gap: float | None) -> Decisions:
    divergence = Divergence(
        step=1,
        request=0,
        engine="",
        simulator="",
        max_confidence_difference=difference,
        min_logit_gap=gap,
    )
    return Decisions(num_steps=10, num_equal=1, first_divergence=divergence)


def test_only_what_float32_does_not_explain_is_counted() -> None:
    equal = Decisions(num_steps=10, num_equal=10, first_divergence=None)
    given = [equal, parted(1e-6, None), parted(None, 1e-6), parted(None, None), parted(0.1, 0.1)]
    assert num_unexplained(validation(*(case("none", 0.0, decisions=decisions) for decisions in given))) == 2


def test_only_what_is_no_tie_is_wrong() -> None:
    checks = [None, LosslessCheck(num_outputs=5, num_ties=2, num_wrong=0)]
    checks += [LosslessCheck(num_outputs=5, num_ties=1, num_wrong=n) for n in (1, 2)]
    assert num_wrong(validation(*(case("none", 0.0, lossless=check) for check in checks))) == 3
    assert num_wrong(validation(case("none", 0.0))) == 0
