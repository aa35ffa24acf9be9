from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specplan.costs import tables_from_profile
from specplan.costs.pricing import reference_row
from specplan.errors import ConfigError, CoverageError
from specplan.files import CostTables, Profile, Sample
from specplan.files.tables import Semantics

MakeProfile = Callable[..., Profile]
MakeSample = Callable[..., Sample]


def codes(tables: CostTables) -> list[str]:
    return [finding.code for finding in tables.findings]


def test_axes_and_header(make_profile: MakeProfile) -> None:
    profile = make_profile(contexts=[0, 128])
    tables = tables_from_profile(profile)
    assert (tables.contexts, tables.num_reqs, tables.draft_ks) == ([0, 128], [1, 2, 4], [0, 1, 2, 3])
    assert (tables.max_num_tokens, tables.max_num_reqs) == (48, 4)
    assert (tables.capture_sizes, tables.capture_limit) == ([1, 2, 4, 8, 16], 16)
    assert tables.profile_digest == profile.digest()
    assert tables.environment == profile.environment
    assert tables.num_speculative_tokens == 3


def test_measured_cells_are_the_medians(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile(repetitions=lambda ms: [ms - 0.01, ms, ms + 0.5]))
    for n, sizes in ((1, [1, 2, 4]), (2, [2, 4, 8]), (4, [4, 8, 16])):
        row = tables.verify_row(n, 128)
        assert row[sizes].tolist() == [1.0 + 0.125 * t + 0.25 * n + 0.5 for t in sizes]
        assert set(tables.verify_sources(n, 128)[sizes]) == {"m"}


def test_padded_up_to_the_limit_and_smooth_above(make_profile: MakeProfile) -> None:
    row = tables_from_profile(make_profile()).verify_row(4, 128)
    assert row[[9, 12, 15]].tolist() == [row[16]] * 3
    assert row[[17, 20, 23]].tolist() == [row[24]] * 3  # up to the first eager size, its cost
    assert row[28] == (row[24] + row[32]) / 2
    sources = "".join(tables_from_profile(make_profile()).verify_sources(4, 128))
    assert sources[4:17] == "mpppmpppppppm"
    assert sources[17:25] == "iiiiiiim"


def test_between_measured_requests(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile())
    assert tables.verify_row(3, 128)[4] == 1.0 + 0.5 + 0.75 + 0.5
    assert tables.verify_sources(3, 128)[4] == "i"


def test_a_size_no_batch_so_small_was_measured_at_is_as_much_cheaper_and_says_so(make_profile: MakeProfile) -> None:
    """Of one request no step has over 4 tokens. A step of 3 requests has 12, and lies between 2 and 4."""
    tables = tables_from_profile(make_profile())
    assert tables.verify_row(1, 128)[48] == 1.0 + 0.125 * 48 + 0.25 + 0.5 + 4.0
    assert tables.verify_row(3, 128)[12] == 1.0 + 0.125 * 16 + 0.75 + 0.5
    assert tables.verify_sources(1, 128)[[8, 16, 48]].tolist() == ["x", "x", "x"]
    # Of 2 and 4 requests only 4 ran 16 tokens; a step of 3 that does lies between the two.
    assert tables.verify_sources(3, 128)[16] == "i"
    assert tables.verify_sources(4, 128)[48] == "m"


def test_a_hole_in_the_requests_is_filled_from_both_sides(make_profile: MakeProfile) -> None:
    whole = tables_from_profile(make_profile())
    holed = tables_from_profile(
        make_profile(keep=lambda s: not (s.num_reqs == 2 and s.num_tokens == 4 and s.k is None))
    )
    assert holed.verify_row(2, 128).tolist() == whole.verify_row(2, 128).tolist()  # costs are linear in requests
    assert whole.verify_sources(2, 128)[3:5].tolist() == ["p", "m"]
    assert holed.verify_sources(2, 128)[3:5].tolist() == ["i", "i"]


def test_between_contexts(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile(contexts=[0, 128]))
    assert tables.verify_row(4, 64)[16] == 1.0 + 2.0 + 1.0 + 0.25
    assert "one-context" not in codes(tables)
    assert "one-context" in codes(tables_from_profile(make_profile()))


