"""Two sets of costs held against each other."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from builders import CPU_ENVIRONMENT, make_profile_of_every_region
from hypothesis import given
from hypothesis import strategies as st

from specplan.costs import build_cost_tables, tables_from_profile
from specplan.costs.comparable import REGIONS, Cost, Point, costs_of
from specplan.costs.compare import Comparison, RegionComparison, compare_costs
from specplan.errors import ConfigError, CoverageError
from specplan.files import CostTables, ModelInfo, Profile, Sample

OPPOSITE = {"slower": "faster", "faster": "slower"}


def of_samples(*samples: Sample, **changes: Any) -> Profile:
    return make_profile_of_every_region(samples=list(samples), **changes)


def captured(repetitions_ms: list[float], num_tokens: int = 4, **changes: Any) -> Sample:
    fields: dict[str, Any] = {
        "model": "verify",
        "mode": "graph",
        "layout": "multi-query",
        "num_reqs": 1,
        "num_tokens": num_tokens,
        "executed_num_reqs": 1,
        "executed_num_tokens": num_tokens,
        "k": None,
        "context_len": 128,
        "warmup_ms": [],
        "repetitions_ms": repetitions_ms,
        "stop_reason": "converged",
    }
    return Sample(**fields | changes)


def region(comparison: Comparison, name: str = "captured") -> RegionComparison:
    (found,) = (each for each in comparison.regions if each.region == name)
    return found


class TestGolden:
    def test_a_fifth_slower_everywhere(self) -> None:
        comparison = compare_costs(make_profile_of_every_region(), make_profile_of_every_region(scale=1.2))
        assert comparison.kind == "profiles"
        assert [(each.region, each.verdict, len(each.points)) for each in comparison.regions] == [
            (name, "slower", 2) for name in REGIONS
        ]
        assert comparison.slower == comparison.regions
        first = region(comparison).points[0]
        assert first.point == Point(context_len=128, num_reqs=1, num_tokens=4, lengths="even", mode="graph")
        assert (first.old_ms, first.new_ms) == (1.0, 1.2)
        assert first.ratio.interval == pytest.approx((1.2, 1.2))  # every repetition took as long

    @pytest.mark.parametrize(
        ("old_ci_ms", "new_ms", "new_ci_ms", "interval", "verdict"),
        [
            # sqrt(0.003^2 + 0.004^2) = 0.005; ln 1.05 = 0.04879; exp(0.04379), exp(0.05379)
            (0.03, 10.5, 0.042, (1.044763, 1.055263), "slower"),
            # sqrt(0.03^2 + 0.04^2) = 0.05: exp(-0.00121), exp(0.09879)
            (0.3, 10.5, 0.42, (0.998791, 1.103835), "too close to call"),
            # ln 1.005 = 0.0049875: exp(-0.0000125), exp(0.0099875) = 1.010038 > 1.01
            (0.03, 10.05, 0.0402, (0.999988, 1.010038), "too close to call"),
            # ln 1.004 = 0.0039920: exp(-0.001008), exp(0.008992) = 1.009033 < 1.01
            (0.03, 10.04, 0.04016, (0.998993, 1.009033), "same"),
            # ln 0.9 = -0.1053605: exp(-0.1103605), exp(-0.1003605)
            (0.03, 9.0, 0.036, (0.895511, 0.904511), "faster"),
        ],
    )
    def test_an_interval_worked_out_by_hand(
        self, old_ci_ms: float, new_ms: float, new_ci_ms: float, interval: tuple[float, float], verdict: str
    ) -> None:
        def tables(ms: float, ci_ms: float) -> CostTables:
            built = tables_from_profile(make_profile_of_every_region())
            shape = built.verify_table_ms.shape
            return msgspec.structs.replace(
                built, verify_table_ms=np.full(shape, ms), verify_ci_ms=np.full(shape, ci_ms)
            )

        comparison = compare_costs(tables(10.0, old_ci_ms), tables(new_ms, new_ci_ms))
        assert comparison.kind == "tables"
        for found in (region(comparison), *region(comparison).points):
            assert found.ratio is not None
            assert found.ratio.estimate == pytest.approx(new_ms / 10)
            assert found.ratio.interval == pytest.approx(interval, abs=1e-6)
            assert found.verdict == verdict
        assert region(comparison, "draft").verdict == "same"

    def test_a_region_is_the_geometric_mean_of_its_points(self) -> None:
        """Twice as slow at one, twice as fast at the other: 1, and both are shown."""
        old = of_samples(captured([1.0] * 6), captured([1.0] * 6, 8))
        new = of_samples(captured([2.0] * 6), captured([0.5] * 6, 8))
        found = region(compare_costs(old, new))
        assert found.ratio is not None
        assert found.ratio.estimate == pytest.approx(1.0)
        assert found.verdict == "same"
        assert found.counts == {"slower": 1, "faster": 1}
        assert found.worst is not None
        assert (found.worst.point.num_tokens, found.worst.ratio.estimate) == (4, 2.0)

    def test_the_ends_of_its_interval_as_well(self) -> None:
        """Points of 0 and of 10% either way give 5%: as sure as they are on the whole, and not surer for being two."""
        old = tables_from_profile(make_profile_of_every_region())
        assert old.verify_ci_ms is not None
        ci_ms = np.zeros_like(old.verify_ci_ms)
        at = np.flatnonzero(np.arange(ci_ms.shape[-1]) == 4)
        ci_ms[..., at] = 0.1 * old.verify_table_ms[..., at]
        found = region(compare_costs(msgspec.structs.replace(old, verify_ci_ms=ci_ms), old))
        assert [point.ratio.interval for point in found.points] == [
            pytest.approx((math.exp(-0.1), math.exp(0.1))),
            pytest.approx((1.0, 1.0)),
        ]
        assert found.ratio is not None
        assert found.ratio.interval == pytest.approx((math.exp(-0.05), math.exp(0.05)))


def test_it_is_near_the_bootstrap_of_the_ratio() -> None:
    rng = np.random.default_rng(0)
    old, new = rng.lognormal(0.0, 0.05, 60), rng.lognormal(0.1, 0.08, 40)
    draws = [np.median(values[rng.integers(0, len(values), (20_000, len(values)))], axis=1) for values in (old, new)]
    low, high = np.percentile(draws[1] / draws[0], [2.5, 97.5])
    found = region(compare_costs(of_samples(captured(old.tolist())), of_samples(captured(new.tolist()))))
    assert found.ratio is not None
    assert found.ratio.interval is not None
    assert found.ratio.estimate == pytest.approx(np.median(new) / np.median(old))
    assert math.log(found.ratio.interval[1] / found.ratio.interval[0]) == pytest.approx(math.log(high / low), rel=0.15)


REPETITIONS = st.lists(st.floats(0.01, 100), min_size=1, max_size=12)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    samples = make_profile_of_every_region().samples
    chosen = draw(st.lists(st.sampled_from(range(len(samples))), min_size=1, unique=True))
    return of_samples(*(msgspec.structs.replace(samples[at], repetitions_ms=draw(REPETITIONS)) for at in chosen))


class TestProperties:
    @given(profiles())
    def test_nothing_is_faster_or_slower_than_itself(self, profile: Profile) -> None:
        for found in compare_costs(profile, profile).regions:
            for each in (found, *found.points):
                assert each.verdict in ("same", "too close to call", "undecided")
                assert each.ratio is None or each.ratio.estimate == 1.0

    @given(profiles(), profiles(), st.sampled_from([0.0, 0.01, 0.3]))
    def test_swapped_the_verdicts_swap(self, old: Profile, new: Profile, margin: float) -> None:
        try:
            there, back = (compare_costs(*pair, margin=margin) for pair in ((old, new), (new, old)))
        except CoverageError:
            return
        for one, other in zip(there.regions, back.regions, strict=True):
            assert one.region == other.region
            assert OPPOSITE.get(one.verdict, one.verdict) == other.verdict
            assert (one.num_only_old, one.num_only_new) == (other.num_only_new, other.num_only_old)
            for point, swapped in zip(one.points, other.points, strict=True):
                assert point.point == swapped.point
                assert OPPOSITE.get(point.verdict, point.verdict) == swapped.verdict
                assert point.ratio.estimate == pytest.approx(1 / swapped.ratio.estimate)

    @given(st.floats(0, 0.05), st.floats(0.01, 10))
    def test_a_fifth_more_is_slower_everywhere(self, spread: float, scale: float) -> None:
        old = make_profile_of_every_region(spread=spread, scale=scale)
        new = make_profile_of_every_region(spread=spread, scale=1.2 * scale)
        for costs in ((old, new), (tables_from_profile(old), tables_from_profile(new))):
            comparison = compare_costs(*costs)
            assert [found.region for found in comparison.slower] == list(REGIONS)
            assert {point.verdict for found in comparison.regions for point in found.points} == {"slower"}

    @given(profiles(), profiles())
    def test_a_verdict_is_where_the_interval_lies(self, old: Profile, new: Profile) -> None:
        try:
            comparison = compare_costs(old, new, margin=0.05)
        except CoverageError:
            return
        for found in comparison.regions:
            for point in found.points:
                if point.ratio.interval is None:
                    assert point.verdict == "undecided"
                    continue
                low, high = point.ratio.interval
                assert low <= point.ratio.estimate <= high
                if low > 1.0501:
                    assert point.verdict == "slower"
                elif high < 1 / 1.0501:
                    assert point.verdict == "faster"
                elif low < 1.0499 and high > 1 / 1.0499:  # the interval reaches the margin
                    if low > 1 / 1.0499 and high < 1.0499:
                        assert point.verdict == "same"
                    elif low < 1 / 1.0501 or high > 1.0501:
                        assert point.verdict == "too close to call"


class TestWhatIsCompared:
    def test_below_six_repetitions_there_is_no_interval(self) -> None:
        """Five may all lie on one side of the median, with probability 2 / 2^5 > 5%."""
        for count, verdict in ((5, "undecided"), (6, "slower")):
            new = of_samples(captured([2.0] * count))
            for pair in ((of_samples(captured([1.0] * 20)), new), (new, of_samples(captured([4.0] * 20)))):
                found = region(compare_costs(*pair))
                assert [found.verdict, found.points[0].verdict] == [verdict] * 2
                assert (found.ratio is None) == (count == 5)
                assert found.points[0].ratio.estimate == 2.0

    def test_points_without_an_interval_say_nothing_of_their_region(self) -> None:
        old = of_samples(captured([1.0] * 6), captured([1.0] * 3, 8))
        new = of_samples(captured([1.0] * 6), captured([9.0] * 3, 8))
        found = region(compare_costs(old, new))
        assert (found.verdict, found.counts) == ("same", {"same": 1, "undecided": 1})
        assert found.worst is not None
        assert found.worst.verdict == "same"

    def test_what_prices_no_step_is_left_out(self) -> None:
        """Eager at a captured size, another layout, a pass's end, drafts that were launched one by one."""
        extra = [
            captured([1.0] * 6, mode="eager"),
            captured([1.0] * 6, layout="batch-expansion"),
            captured([1.0] * 6, model="head", mode="eager"),
            captured([1.0] * 6, model="draft", mode="eager", k=3),
        ]
        profile = make_profile_of_every_region()
        more = msgspec.structs.replace(profile, samples=[*profile.samples, *extra])
        assert costs_of(more) == costs_of(profile)
        assert [len(points) for points in costs_of(of_samples(*extra)).values()] == [0, 0, 0, 1, 0, 0, 0]

    def test_replays_past_the_limit_are_of_smooth_steps(self) -> None:
        profile = of_samples(captured([1.0] * 6, num_tokens=64), capture_sizes=[4, 8])
        assert region(compare_costs(profile, profile), "smooth").points

    def test_points_of_another_mode_or_shape_are_others(self) -> None:
        """A drafter that could not be captured any more is not held against the one that was."""
        draft = captured([1.0] * 6, model="draft", k=3)
        eager = msgspec.structs.replace(draft, mode="eager")
        longer = captured([1.0] * 6, context_len=256)
        with pytest.raises(CoverageError, match="no point was measured in both: 1 in OLD, 1 in NEW"):
            compare_costs(of_samples(draft), of_samples(eager))
        with pytest.raises(CoverageError, match="2 in OLD, 0 in NEW"):
            compare_costs(of_samples(draft, longer), of_samples())
        found = region(compare_costs(of_samples(captured([1.0] * 6), longer), of_samples(captured([1.0] * 6))))
        assert (len(found.points), found.num_only_old, found.num_only_new) == (1, 1, 0)

    def test_samples_of_a_point_count_as_one_and_the_hosts_by_requests(self) -> None:
        halves = of_samples(captured([1.0] * 3), captured([3.0] * 4))
        assert costs_of(halves)["captured"] == {
            Point(context_len=128, num_reqs=1, num_tokens=4, lengths="even", mode="graph"): Cost(
                ms=3.0, ci_ms=pytest.approx(1.0)
            )
        }
        host = {"model": "host", "mode": "eager", "k": 3}
        steps = of_samples(captured([1.0] * 3, **host), captured([1.0] * 3, 8, **host, context_len=7))
        assert list(costs_of(steps)["host"]) == [Point(num_reqs=1)]

    def test_cells_of_tables_that_were_measured(self) -> None:
        tables = tables_from_profile(make_profile_of_every_region())
        costs = costs_of(tables)
        assert {name: len(points) for name, points in costs.items()} == dict.fromkeys(REGIONS, 2)
        assert list(costs["captured"]) == [
            Point(context_len=128, num_reqs=1, num_tokens=4),
            Point(context_len=128, num_reqs=2, num_tokens=8),
        ]
        assert list(costs["draft"]) == [Point(num_reqs=1, k=3), Point(num_reqs=2, k=3)]
        assert list(costs["draft-prefill"]) == [Point(num_tokens=8), Point(num_tokens=16)]

    def test_tables_that_do_not_say_how_sure(self) -> None:
        def curves(ms: float) -> CostTables:
            return build_cost_tables(None, [(1, ms), (8, 2.0)], max_num_reqs=4, max_num_tokens=8, capture_limit=8)

        found = compare_costs(curves(1.0), curves(1.5)).regions
        assert [(each.region, each.verdict, len(each.points)) for each in found] == [("captured", "undecided", 2)]
        assert [point.ratio.estimate for point in found[0].points] == pytest.approx([1.5, 1.0])

    @pytest.mark.parametrize("count", [1, 2, 5, 6, 25])
    def test_tables_are_no_surer_than_the_profiles_they_were_made_of(self, count: int) -> None:
        old, new = (
            make_profile_of_every_region(
                samples=[
                    msgspec.structs.replace(sample, repetitions_ms=sample.repetitions_ms[:1] * count)
                    for sample in make_profile_of_every_region(scale=scale).samples
                ]
            )
            for scale in (1.0, 1.2)
        )
        of_tables = compare_costs(tables_from_profile(old), tables_from_profile(new))
        verdict = "undecided" if count < 6 else "slower"
        for comparison in (compare_costs(old, new), of_tables):
            assert {found.verdict for found in comparison.regions} == {verdict}
        assert of_tables.old.fewest_repetitions == (count if count < 6 else None)


