"""Faults made by hand: each has a name, a place, and a next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from specplan.costs import tables_from_profile
from specplan.costs.findings import MeasuredCurve
from specplan.costs.plausibility import judge_plausibility, outliers
from specplan.files import Finding, Profile, Sample

Make = Callable[..., Any]


def changed(profile: Profile, change: Callable[[Sample], Sample]) -> Profile:
    samples = [change(sample) if sample.model == "verify" else sample for sample in profile.samples]
    return msgspec.structs.replace(profile, samples=samples)


def found(profile: Profile, code: str) -> Finding:
    (finding,) = [finding for finding in tables_from_profile(profile).findings if finding.code == code]
    return finding


def times(factor: float) -> Callable[[Sample], Sample]:
    return lambda sample: msgspec.structs.replace(sample, repetitions_ms=[ms * factor for ms in sample.repetitions_ms])


def test_a_sound_profile_has_none_of_these(make_profile: Make) -> None:
    profile = make_profile(contexts=[64, 256])
    assert judge_plausibility(profile) == []
    codes = {finding.code for finding in tables_from_profile(profile).findings}
    assert not codes & {"outlier", "size-not-executed", "swapped-columns", "implausible-unit", "warm-up-in-samples"}


def test_replays_past_the_capture_limit_lack_the_jump(make_profile: Make) -> None:
    """24, 32 and 48 tokens, of an engine whose largest graph holds 16, were timed as replays of their own."""

    def as_replays(modes: dict[int, str]) -> Profile:
        return changed(
            make_profile(),
            lambda sample: msgspec.structs.replace(sample, mode=modes.get(sample.num_tokens, sample.mode)),
        )

    profile = as_replays({24: "graph", 32: "graph", 48: "graph"})
    finding = found(profile, "replayed-above-limit")
    assert (finding.severity, finding.place) == ("warning", "verify")
    assert "3 verify steps of 24 to 48 tokens" in finding.message
    assert "past the capture limit (16)" in finding.message
    tables = tables_from_profile(profile)
    assert tables.verify_row(4, 128)[24] == 1.0 + 3.0 + 1.0 + 0.5 + 4.0
    # Where some of these were timed eagerly, they alone are priced, and nothing is wanting.
    assert "replayed-above-limit" not in {each.code for each in tables_from_profile(as_replays({24: "graph"})).findings}


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_an_outlier(make_profile: Make, factor: float) -> None:
    def spoil(sample: Sample) -> Sample:
        is_it = (sample.mode, sample.num_reqs, sample.num_tokens) == ("graph", 4, 8)
        return times(factor)(sample) if is_it else sample

    finding = found(changed(make_profile(), spoil), "outlier")
    assert finding.place == "verify, 4 requests, context 128, size 8"
    assert "times more" in finding.message if factor > 1 else "times less" in finding.message


def curve(*ms: float) -> MeasuredCurve:
    return MeasuredCurve(place="here", sizes=np.arange(1, len(ms) + 1), ms=np.array(ms), ci_ms=None)


@pytest.mark.parametrize(
    ("ms", "outlying"),
    [
        ((1.0, 1.0, 9.0, 9.0), False),  # a stair is none
        ((1.0, 1.2, 1.0), False),  # nor is noise
        ((1.0, 1.3, 1.0), True),
        ((2.0, 1.5, 2.0), True),
        ((9.0, 1.0), False),  # nobody can tell which of two is
        ((1.0,), False),
    ],
)
def test_what_an_outlier_is(ms: tuple[float, ...], outlying: bool) -> None:
    assert bool(list(outliers("verify", [curve(*ms)]))) == outlying


def test_a_forced_size_that_ran_full_width(make_profile: Make) -> None:
    """A budget of 8 was forced, and 16 ran: every budget takes as long."""

    def full_width(sample: Sample) -> Sample:
        return msgspec.structs.replace(sample, executed_num_tokens=16) if sample.num_tokens == 8 else sample

    finding = found(changed(make_profile(), full_width), "size-not-executed")
    assert finding.place.startswith("$.samples[")
    assert "was to run 8 tokens at 8, and 16 ran" in finding.message


def test_padding_to_the_captured_size_is_no_fault(make_profile: Make, make_sample: Make) -> None:
    padded = msgspec.structs.replace(
        make_sample("verify", "graph", 4, 11, None, 128, [3.0] * 20), executed_num_tokens=16
    )
    assert judge_plausibility(make_profile(extra=[padded])) == []


def test_a_flat_profile(make_profile: Make) -> None:
    flat = changed(make_profile(), lambda sample: msgspec.structs.replace(sample, repetitions_ms=[5.0] * 20))
    assert "verify-all is all it can say" in found(flat, "flat-verify").message


def test_swapped_columns(make_profile: Make) -> None:
    """What was the context stands where the tokens were."""
    profile = msgspec.structs.replace(make_profile(contexts=[512]), capture_sizes=[512])

    def swap(sample: Sample) -> Sample:
        return msgspec.structs.replace(
            sample,
            num_tokens=sample.context_len,
            executed_num_tokens=sample.context_len,
            context_len=sample.num_tokens,
        )

    finding = found(changed(profile, swap), "swapped-columns")
    assert "as if num_tokens and context_len were swapped" in finding.message
    assert "--column num_tokens=NAME" in finding.hint


@pytest.mark.parametrize(
    ("factor", "unit", "hint"), [(1e3, "microseconds", "--unit us"), (1e-3, "seconds", "--unit s"), (1, None, "")]
)
def test_another_unit(make_profile: Make, factor: float, unit: str | None, hint: str) -> None:
    """Steps of 15 to 22 ms."""
    profile = changed(
        make_profile(), lambda sample: times((15 + sample.num_tokens / 8) / sample.repetitions_ms[0])(sample)
    )
    scaled = changed(profile, times(factor))
    if unit is None:
        assert judge_plausibility(scaled) == []
        return
    finding = found(scaled, "implausible-unit")
    assert f"these look like {unit}" in finding.message
    assert finding.hint.endswith(hint)


def test_warm_up_among_the_repetitions(make_profile: Make) -> None:
    warm = make_profile(repetitions=lambda ms: [31_000.0, *[ms] * 4])
    finding = next(each for each in judge_plausibility(warm) if each.code == "warm-up-in-samples")
    samples = len(warm.samples)
    assert f"the slowest by far in {samples} of {samples} samples" in finding.message
    for harmless in (lambda ms: [ms] * 5, lambda ms: [2 * ms, ms], lambda ms: [ms, 2 * ms, *[ms] * 4]):
        assert judge_plausibility(make_profile(repetitions=harmless)) == []
