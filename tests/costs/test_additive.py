"""Whether tokens and context add up, and what follows past the longest context."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from specplan.costs import tables_from_profile
from specplan.costs.additive import fit_additive
from specplan.costs.samples import Points, verify_points
from specplan.files import CostTables, Profile, Sample
from specplan.planning import parse_policy
from specplan.planning.prices import StepPrices, StepSize, VerifyPrices

MakeProfile = Callable[..., Profile]
COSTS = Path(__file__).parents[3] / "shared" / "data" / "costs"


def with_ms(profile: Profile, ms: Callable[[Sample], float]) -> Profile:
    samples = [msgspec.structs.replace(s, repetitions_ms=[ms(s)] * 20) for s in profile.samples if s.model == "verify"]
    return msgspec.structs.replace(profile, samples=samples, draft=None)


def additive_ms(sample: Sample) -> float:
    """2 us for each token of context, whatever the tokens cost."""
    return 1.0 + (sample.num_tokens > 8) + 0.002 * sample.num_reqs * sample.context_len


def test_costs_that_add_up_are_found_out(make_profile: MakeProfile) -> None:
    fit = fit_additive(verify_points(with_ms(make_profile(contexts=[64, 256]), additive_ms)))
    assert fit is not None
    assert fit.holds
    assert fit.context_ms == pytest.approx(0.002)
    assert fit.error.mape == pytest.approx(0, abs=1e-9)


def test_costs_that_do_not_keep_their_grid(make_profile: MakeProfile) -> None:
    """Every request pays for its queries and its context at once: twice the context doubles only some of it."""
    profile = with_ms(
        make_profile(contexts=[64, 256]), lambda s: 1.0 + 0.0002 * s.num_tokens * s.context_len * s.num_reqs
    )
    tables = tables_from_profile(profile)
    assert tables.additive is not None
    assert not tables.additive.holds
    assert tables.context_ms == 0
    assert np.array_equal(tables.verify_row(4, 9000), tables.verify_row(4, 256))


def test_past_the_longest_context_the_slope_goes_on(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(with_ms(make_profile(contexts=[64, 256]), additive_ms))
    assert tables.verify_row(4, 1000)[16] == pytest.approx(2.0 + 0.002 * 4 * 1000)
    assert tables.verify_row(4, 100)[16] == pytest.approx(2.0 + 0.002 * 4 * 100)
    verify = VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=16, num_speculative_tokens=3)
    prices = StepPrices.from_tables(verify, tables, policy=parse_policy("none"), num_speculative_tokens=3)
    size = StepSize(num_reqs=4, num_verifying=4, num_sampling=4, num_prompt_tokens=0, context_len=1000.0)
    assert prices.target_ms(size, 12) == pytest.approx(2.0 + 0.002 * 4 * 1000)


@pytest.mark.parametrize("contexts", [[64], []])
def test_one_context_tells_nothing(make_profile: MakeProfile, contexts: list[int]) -> None:
    assert fit_additive(verify_points(make_profile(contexts=contexts or [9]))) is None


def test_a_point_for_every_unknown_tells_nothing() -> None:
    """Two points, two unknowns: any two costs fit."""
    points = Points(
        page=np.array([8, 16]),
        row=np.array([1, 1]),
        size=np.array([1, 1]),
        repetitions_ms=(np.ones(3), np.full(3, 9.0)),
    )
    assert fit_additive(points) is None


@pytest.mark.skipif(not COSTS.exists(), reason="needs ../shared/data")
@pytest.mark.parametrize(
    ("gpu", "model", "at_most"), [("H100", "Llama-2-7b-hf", 0.05), ("A100", "Llama-2-7b-hf", 0.06)]
)
def test_curves_of_real_gpus_nearly_add_up(gpu: str, model: str, at_most: float) -> None:
    """Kernel times of Vidur: attention is read once for all queries, and is a cost of the context alone."""
    with (COSTS / "vidur_llama2_verify_cost.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["gpu"], row["model"], row["tp"]) == (gpu, model, "1")]
    points = Points(
        page=np.array([int(row["context"]) for row in rows]),
        row=np.array([int(row["num_requests"]) for row in rows]),
        size=np.array([int(row["num_tokens"]) for row in rows]),
        repetitions_ms=tuple(np.array([float(row["step_ms"])]) for row in rows),
    )
    fit = fit_additive(points)
    assert fit is not None
    assert fit.error.mape < at_most
    assert 0 < fit.context_ms < 1e-3


def tables_of_contexts(make_profile: MakeProfile, contexts: tuple[int, ...], *, is_additive: bool) -> CostTables:
    profile = make_profile(contexts=contexts)
    samples = [
        msgspec.structs.replace(
            sample,
            repetitions_ms=[
                1
                + 0.01 * sample.num_tokens
                + 0.0001 * sample.num_reqs * sample.context_len ** (1 if is_additive else 2)
            ]
            * 6,
        )
        for sample in profile.samples
    ]
    return tables_from_profile(msgspec.structs.replace(profile, samples=samples))


def test_a_step_counts_as_extrapolated_past_the_longest_context(make_profile: MakeProfile) -> None:
    """Past twice that, where what each token of context adds is known."""

    def furthest(tables: CostTables) -> list[bool]:
        prices = StepPrices.from_tables(
            VerifyPrices.from_tables(tables, max_num_reqs=4, max_num_tokens=32, num_speculative_tokens=7),
            tables,
            policy=parse_policy("fixed:1"),
            num_speculative_tokens=7,
        )
        size = StepSize(num_reqs=4, num_verifying=4, num_sampling=4, num_prompt_tokens=0, context_len=256)
        return [prices.is_extrapolated(replace(size, context_len=context), 4) for context in (256, 257, 512, 513)]

    additive = tables_of_contexts(make_profile, (128, 256), is_additive=True)
    assert additive.context_ms == pytest.approx(0.0001)
    assert furthest(additive) == [False, False, False, True]
    curved = tables_of_contexts(make_profile, (64, 128, 256), is_additive=False)
    assert curved.context_ms == 0
    assert furthest(curved) == [False, True, True, True]
