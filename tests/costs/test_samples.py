from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from specplan.costs.samples import (
    draft_points,
    draft_prefill_points,
    host_points,
    verify_points,
)
from specplan.costs.sheets import fill_sheet, hold_impossible
from specplan.errors import ConfigError
from specplan.files import Profile, Sample
from specplan.files.tables import Source

MakeProfile = Callable[..., Profile]
MakeSample = Callable[..., Sample]


def test_verify_points_run_in_the_mode_a_step_of_that_size_would(make_profile: MakeProfile) -> None:
    points = verify_points(make_profile())
    at = dict(zip(zip(points.row.tolist(), points.size.tolist(), strict=True), points.median_ms.tolist(), strict=True))
    assert at[4, 16] == 1.0 + 2.0 + 1.0 + 0.5  # graph, not the eager one 4 ms above it
    assert at[4, 24] == 1.0 + 3.0 + 1.0 + 0.5 + 4.0
    assert sorted(size for row, size in at if row == 1) == [1, 2, 4]


def test_replays_past_the_limit_stand_in_where_nothing_was_timed_eagerly(
    make_profile: MakeProfile, make_sample: MakeSample
) -> None:
    def is_up_to_limit(sample: Sample) -> bool:
        return sample.model == "draft" or sample.num_tokens <= 16

    replayed = [make_sample("verify", "graph", 4, t, None, 128, [ms]) for t, ms in ((24, 5.0), (48, 8.0))]
    points = verify_points(make_profile(keep=is_up_to_limit, extra=replayed))
    above = points.size > 16
    assert (points.size[above].tolist(), points.median_ms[above].tolist()) == ([24, 48], [5.0, 8.0])
    # Beside eager steps they would lie below the line of these.
    one_eager = make_sample("verify", "eager", 4, 32, None, 128, [9.0])
    points = verify_points(make_profile(keep=is_up_to_limit, extra=[*replayed, one_eager]))
    assert points.size[points.size > 16].tolist() == [32]


def test_verify_points_are_of_one_layout(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    expanded = [make_sample("verify", "graph", 4, 16, None, 128, [9.0], "batch-expansion")]
    profile = make_profile(extra=expanded)
    assert verify_points(profile).median_ms.tolist() == verify_points(make_profile()).median_ms.tolist()
    points = verify_points(profile, "batch-expansion")
    assert (points.row.tolist(), points.size.tolist(), points.median_ms.tolist()) == ([4], [16], [9.0])


def test_draft_points_are_graphs_where_there_are_any(make_profile: MakeProfile) -> None:
    assert draft_points(make_profile()).median_ms.max() < 9.0
    eager = draft_points(make_profile(keep=lambda sample: sample.model == "verify" or sample.mode == "eager"))
    assert eager.median_ms.min() > 9.0


def test_padding_counts_by_what_ran(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    ragged = msgspec.structs.replace(
        make_sample("verify", "graph", 3, 5, None, 128, [7.0]), executed_num_reqs=4, executed_num_tokens=8
    )
    points = verify_points(make_profile(keep=lambda sample: False, extra=[ragged]))
    assert (points.row.tolist(), points.size.tolist()) == ([3], [8])


def test_a_shape_measured_again_has_all_its_repetitions(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    again = [make_sample("verify", "graph", 1, 1, None, 128, values) for values in ([1.0, 2.0], [9.0])]
    points = verify_points(make_profile(keep=lambda sample: False, extra=again))
    assert [values.tolist() for values in points.repetitions_ms] == [[1.0, 2.0, 9.0]]
    assert points.median_ms.tolist() == [2.0]


def test_the_host_counts_by_requests_and_the_drafters_prefill_by_tokens(
    make_profile: MakeProfile, make_sample: MakeSample
) -> None:
    extra = [
        make_sample("host", "eager", 2, 8, 3, 128, [1.0, 2.0]),
        make_sample("host", "eager", 2, 40, 0, 256, [9.0]),  # other tokens, k and context
        make_sample("host", "eager", 1, 1, 0, 0, [4.0]),
        make_sample("draft-prefill", "eager", 1, 16, None, 0, [3.0]),
        make_sample("draft-prefill", "eager", 4, 16, None, 32, [5.0]),  # other requests and context
        make_sample("draft-prefill", "eager", 4, 8, None, 0, [2.0]),
    ]
    profile = make_profile(extra=extra)
    host, prefill = host_points(profile), draft_prefill_points(profile)
    assert host.size.tolist() == [1, 2]
    assert [values.tolist() for values in host.repetitions_ms] == [[4.0], [1.0, 9.0, 2.0]]  # shapes by turns
    assert prefill.size.tolist() == [8, 16]
    assert [values.tolist() for values in prefill.repetitions_ms] == [[2.0], [3.0, 5.0]]
    assert len(host_points(make_profile()).size) == len(draft_prefill_points(make_profile()).size) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_bad_repetition_is_named(make_profile: MakeProfile, make_sample: MakeSample, bad: float) -> None:
    profile = make_profile(
        keep=lambda sample: False, extra=[make_sample("verify", "graph", 1, 1, None, 128, [1.0, bad])]
    )
    with pytest.raises(ConfigError) as raised:
        verify_points(profile)
    assert raised.value.message == (
        f"profile: $.samples[0].repetitions_ms[1]: expected a positive finite number of milliseconds, got {bad}"
    )


def test_fill() -> None:
    sheet = fill_sheet(
        np.array([4, 2, 4, 8]),
        np.array([8, 8, 16, 16]),
        np.array([3.0, 2.0, 5.0, 9.0]),
        np.array([0.3, 0.2, 0.5, 0.9]),
        rows=np.array([1, 2, 3, 4, 6, 8]),
    )
    assert sheet.sizes.tolist() == [8, 16]
    third = pytest.approx(10 / 3)  # of 4 requests, as many times as 2 cost of them at 8 tokens; and 8, at 16
    assert sheet.ms.T.tolist() == [[2.0, 2.0, 2.5, 3.0, 3.0, pytest.approx(5.4)], [5.0, third, 5.0, 5.0, 7.0, 9.0]]
    assert sheet.ci_ms[1].tolist() == [0.2, pytest.approx(1 / 3)]
    assert sheet.ci_ms[4].tolist() == [0.3, pytest.approx(0.7)]
    m, i, x = Source.MEASURED, Source.INTERPOLATED, Source.EXTRAPOLATED
    assert sheet.source.T.tolist() == [[x, m, i, m, x, x], [x, x, x, m, i, m]]


def test_fewer_tokens_than_requests_cost_what_as_many_do() -> None:
    """(4 requests, 2 tokens) cannot be, and noise in what smaller batches cost there must not lift what can."""
    sheet = fill_sheet(
        np.array([2, 2, 4, 4]),
        np.array([2, 4, 4, 8]),
        np.array([9.0, 5.0, 6.0, 7.0]),
        np.zeros(4),
        rows=np.array([2, 4]),
    )
    held = hold_impossible(sheet, np.array([2, 4]))
    assert held.ms.tolist() == [[9.0, 5.0, pytest.approx(7 * 5 / 6)], [6.0, 6.0, 7.0]]
    assert held.source[1].tolist() == [Source.PADDED, Source.MEASURED, Source.MEASURED]