def test_the_draft_is_priced_by_graphs_alone(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile())
    assert tables.draft_row(0).tolist() == [0.375, 0.375, 0.5, 0.75, 0.75]
    assert tables.draft_row(3)[1] == 0.25 + 1.5 + 0.125
    assert tables.draft_capture_limit is None
    assert ["".join("mpix"[s] for s in row) for row in tables.draft_source] == ["mmmpm"] * 4


def test_an_eager_draft_does_not_pad_and_is_a_finding(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile(keep=lambda s: s.model == "verify" or s.mode == "eager"))
    assert tables.draft_row(0)[3] == 9.0 + 0.25 + 0.375
    assert tables.draft_capture_limit == 0
    assert "eager-draft" in codes(tables)


def test_a_k_that_was_not_measured_lies_between_its_neighbours(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile(keep=lambda s: s.k != 2))
    assert tables.draft_ks == [0, 1, 3]
    assert tables.draft_row(2)[1] == 0.25 + 1.0 + 0.125


def test_no_draft_is_free(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile(draft=None, keep=lambda s: s.model == "verify"))
    assert tables.draft_ms.tolist() == [0.0] * 5
    assert "free-drafter" in codes(tables)


def letters(source: Any) -> str:
    return "".join("mpix"[cell] for cell in source)