class TestDifferentThings:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"device": "another CPU"}, "device: a CPU in OLD, another CPU in NEW"),
            ({"num_threads": 1}, "processors: 2 threads in OLD, 1 thread in NEW"),
            ({"dtype": "bfloat16"}, "dtype: float32 in OLD, bfloat16 in NEW"),
            ({"timing_scope": "all of it"}, "timing scope: step in OLD, all of it in NEW"),
            ({"graph_kind": "cuda-graph"}, "graph kind: static in OLD, cuda-graph in NEW"),
        ],
    )
    def test_are_refused_unless_asked_for(self, changes: dict[str, Any], message: str) -> None:
        old = make_profile_of_every_region()
        new = make_profile_of_every_region(environment=msgspec.structs.replace(CPU_ENVIRONMENT, **changes))
        for pair in ((old, new), (tables_from_profile(old), tables_from_profile(new))):
            with pytest.raises(ConfigError, match="costs of different things") as raised:
                compare_costs(*pair)
            assert message in raised.value.message
            assert "--across" in raised.value.hint
            comparison = compare_costs(*pair, across=True)
            assert len(comparison.differences) == 1
            assert {found.verdict for found in comparison.regions} == {"same"}

    def test_other_models_and_all_that_differs_in_one_line(self) -> None:
        environment = msgspec.structs.replace(CPU_ENVIRONMENT, dtype="float16", tensor_parallel_size=2)
        new = make_profile_of_every_region(
            environment=environment, target=ModelInfo(name="other", num_params=1, config_sha256="ff")
        )
        old = make_profile_of_every_region(environment=msgspec.structs.replace(CPU_ENVIRONMENT, tensor_parallel_size=1))
        with pytest.raises(ConfigError) as raised:
            compare_costs(old, new)
        assert raised.value.message == (
            "these are costs of different things: dtype: float32 in OLD, float16 in NEW; tensor parallel size: 1 in "
            "OLD, 2 in NEW; target: target (config 00) in OLD, other (config ff) in NEW"
        )

    def test_cells_made_by_another_rule(self) -> None:
        profile = make_profile_of_every_region()
        with pytest.raises(ConfigError, match="monotone: running-max in OLD, none in NEW"):
            compare_costs(tables_from_profile(profile), tables_from_profile(profile, monotone="none"))

    def test_what_nobody_knows_is_said_and_not_refused(self) -> None:
        nobody = msgspec.structs.replace(CPU_ENVIRONMENT, device=None, dtype=None)
        comparison = compare_costs(make_profile_of_every_region(), make_profile_of_every_region(environment=nobody))
        assert [(each.aspect, each.first, each.second) for each in comparison.unknown] == [
            ("device", "a CPU", None),
            ("dtype", "float32", None),
            ("tensor_parallel_size", None, None),
        ]
        assert comparison.differences == comparison.remarks == []

    def test_what_one_compares_is_remarked_upon(self) -> None:
        gpu = {"device": "NVIDIA H100", "sm_count": 132, "num_threads": None}
        old = msgspec.structs.replace(CPU_ENVIRONMENT, **gpu, device_uuid="a", driver="550.1")
        new = msgspec.structs.replace(CPU_ENVIRONMENT, **gpu, device_uuid="b", driver="560.2")
        comparison = compare_costs(
            make_profile_of_every_region(environment=old),
            make_profile_of_every_region(environment=new, num_speculative_tokens=7, capture_sizes=[4, 8, 12]),
        )
        assert [(each.aspect, each.first, each.second) for each in comparison.remarks] == [
            ("device_uuid", "a", "b"),
            ("driver", "550.1", "560.2"),
            ("num_speculative_tokens", "11", "7"),
            ("capture_sizes", "2, up to 8 tokens", "3, up to 12 tokens"),
        ]
        assert {found.verdict for found in comparison.regions} == {"same"}

    def test_a_profile_against_tables(self) -> None:
        profile = make_profile_of_every_region()
        with pytest.raises(ConfigError, match="OLD is a profile and NEW is cost tables") as raised:
            compare_costs(profile, tables_from_profile(profile), across=True)
        assert "specplan tables" in raised.value.hint

    @pytest.mark.parametrize("margin", [-0.01, 1.0, math.nan, math.inf])
    def test_a_margin_that_is_none(self, margin: float) -> None:
        profile = make_profile_of_every_region()
        with pytest.raises(ConfigError, match="the margin is"):
            compare_costs(profile, profile, margin=margin)


