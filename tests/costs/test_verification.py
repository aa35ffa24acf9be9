"""What a new process measured, held against the tables: on a device whose costs are a formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from specplan.costs import build_cost_tables, tables_from_profile
from specplan.costs.verification import judge_verification, strata_of
from specplan.files import CostTables, Profile, Sample
from specplan.files.mixed_costs import MixedCosts
from specplan.planning.prices import MixedPrices

Make = Callable[..., Any]


def verify_ms(num_reqs: int, num_tokens: int, context_len: int) -> float:
    """conftest's formula."""
    return 1.0 + 0.125 * num_tokens + 0.25 * num_reqs + context_len / 256 + (4.0 if num_tokens > 16 else 0.0)


def verified(profile: Profile, *samples: Sample) -> Profile:
    return msgspec.structs.replace(profile, verification=list(samples))


def whole(tables: CostTables) -> dict[tuple[str, str], tuple[float, int]]:
    return {
        (stratum.kind, stratum.region): (stratum.error.bias, stratum.error.points)
        for stratum in tables.error.strata
        if stratum.is_whole
    }


def test_a_point_measured_again_is_held_against_its_first_median(make_profile: Make, make_sample: Make) -> None:
    profile = make_profile(contexts=[64, 256])
    again = [
        make_sample("verify", "graph", 4, 16, None, 64, [verify_ms(4, 16, 64) * 1.25] * 3),
        make_sample("verify", "eager", 4, 24, None, 256, [verify_ms(4, 24, 256)] * 3),
        make_sample("draft", "graph", 2, 2, 3, 64, [(0.25 + 1.5 + 0.25) / 1.25] * 3),
    ]
    tables = tables_from_profile(verified(profile, *again))
    assert whole(tables) == {
        ("re-run", "captured"): (pytest.approx(-0.2), 1),
        ("re-run", "smooth"): (pytest.approx(0), 1),
        ("re-run", "draft"): (pytest.approx(0.25), 1),
    }
    assert tables.error.known_to("captured") == pytest.approx(0.2)
    codes = [finding.code for finding in tables.findings]
    assert "re-run-error" in codes
    assert "held-out-error" not in codes


def test_a_size_between_is_held_against_the_table(make_profile: Make, make_sample: Make) -> None:
    """7 tokens of 3 requests run at 8, at a context half way: linear in requests and context, as the formula is."""
    between = make_sample("verify", "graph", 3, 7, None, 160, [verify_ms(3, 8, 160)] * 3)
    between = msgspec.structs.replace(between, executed_num_tokens=8)
    past = make_sample("verify", "eager", 4, 28, None, 64, [verify_ms(4, 28, 64) / 0.9] * 3)
    tables = tables_from_profile(verified(make_profile(contexts=[64, 256]), between, past))
    assert whole(tables) == {
        ("held-out", "captured"): (pytest.approx(0), 1),
        ("held-out", "smooth"): (pytest.approx(-0.1), 1),
    }
    finding = next(finding for finding in tables.findings if finding.code == "held-out-error")
    assert finding.place == "smooth"
    assert "MAPE 10.0%, p95 10.0%, bias -10.0% over 1; a quiet device reaches 2% and 5%" in finding.message


def test_strata_are_by_context_and_by_powers_of_two_of_requests(make_profile: Make, make_sample: Make) -> None:
    samples = [
        make_sample("verify", "graph", n, t, None, context, [verify_ms(n, t, context) / (1 + error)] * 3)
        for n, t, context, error in ((1, 4, 64, 0.1), (2, 8, 64, 0.2), (4, 16, 256, -0.3))
    ]
    strata = strata_of(verified(make_profile(contexts=[64, 256]), *samples), tables_from_profile(make_profile()))
    found = [(stratum.context_len, stratum.num_reqs, round(stratum.error.bias, 9)) for stratum in strata]
    assert found == [
        (None, None, 0.0),
        (64, None, 0.15),
        (256, None, -0.3),
        (None, (1, 1), 0.1),
        (None, (2, 3), 0.2),
        (None, (4, 7), -0.3),
    ]
    assert [stratum.error.points for stratum in strata] == [3, 2, 1, 1, 1, 1]


