"""Batches past the largest graph, and sizes that no graph is made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from specplan.costs import tables_from_profile
from specplan.files import Finding, Profile
from specplan.files.tables import Semantics

Make = Callable[..., Any]


def codes(profile: Profile) -> dict[str, Finding]:
    return {finding.code: finding for finding in tables_from_profile(profile).findings}


def test_a_full_batch_past_the_largest_graph_has_its_cost(make_profile: Make) -> None:
    """With K = 7 four requests bring 32 tokens; graphs end at 16, and above them a step takes 4 ms more."""
    found = codes(msgspec.structs.replace(make_profile(), num_speculative_tokens=7))
    assert "no-point-above-limit" not in found
    finding = found["above-capture-limit"]
    assert finding.severity == "note"
    assert "4 requests, 32 tokens, is past the largest graph (16): it runs eagerly, in 10.5 ms" in finding.message


def test_what_nobody_measured_past_it_is_a_warning(make_profile: Make) -> None:
    profile = make_profile(keep=lambda sample: sample.num_tokens <= 16)
    found = codes(msgspec.structs.replace(profile, num_speculative_tokens=7, max_num_batched_tokens=32))
    assert "above-capture-limit" not in found
    finding = found["no-point-above-limit"]
    assert finding.severity == "warning"
    assert finding.hint.endswith("--max-num-seqs 4 --max-num-batched-tokens 64")


def test_within_the_limit_nothing_is_said(make_profile: Make) -> None:
    assert not {"no-point-above-limit", "above-capture-limit"} & set(codes(make_profile()))


def test_batches_that_pay_for_padding_are_named(make_profile: Make) -> None:
    """K = 3: three requests bring 12, and run at 16, which takes half a millisecond more than 12 would."""
    steep = make_profile(repetitions=lambda ms: [ms**3] * 20)
    finding = codes(steep)["capture-gap"]
    assert finding.place == "verify, 3 requests"
    assert "no graph is of 12 tokens" in finding.message
    assert "they run at 16" in finding.message
    with_graph = [
        msgspec.structs.replace(sample, num_tokens=12, executed_num_tokens=12)
        for sample in steep.samples
        if (sample.mode, sample.num_tokens, sample.model) == ("graph", 16, "verify")
    ]
    filled = msgspec.structs.replace(steep, samples=[*steep.samples, *with_graph], capture_sizes=[1, 2, 4, 8, 12, 16])
    assert "capture-gap" not in codes(filled)


def test_what_is_found_does_not_hang_on_how_tables_are_read(make_profile: Make) -> None:
    profile = msgspec.structs.replace(make_profile(contexts=[64, 256]), num_speculative_tokens=7)
    found = [tables_from_profile(profile, semantics=name).findings for name in get_args(Semantics)]
    assert "above-capture-limit" in {finding.code for finding in found[0]}
    assert found[1:] == found[:1] * 3
