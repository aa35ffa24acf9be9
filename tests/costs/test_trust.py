"""Comparisons within a profile: ragged steps against even ones, wide first passes against narrow; and a step's
machinery.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from specplan.costs import build_cost_tables, tables_from_profile
from specplan.costs.feeds import compare_feeds
from specplan.errors import CoverageError
from specplan.files import Profile, Sample
from specplan.planning import parse_policy
from specplan.planning.prices import StepPrices, StepSize, VerifyPrices

Make = Callable[..., Any]


def ragged_of(profile: Profile, dearer: float) -> list[Sample]:
    return [
        msgspec.structs.replace(sample, lengths="ragged", repetitions_ms=[ms * dearer for ms in sample.repetitions_ms])
        for sample in profile.samples
        if (sample.model, sample.mode) == ("verify", "graph") and sample.num_reqs < sample.num_tokens
    ]


@pytest.mark.parametrize(("dearer", "found"), [(1.0, False), (1.25, True), (0.8, False)])
def test_ragged_steps_judge_the_price_of_even_ones(make_profile: Make, dearer: float, found: bool) -> None:
    ragged = ragged_of(make_profile(), dearer)
    tables = tables_from_profile(make_profile(extra=ragged))
    assert np.array_equal(tables.verify_table_ms, tables_from_profile(make_profile()).verify_table_ms)
    error = tables.error.ragged
    assert error is not None
    assert (error.points, error.bias) == (len(ragged), pytest.approx(1 / dearer - 1))
    findings = [finding for finding in tables.findings if finding.code == "ragged-dearer"]
    assert bool(findings) == found
    if found:
        assert "cost 20.0% more on average" in findings[0].message


def test_without_ragged_steps_nobody_knows(make_profile: Make) -> None:
    assert tables_from_profile(make_profile()).error.ragged is None


def draft_of(make_sample: Make, num_reqs: int, feed_len: int, k: int, repetitions: list[float]) -> Sample:
    tokens = num_reqs * (feed_len + k - 1)
    return make_sample("draft", "graph", num_reqs, tokens, k, 128, repetitions, feed_len=feed_len)


def test_a_wide_first_pass_is_compared_and_prices_nothing(make_profile: Make, make_sample: Make) -> None:
    """Of two and four tokens per request, at 1 and 4 requests: a fifth longer, and within the noise."""
    own = [sample for sample in make_profile().samples if sample.model != "draft" or sample.k != 3]
    noisy = [4.9, 5.0, 5.1] * 7
    feeds = [
        draft_of(make_sample, 1, 2, 3, [2.0] * 20),
        draft_of(make_sample, 1, 4, 3, [2.4] * 20),
        draft_of(make_sample, 4, 2, 3, noisy),
        draft_of(make_sample, 4, 4, 3, [ms + 0.01 for ms in noisy]),
    ]
    profile = msgspec.structs.replace(make_profile(), samples=[*own, *feeds])
    compared = compare_feeds(profile)
    assert [(c.num_reqs, c.k, c.narrow_len, c.wide_len) for c in compared] == [(1, 3, 2, 4), (4, 3, 2, 4)]
    assert [(c.ratio, c.is_too_close_to_call) for c in compared] == [
        (pytest.approx(1.2), False),
        (pytest.approx(5.01 / 5), True),
    ]
    tables = tables_from_profile(profile)
    assert tables.feed_costs == compared
    assert (tables.draft_row(3)[1], tables.draft_row(3)[4]) == (2.0, 5.0)
    # 0.4 ms for two tokens more at 1 request, nothing beyond noise at 4; linear between.
    assert tables.feed_ms() == pytest.approx([0.2, 0.2, 0.2 * 2 / 3, 0.2 / 3, 0.0])
    (finding,) = [finding for finding in tables.findings if finding.code == "wide-first-pass"]
    assert finding.place == "draft, 1 requests, k = 3"
    assert (
        "all 4 tokens of each request's step takes up to 20% longer than one that takes the last 2" in finding.message
    )


@pytest.mark.parametrize(("drafter_input", "more"), [("last", 0.0), ("step", 0.2)])
def test_a_drafter_that_takes_the_whole_step_pays_for_its_drafts(
    make_profile: Make, make_sample: Make, drafter_input: Any, more: float
) -> None:
    """One request, drafts narrow at 2: the first draft is one of them, each further one costs 0.2 ms."""
    own = [sample for sample in make_profile().samples if sample.model != "draft" or sample.k != 3]
    feeds = [draft_of(make_sample, 1, 2, 3, [2.0] * 20), draft_of(make_sample, 1, 4, 3, [2.4] * 20)]
    tables = tables_from_profile(msgspec.structs.replace(make_profile(), samples=[*own, *feeds]))
    verify = VerifyPrices.from_tables(tables, max_num_reqs=1, max_num_tokens=4, num_speculative_tokens=3)
    prices = StepPrices.from_tables(
        verify, tables, policy=parse_policy("adaptive"), num_speculative_tokens=3, drafter_input=drafter_input
    )
    size = StepSize(num_reqs=1, num_verifying=1, num_sampling=1, num_prompt_tokens=0, context_len=128.0)
    costs = [prices.target_ms(size, drafts) - float(verify.row(1, 128.0)[1 + drafts]) for drafts in range(4)]
    assert costs == pytest.approx([0.0, 0.0, more, 2 * more])
    none = StepPrices.from_tables(
        verify, tables, policy=parse_policy("none"), num_speculative_tokens=3, drafter_input=drafter_input
    )
    assert none.feed_ms is None


def test_a_wide_first_pass_widens_the_interval(make_profile: Make, make_sample: Make) -> None:
    """Of two medians, each 4 to 5 ms apart by 0.1: their half-widths over the two tokens that are more."""
    own = [sample for sample in make_profile().samples if sample.model != "draft" or sample.k != 3]
    feeds = [draft_of(make_sample, 1, feed, 3, [feed - 0.1, feed, feed + 0.1] * 7) for feed in (2, 4)]
    tables = tables_from_profile(msgspec.structs.replace(make_profile(), samples=[*own, *feeds]))
    (feed,) = tables.feed_costs
    verify = VerifyPrices.from_tables(tables, max_num_reqs=1, max_num_tokens=4, num_speculative_tokens=3)
    half = StepPrices.half_widths(
        verify, tables, policy=parse_policy("adaptive"), num_speculative_tokens=3, drafter_input="step"
    )
    assert half.feed_ms is not None
    assert half.feed_ms[1] == pytest.approx((feed.narrow_ci_ms + feed.wide_ci_ms) / 2) != 0


def test_tables_without_a_k_axis_cannot_charge_it_either() -> None:
    """A drafter that costs nothing pays nothing more."""
    curve = build_cost_tables([(1, 0.5), (4, 1)], [(4, 1), (8, 2)], max_num_reqs=4, max_num_tokens=8)
    free = build_cost_tables(None, [(4, 1), (8, 2)], max_num_reqs=4, max_num_tokens=8)
    for tables in (curve, free):
        verify = VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=8, num_speculative_tokens=1)

        def charge(tables: Any = tables, verify: Any = verify) -> StepPrices:
            return StepPrices.from_tables(
                verify, tables, policy=parse_policy("adaptive"), num_speculative_tokens=1, drafter_input="step"
            )

        if tables is free:
            assert charge().feed_ms is None
        else:
            with pytest.raises(CoverageError, match="do not hold what drafting costs after a whole step"):
                charge()


def test_a_wide_first_pass_that_nobody_measured_cannot_be_charged(make_profile: Make) -> None:
    tables = tables_from_profile(make_profile())
    verify = VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=16, num_speculative_tokens=3)
    with pytest.raises(CoverageError, match="do not hold what drafting costs after a whole step"):
        StepPrices.from_tables(
            verify, tables, policy=parse_policy("adaptive"), num_speculative_tokens=3, drafter_input="step"
        )


def machinery_of(make_sample: Make, metadata: float, budget: float, admission: float) -> list[Sample]:
    terms = {"metadata": metadata, "budget": budget, "admission": admission}
    return [
        make_sample(term, "eager", n, n * 4, None, 128, [ms * n, ms * n, ms * n + 0.01])
        for term, ms in terms.items()
        for n in (1, 4)
    ]


@pytest.mark.parametrize(
    ("policy", "expected"), [("none", 0.1), ("fixed:0", 0.1), ("fixed:2", 0.1), ("adaptive", 0.1 + 0.2 + 0.4)]
)
def test_a_step_pays_for_its_own_machinery(make_profile: Make, make_sample: Make, policy: str, expected: float) -> None:
    tables = tables_from_profile(make_profile(extra=machinery_of(make_sample, 0.1, 0.2, 0.4)))
    assert tables.machinery is not None
    assert tables.machinery.terms == ["metadata", "budget", "admission"]
    verify = VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=16, num_speculative_tokens=3)
    prices = StepPrices.from_tables(verify, tables, policy=parse_policy(policy), num_speculative_tokens=3)
    assert prices.overhead_ms == pytest.approx(expected * np.array([1, 1, 2, 3, 4]))


def test_a_step_without_drafts_is_laid_out_for_less(make_profile: Make, make_sample: Make) -> None:
    bare = [make_sample("bare-metadata", "eager", n, n, None, 128, [0.05 * n] * 3) for n in (1, 4)]
    tables = tables_from_profile(make_profile(extra=[*machinery_of(make_sample, 0.1, 0.2, 0.4), *bare]))
    assert tables.step_overhead_ms(has_drafts=False, has_budget=False) == pytest.approx([0.05, 0.05, 0.1, 0.15, 0.2])
    assert tables.step_overhead_ms(has_drafts=True, has_budget=False) == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.4])
    assert tables.step_overhead_ms(has_drafts=True, has_budget=True)[4] == pytest.approx(4 * (0.1 + 0.2 + 0.4))


def test_the_hosts_work_as_a_whole_takes_the_place_of_its_parts(make_profile: Make, make_sample: Make) -> None:
    host = [make_sample("host", "eager", n, n, 0, 128, [0.5] * 5) for n in (1, 4)]
    tables = tables_from_profile(make_profile(extra=[*machinery_of(make_sample, 0.1, 0.2, 0.4), *host]))
    verify = VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=16, num_speculative_tokens=3)
    prices = StepPrices.from_tables(verify, tables, policy=parse_policy("adaptive"), num_speculative_tokens=3)
    assert (prices.overhead_ms == 0.5).all()


def test_intervals_add_up_as_costs_do(make_profile: Make, make_sample: Make) -> None:
    """The half-width of a step's cost is that of each of its terms, as if all erred together."""
    profile = make_profile(
        contexts=[64, 256],
        repetitions=lambda ms: [ms * 0.9, ms, ms * 1.1] * 7,
        extra=machinery_of(make_sample, 0.1, 0.2, 0.4),
    )
    tables = tables_from_profile(profile)
    assert tables.machinery is not None
    policy = parse_policy("adaptive")
    verify = VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=16, num_speculative_tokens=3)
    half = StepPrices.half_widths(verify, tables, policy=policy, num_speculative_tokens=3)
    assert half.verify.context_ms == 0
    assert half.verify.row(3, 160.0) == pytest.approx(tables.verify_ci_row(3, 160.0)[:17])
    assert tables.verify_ci_row(3, 160.0)[8] > 0
    assert half.draft_ms[3] == pytest.approx(tables.draft_ci_row(3))
    assert half.overhead_ms == pytest.approx(tables.machinery.ci_ms.sum(axis=0))


def test_without_repetitions_no_interval_is_known() -> None:
    tables = build_cost_tables([(1, 0.5), (4, 1)], [(4, 1), (8, 2)], max_num_reqs=4, max_num_tokens=8, capture_limit=8)
    verify = VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=8, num_speculative_tokens=1)
    half = StepPrices.half_widths(verify, tables, policy=parse_policy("adaptive"), num_speculative_tokens=1)
    assert not half.verify.verify_ms.any()
    assert not half.draft_ms[1].any()
    assert not half.overhead_ms.any()
