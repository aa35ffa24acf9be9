from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from specplan.costs import build_cost_tables, tables_from_profile
from specplan.costs.findings import judge_profile
from specplan.files import CostTables, Failure, Finding, Profile, Sample

MakeProfile = Callable[..., Profile]
MakeSample = Callable[..., Sample]


def build(verify: Sequence[tuple[int, float]], **changes: Any) -> CostTables:
    options: dict[str, Any] = {"max_num_reqs": 4, "max_num_tokens": max(size for size, _ in verify), "capture_limit": 8}
    return build_cost_tables([(1, 1.0), (4, 2.0)], verify, **{**options, **changes})


def only(tables: CostTables) -> Finding:
    (finding,) = tables.findings
    assert "\n" not in finding.message + finding.hint
    assert finding.hint
    return finding


def test_a_plain_curve_has_none() -> None:
    assert build([(1, 1.0), (4, 1.5), (8, 3.0)]).findings == []


def test_flat() -> None:
    finding = only(build([(1, 1.0), (4, 1.01), (8, 1.02)]))
    assert (finding.code, finding.severity) == ("flat-verify", "warning")
    assert finding.message == "verify costs rise 2.0% from 1 to 8 tokens: verify-all is all it can say"


def test_one_point() -> None:
    finding = only(build([(8, 1.0)]))
    assert (finding.code, finding.message) == ("one-point-curve", "one verify size (8 tokens) prices every step")


def test_one_point_at_one_is_all_there_is_to_measure() -> None:
    tables = build_cost_tables([(1, 1.0)], [(1, 1.0), (8, 2.0)], max_num_reqs=1, max_num_tokens=8, capture_limit=8)
    assert tables.findings == []


def test_non_monotone_names_the_worst_fall() -> None:
    finding = only(build([(1, 2.0), (2, 1.9), (4, 1.5), (8, 3.0)]))
    assert (finding.code, finding.place) == ("non-monotone", "verify, 2 to 4 tokens")
    assert finding.message == "verify costs fall at 2 of 3 neighbouring sizes, at most by 21.1%"


def test_a_fall_within_noise_is_none() -> None:
    assert build([(1, 2.0), (4, 1.99), (8, 3.0)]).findings == []


def test_a_fall_within_its_intervals_is_none(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    def profile(spread: float) -> Profile:
        dip = make_sample("verify", "graph", 4, 16, None, 128, np.linspace(3.3 - spread, 3.3 + spread, 20).tolist())
        return make_profile(keep=lambda s: not (s.mode == "graph" and s.num_tokens == 16), extra=[dip])

    assert "non-monotone" in {f.code for f in tables_from_profile(profile(0.01)).findings}
    assert "non-monotone" not in {f.code for f in tables_from_profile(profile(1.5)).findings}


def test_extrapolated() -> None:
    finding = only(build([(1, 1.0), (8, 3.0)], max_num_tokens=10))
    assert finding.code == "extrapolated"
    assert finding.message == "verify costs past 8 tokens (to 10) were not measured: continued along the last slope"
    assert finding.hint == "measure up to 10 tokens, or plan for at most 8"


@pytest.mark.parametrize("monotone", ["running-max", "none"])
def test_held_where_the_last_slope_falls(monotone: str) -> None:
    tables = build([(1, 1.0), (4, 5.0), (8, 3.0)], max_num_tokens=10, monotone=monotone)
    assert [finding.code for finding in tables.findings] == ["non-monotone", "extrapolation-held"]


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({}, None, ""),
        ({"complete": False}, "incomplete-profile", "the sweep was stopped before its end"),
        ({"keep": lambda s: s.num_tokens != 8}, "incomplete-profile", "1 of 5 capture sizes were not measured"),
        (
            {"keep": lambda s: s.k is None or s.mode == "eager"},
            "eager-draft",
            "drafting was measured eagerly only, which inflates it where serving replays graphs",
        ),
        (
            {"repetitions": lambda ms: [ms] * 4},
            "few-repetitions",
            "66 of 66 samples have fewer than 20 repetitions, at least 4",
        ),
        (
            {"repetitions": lambda ms: [ms, ms, 1.5 * ms, 1.5 * ms, 1.5 * ms] * 4},
            "wide-spread",
            "66 of 66 samples spread over 10% (interquartile), the one named by 33%",
        ),
    ],
)
def test_profiles(make_profile: MakeProfile, changes: dict[str, Any], code: str | None, message: str) -> None:
    findings = {finding.code: finding.message for finding in judge_profile(make_profile(contexts=[0, 128], **changes))}
    assert findings == ({code: message} if code else {})