def test_numbers_that_no_machine_gives_stay_finite() -> None:
    old, new = of_samples(captured([5e-324] * 6)), of_samples(captured([1e-300] * 3 + [1e9] * 3))
    for pair in ((old, new), (new, old)):
        comparison = compare_costs(*pair)
        for found in comparison.regions[0].points:
            assert found.ratio.interval is not None
            assert all(math.isfinite(number) for number in (found.ratio.estimate, *found.ratio.interval))
        assert msgspec.json.decode(msgspec.json.encode(comparison), type=Comparison) == comparison


def test_what_is_wrong_with_either_is_passed_on() -> None:
    shaky = make_profile_of_every_region(spread=0.5)
    comparison = compare_costs(make_profile_of_every_region(), shaky)
    assert comparison.old.warnings == []
    assert [warning for warning in comparison.new.warnings if "spread over 10%" in warning]
    tables = tables_from_profile(shaky)
    assert set(comparison.new.warnings) <= set(compare_costs(tables, tables).new.warnings)
    assert (comparison.new.digest, comparison.new.device) == (shaky.digest(), "a CPU")


def test_tables_that_are_read_differently_are_not_compared() -> None:
    profile = make_profile_of_every_region()
    with pytest.raises(ConfigError, match="semantics: padded in OLD, floor in NEW"):
        compare_costs(tables_from_profile(profile), tables_from_profile(profile, semantics="floor"))