def test_golden_host(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    """Medians per requests, whatever k and tokens; linear between, and on along the last slope."""
    host = [
        make_sample("host", "eager", 2, 8, 3, 128, [1.0, 1.5, 9.0]),
        make_sample("host", "eager", 2, 40, 0, 0, [1.25, 2.0]),
        make_sample("host", "eager", 4, 4, 0, 128, [2.5] * 3),
    ]
    many = [make_sample("verify", "graph", 8, 8, None, 128, [9.0])]
    tables = tables_from_profile(make_profile(extra=[*host, *many], max_num_seqs=8), max_num_reqs=8)
    assert tables.overhead_ms.tolist() == [1.5, 1.5, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]
    assert tables.overhead_source is not None
    assert letters(tables.overhead_source) == "xxmimxxxx"
    assert tables.overhead_ci_ms is not None
    assert tables.overhead_ci_ms[4] == 0 < tables.overhead_ci_ms[2]
    (finding,) = (finding for finding in tables.findings if finding.place == "host")
    assert finding.message == "host costs past 4 requests (to 8) were not measured: continued along the last slope"
    # The shapes by turns: the earlier half of the two requests' repetitions is [1, 1.25, 1.5], the later one [2, 9].
    assert tables.error.overhead is not None
    assert (tables.error.overhead.points, tables.error.overhead.bias) == (2, pytest.approx((1.25 / 5.5 - 1) / 2))


def test_golden_drafter_prefill(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    """Nothing without tokens, then the first point's cost; linear between, and on along the last slope."""
    prefill = [
        make_sample("draft-prefill", "eager", 1, 4, None, 0, [0.5, 0.5, 9.0]),
        make_sample("draft-prefill", "eager", 2, 8, None, 0, [1.0, 1.5]),
        make_sample("draft-prefill", "eager", 4, 8, None, 64, [2.0]),
    ]
    tables = tables_from_profile(make_profile(extra=prefill), max_num_tokens=10)
    assert tables.draft_prefill_ms.tolist() == [0.0, 0.5, 0.5, 0.5, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
    assert tables.draft_prefill_source is not None
    assert letters(tables.draft_prefill_source) == "mxxxmiiimxx"
    assert tables.draft_prefill_ci_ms is not None
    assert tables.draft_prefill_ci_ms[0] == 0
    assert tables.error.draft_prefill is not None
    assert tables.error.draft_prefill.points == 2
    assert [finding.code for finding in tables.findings if finding.place == "draft-prefill"] == ["extrapolated"]


def test_what_was_not_measured_is_free_and_a_note(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile())
    assert tables.overhead_ms.tolist() == [0.0] * 5
    assert tables.draft_prefill_ms.tolist() == [0.0] * 49
    assert tables.overhead_source is tables.overhead_ci_ms is tables.error.overhead is None
    assert tables.draft_prefill_source is tables.draft_prefill_ci_ms is tables.error.draft_prefill is None
    notes = {finding.code: finding for finding in tables.findings if finding.code.endswith("-not-measured")}
    assert set(notes) == {"host-not-measured", "mixed-not-measured", "draft-prefill-not-measured"}
    assert {note.severity for note in notes.values()} == {"note"}
    assert notes["host-not-measured"].message == (
        "the host's work in a step was not measured and is not in these costs"
    )
    alone = tables_from_profile(make_profile(draft=None, keep=lambda s: s.model == "verify"))
    assert "draft-prefill-not-measured" not in codes(alone)  # there is no drafter to prefill
    assert "host-not-measured" in codes(alone)


def test_one_host_point_holds_for_more_requests_with_a_warning(
    make_profile: MakeProfile, make_sample: MakeSample
) -> None:
    one = [make_sample("host", "eager", 2, 8, 3, 128, [1.0])]
    tables = tables_from_profile(make_profile(extra=one), max_num_reqs=4)
    assert tables.overhead_ms.tolist() == [1.0] * 5
    assert tables.overhead_source is not None
    assert letters(tables.overhead_source) == "xxmxx"
    found = [finding for finding in tables.findings if finding.place == "host"]
    assert [(finding.code, finding.severity) for finding in found] == [
        ("one-point-curve", "warning"),
        ("extrapolation-held", "warning"),
    ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    data=st.data(),
    model=st.sampled_from(["host", "draft-prefill"]),
    monotone=st.sampled_from(["running-max", "pad-up", "none"]),
)
def test_rows_follow_the_pricing_rule(
    make_profile: MakeProfile, make_sample: MakeSample, data: st.DataObject, model: str, monotone: Any
) -> None:
    costs = st.lists(st.floats(0.01, 100), min_size=1, max_size=4)
    points = data.draw(st.dictionaries(st.integers(1, 12), costs, min_size=2))
    extra = [
        make_sample("host", "eager", size, size, 0, 0, ms)
        if model == "host"
        else make_sample("draft-prefill", "eager", 1, size, None, 0, ms)
        for size, ms in points.items()
    ]
    tables = tables_from_profile(make_profile(extra=extra), monotone=monotone, max_num_tokens=20)
    row = tables.overhead_ms if model == "host" else tables.draft_prefill_ms
    sizes = sorted(points)
    expected = reference_row(
        sizes,
        [float(np.median(points[size])) for size in sizes],
        capture_limit=0,
        max_size=len(row) - 1,
        monotone=monotone,
    )
    assert row[1:].tolist() == expected[1:]
    assert row[0] == (expected[0] if model == "host" else 0)
    if monotone == "running-max":
        assert np.all(np.diff(row) >= 0)


def test_narrower_and_longer_than_the_profile(make_profile: MakeProfile) -> None:
    tables = tables_from_profile(make_profile(), max_num_reqs=3, max_num_tokens=64)
    assert tables.num_reqs == [1, 2, 3]
    assert tables.max_num_reqs == 3
    assert tables.verify_row(3, 128)[4] == 1.0 + 0.5 + 0.75 + 0.5
    assert tables.verify_row(3, 128)[64] == 1.0 + 8.0 + 0.75 + 0.5 + 4.0
    assert "extrapolated" in codes(tables)


def test_running_max_lifts_a_dip(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    dip = [make_sample("verify", "graph", 4, 16, None, 128, [0.5] * 6)]
    profile = make_profile(keep=lambda s: not (s.mode == "graph" and s.num_tokens == 16), extra=dip)
    eight = 1.0 + 1.0 + 1.0 + 0.5
    assert tables_from_profile(profile).verify_row(4, 128)[[8, 16]].tolist() == [eight, eight]
    assert tables_from_profile(profile, monotone="none").verify_row(4, 128)[[8, 16]].tolist() == [eight, 0.5]
    assert tables_from_profile(profile, monotone="pad-up").verify_row(4, 128)[[8, 16]].tolist() == [0.5, 0.5]
    assert "non-monotone" in codes(tables_from_profile(profile, monotone="pad-up"))


def test_uncertainty_reaches_the_cells(make_profile: MakeProfile) -> None:
    rng = np.random.default_rng(0)
    exact = tables_from_profile(make_profile())
    noisy = tables_from_profile(make_profile(repetitions=lambda ms: (ms * rng.lognormal(0, 0.02, 50)).tolist()))
    assert exact.verify_ci_ms is not None
    assert noisy.verify_ci_ms is not None
    assert noisy.draft_ci_ms is not None
    assert np.all(exact.verify_ci_ms == 0)
    assert np.all(noisy.verify_ci_ms > 0)
    assert np.all(noisy.draft_ci_ms > 0)
    assert np.median(noisy.verify_ci_ms / noisy.verify_table_ms) < 0.02


def test_held_out_error(make_profile: MakeProfile) -> None:
    error = tables_from_profile(make_profile()).error
    assert error.captured is not None
    assert error.smooth is not None
    assert error.draft is not None
    assert (error.captured.mape, error.captured.points) == (0.0, 9)
    assert (error.smooth.mape, error.smooth.points) == (pytest.approx(0, abs=1e-12), 1)
    assert (error.draft.mape, error.draft.points) == (0.0, 12)
    # Odd repetitions 10% dearer than even ones: the tables overstate by that.
    biased = tables_from_profile(make_profile(repetitions=lambda ms: [1.1 * ms, ms] * 3)).error
    assert biased.captured is not None
    assert biased.captured.bias == pytest.approx(0.1)
    assert tables_from_profile(make_profile(repetitions=lambda ms: [ms])).error.captured is None


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"keep": lambda s: s.model == "draft" or s.mode == "eager"},
            CoverageError,
            "the profile names 5 capture sizes and has no graph samples of the verify pass",
        ),
        (
            {"keep": lambda s: False, "capture_sizes": []},
            CoverageError,
            "the profile has no samples of the verify pass",
        ),
        (
            {"keep": lambda s: s.model == "verify"},
            CoverageError,
            "the profile names a draft (draft) and has no draft samples",
        ),
    ],
)
def test_a_profile_that_lacks_what_tables_need(
    make_profile: MakeProfile, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        tables_from_profile(make_profile(**changes))
    assert str(raised.value) == message


def test_asked_for_more_than_was_measured(make_profile: MakeProfile) -> None:
    with pytest.raises(CoverageError, match="tables for 5 requests: the profile measured verify passes of at most 4"):
        tables_from_profile(make_profile(), max_num_reqs=5)
    with pytest.raises(ConfigError, match="monotone: expected one of"):
        tables_from_profile(make_profile(), monotone="up")  # type: ignore[arg-type]


def test_an_interrupted_profile_prices_what_it_has(make_profile: MakeProfile) -> None:
    profile = make_profile(keep=lambda s: s.num_tokens != 16 and (s.k is None or s.num_reqs < 4), complete=False)
    tables = tables_from_profile(profile)
    assert (tables.capture_sizes, tables.capture_limit) == ([1, 2, 4, 8], 8)
    assert tables.verify_row(4, 128)[16] == tables.verify_row(4, 128)[24]
    finding = next(finding for finding in tables.findings if finding.code == "incomplete-profile")
    assert finding.message == "the sweep was stopped before its end; 1 of 5 capture sizes were not measured"
    assert [f.code for f in tables.findings if f.place == "draft"] == ["extrapolated"]


def test_nothing_captured_is_smooth(make_profile: MakeProfile) -> None:
    profile = make_profile(capture_sizes=[], keep=lambda s: s.mode == "eager")
    tables = tables_from_profile(profile)
    row = tables.verify_row(4, 128)
    assert (tables.capture_limit, row[12]) == (0, (row[8] + row[16]) / 2)
    assert "eager-draft" not in codes(tables)


def test_round_trip(make_profile: MakeProfile, make_sample: MakeSample, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    terms = [make_sample("host", "eager", n, n, 0, 0, [0.1 * n, 0.3]) for n in (1, 4)] + [
        make_sample("draft-prefill", "eager", 1, t, None, 0, [0.01 * t]) for t in (8, 48)
    ]
    profile = make_profile(
        contexts=[0, 128], repetitions=lambda ms: (ms * rng.lognormal(0, 0.02, 9)).tolist(), extra=terms
    )
    profile.write(tmp_path / "profile.json")
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    tables_from_profile(profile).write(first)
    tables_from_profile(Profile.read(tmp_path / "profile.json")).write(second)
    assert first.read_bytes() == second.read_bytes()
    again = CostTables.read(first)
    built = tables_from_profile(profile)
    for name in ("verify_table_ms", "overhead_ms", "overhead_source", "draft_prefill_ms", "draft_prefill_ci_ms"):
        assert np.array_equal(getattr(again, name), getattr(built, name))


def test_steps_of_other_lengths_are_none_of_the_price(
    make_profile: Callable[..., Profile], make_sample: Callable[..., Sample]
) -> None:
    """Ragged queries cost more here, spread contexts less; drafters and mixed steps know the contexts alone."""
    mixed = [
        make_sample("verify", "eager", 1 + n, n + size, None, 64 * n, [8.0], num_prefilling=1, num_prompt_tokens=size)
        for n in (0, 1)
        for size in (16, 64)
    ]
    profile = make_profile(extra=mixed)
    priced = [sample for sample in profile.samples if sample.model in ("verify", "draft")]
    scaled = {"spread": 0.5, "ragged": 3.0}
    others = [
        msgspec.structs.replace(
            sample, lengths=lengths, repetitions_ms=[ms * factor for ms in sample.repetitions_ms], device_ms=[]
        )
        for lengths, factor in scaled.items()
        for sample in priced
        if (sample.model == "verify" and not sample.shape.is_mixed) or lengths == "spread"
    ]
    both = msgspec.structs.replace(profile, samples=[*profile.samples, *others])
    even = tables_from_profile(both)
    assert even.verify_ms.tolist() == tables_from_profile(profile).verify_ms.tolist()
    assert even.profile_digest == both.digest()
    for lengths, factor in scaled.items():
        tables = tables_from_profile(both, lengths=lengths)
        np.testing.assert_allclose(tables.verify_ms, even.verify_ms * factor)
        np.testing.assert_allclose(tables.draft_ms, even.draft_ms * 0.5)
        assert tables.mixed is not None
        assert (tables.mixed.ms == 4.0).all()


def test_costs_past_what_a_table_holds_are_refused_in_one_line(
    make_profile: MakeProfile, make_sample: MakeSample
) -> None:
    huge = make_sample("verify", "eager", 4, 64, None, 128, [1e9])
    with pytest.raises(CoverageError, match=r"no table can hold: \.verify_ms.*at most 1e\+09, got") as raised:
        tables_from_profile(make_profile(extra=[huge]), max_num_tokens=4096)
    for semantics in get_args(Semantics):  # findings are of padded costs, also where others are read
        with pytest.raises(CoverageError, match="no table can hold"):
            tables_from_profile(make_profile(extra=[huge]), max_num_tokens=4096, semantics=semantics)
    assert "\n" not in raised.value.message


def test_ragged_mixed_steps_lie_between_none_and_all_drafts(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    """A budget's tables know three points of drafts, the others two."""
    samples = [
        make_sample(
            "verify", "eager", 3, 2 + drafts + size, None, 64, [ms],
            num_prefilling=1, num_prompt_tokens=size, lengths=lengths,
        )
        for lengths, drafts, ms in (("spread", 0, 2.0), ("spread", 6, 8.0), ("ragged", 2, 7.0))
        for size in (8, 16)
    ]  # fmt: skip
    spread = [msgspec.structs.replace(sample, lengths="spread") for sample in make_profile().samples]
    ragged = [msgspec.structs.replace(sample, lengths="ragged") for sample in spread if sample.model == "verify"]
    profile = make_profile(keep=lambda sample: False, extra=[*samples, *spread, *ragged])
    for lengths, drafts, costs in (("spread", [0, 3], [2.0, 8.0]), ("ragged", [0, 1, 3], [2.0, 7.0, 8.0])):
        mixed = tables_from_profile(profile, lengths=lengths).mixed  # type: ignore[arg-type]
        assert mixed is not None
        assert (mixed.drafts, mixed.ms[0, 0, :, 0].tolist()) == (drafts, costs)