def test_a_tail_that_misses_its_target_is_found_too(make_profile: Make, make_sample: Make) -> None:
    """Of 64 points four are off by 30%: 1.9% on average, and yet 95 of 100 are not within 5%."""
    off = [
        make_sample("verify", "graph", 4, 16, None, 129 + i, [verify_ms(4, 16, 128) / (1.3 if i < 4 else 1.0)] * 3)
        for i in range(64)
    ]
    (finding,) = judge_verification(tables_from_profile(verified(make_profile(), *off)).error.strata)
    assert finding.code == "held-out-error"
    assert "MAPE 1.9%, p95 25.5%" in finding.message


def test_within_the_targets_nothing_is_found(make_profile: Make, make_sample: Make) -> None:
    near = make_sample("verify", "graph", 4, 16, None, 128, [verify_ms(4, 16, 128) * 1.009] * 3)
    tables = tables_from_profile(verified(make_profile(), near))
    assert not list(judge_verification(tables.error.strata))
    assert not list(judge_verification([]))


def test_a_mixed_step_between_is_priced_as_a_replay_prices_it() -> None:
    rng = np.random.default_rng(0)
    costs = MixedCosts(
        contexts=[64, 256], num_verifying=[0, 4], drafts=[0, 3], prompt_tokens=[1, 16, 64],
        ms=1 + rng.random((2, 2, 2, 3)), ci_ms=np.zeros((2, 2, 2, 3)),
    )  # fmt: skip
    prices = MixedPrices.from_costs(costs, costs.ms)
    for context, verifying, drafts, prompts in rng.uniform([50, 1, 0, 1], [300, 4, 3, 64], (50, 4)):
        num_verifying, num_prompts = round(verifying), round(prompts)
        num_drafts = round(drafts * num_verifying)
        step = np.array([[context, num_verifying, num_drafts / num_verifying, num_prompts]])
        row = prices.budget_row(num_verifying, num_prompts, context, num_drafts)
        assert costs.at(step)[0] == pytest.approx(row[num_drafts])


def test_what_the_tables_do_not_reach_is_left_out(make_profile: Make, make_sample: Make) -> None:
    far = [
        make_sample("verify", "eager", 4, 4000, None, 128, [1.0]),
        make_sample("verify", "graph", 9, 16, None, 128, [1.0]),
        make_sample("metadata", "eager", 4, 16, None, 128, [1.0]),
        make_sample("verify", "eager", 5, 20, None, 128, [1.0], num_prefilling=1, num_prompt_tokens=8),
    ]
    assert tables_from_profile(verified(make_profile(), *far)).error.strata == []


def test_verified_samples_price_nothing(make_profile: Make, make_sample: Make) -> None:
    wild = make_sample("verify", "graph", 4, 16, None, 128, [1e6] * 30)
    plain, with_it = tables_from_profile(make_profile()), tables_from_profile(verified(make_profile(), wild))
    assert np.array_equal(plain.verify_table_ms, with_it.verify_table_ms)
    assert plain.profile_digest != with_it.profile_digest


def test_one_repetition_is_as_unsure_as_the_least_sure(make_profile: Make, make_sample: Make) -> None:
    """And where no point has two, no interval is known: 0 would say that all are certain."""
    alone = make_sample("verify", "graph", 4, 12, None, 128, [2.0])
    tables = tables_from_profile(make_profile(repetitions=lambda ms: [0.9 * ms, ms, 1.1 * ms] * 5, extra=[alone]))
    assert tables.verify_ci_ms is not None
    share = tables.verify_ci_ms / tables.verify_table_ms
    assert share[0, -1, 12] == pytest.approx(share[0, -1, [4, 8, 16]].max(), rel=0.2)
    single = tables_from_profile(make_profile(repetitions=lambda ms: [ms]))
    assert single.verify_ci_ms is single.draft_ci_ms is None
    assert not single.verify_ci_row(4, 128).any()


def test_curves_know_of_no_verification() -> None:
    tables = build_cost_tables(None, [(1, 1.0), (4, 2.0)], max_num_reqs=4, max_num_tokens=4)
    assert tables.error.strata == []
    assert tables.error.known_to("captured") is None