@pytest.mark.parametrize("source", ["measured", "imported: step timings, steps.csv"])
def test_hints_are_open_to_whoever_has_the_costs(make_profile: MakeProfile, source: str) -> None:
    """One repetition, one context, a fall, and neither prompts nor the drafter's pass over them."""
    profile = make_profile(source=source, repetitions=lambda ms: [20.0 - ms])
    by_code = {finding.code: finding.hint for finding in tables_from_profile(profile).findings}
    own = {"few-repetitions", "non-monotone", "one-context", "mixed-not-measured", "draft-prefill-not-measured"}
    assert own <= set(by_code)
    if source == "measured":
        assert "specplan profile" in by_code["mixed-not-measured"]
    else:
        assert all("import" in by_code[code] and "specplan profile" not in by_code[code] for code in own)


def test_host_samples_are_judged_as_no_pass_is(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    """Steps as they came: one of a shape may be all there is, and they differ more than one pass run over and over."""
    wild = [make_sample("host", "eager", 2, tokens, 3, 0, [0.1, 0.9, 5.0]) for tokens in (2, 8)]
    assert judge_profile(make_profile(contexts=[0, 128], extra=wild)) == []
    prefill = make_sample("draft-prefill", "eager", 2, 16, None, 0, [0.1, 0.9, 5.0])
    found = judge_profile(make_profile(contexts=[0, 128], extra=[*wild, prefill]))
    assert [finding.code for finding in found] == ["few-repetitions", "wide-spread"]
    assert found[0].message == "1 of 67 samples have fewer than 20 repetitions, at least 3"
    assert found[1].place == "draft-prefill eager, 2 requests, 16 tokens"


def test_batch_expansion_is_not_judged(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    """It prices nothing: few repetitions, a wide spread, one more context or size of it are no finding."""
    wild = make_sample("verify", "graph", 2, 16, None, 512, [0.1, 0.9, 5.0], "batch-expansion")
    assert judge_profile(make_profile(contexts=[0, 128], extra=[wild])) == []
    (one,) = judge_profile(make_profile(extra=[wild]))
    assert one.code == "one-context"
    (missing,) = judge_profile(make_profile(contexts=[0, 128], extra=[wild], keep=lambda s: s.num_tokens != 16))
    assert missing.message == "1 of 5 capture sizes were not measured"


def test_failures_of_what_is_priced_and_of_what_is_compared(make_profile: MakeProfile) -> None:
    def failure(layout: str, num_reqs: int) -> Failure:
        fields: dict[str, Any] = {"model": "verify", "mode": "graph", "layout": layout, "k": None, "context_len": 0}
        return Failure(**fields, num_reqs=num_reqs, num_tokens=16, message="out of device memory")

    failures = [failure("batch-expansion", 1), failure("multi-query", 2), failure("batch-expansion", 4)]
    priced, compared = judge_profile(make_profile(contexts=[0, 128], failures=failures))
    assert (priced.code, priced.severity, priced.place) == ("failed-points", "warning", "$.failures[1]")
    assert priced.message == (
        "1 shapes could not run; the first, verify graph of 2 requests and 16 tokens: out of device memory"
    )
    assert (compared.code, compared.severity, compared.place) == ("failed-layout-points", "note", "$.failures[0]")
    assert compared.message == (
        "2 batch-expansion shapes could not run; the first, verify graph of 1 requests and 16 tokens: "
        "out of device memory"
    )


def test_contexts(make_profile: MakeProfile, make_sample: MakeSample) -> None:
    (one,) = judge_profile(make_profile())
    assert (one.code, one.severity) == ("one-context", "note")
    elsewhere = make_sample("draft", "graph", 1, 1, 0, 512, [1.0] * 20)
    (pooled,) = judge_profile(make_profile(contexts=[0, 128], extra=[elsewhere]))
    assert (pooled.code, pooled.message) == (
        "draft-contexts-pooled",
        "draft costs of 2 contexts (0 to 512 tokens) count as one",
    )
