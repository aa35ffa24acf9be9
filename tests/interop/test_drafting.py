"""What imports say of drafting that they price as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_timings import DUMP, FORWARD_CASES, case, record, reqs, request

from specplan.costs import tables_from_profile
from specplan.files import Profile
from specplan.interop import Facts, ReadingOptions, import_costs

UNTOLD = "priced as one, as the source does not tell what the drafter's first pass took"


def notes_of(
    path: Path, content: Any, format: str, drafters: dict[int, Path] | None = None, **given: Any
) -> tuple[Profile, tuple[str, ...]]:
    path.write_text(json.dumps(content))
    return import_costs([path], format=format, options=ReadingOptions(drafters=drafters), given=Facts(**given))


def dump(*drafting: tuple[int, float]) -> dict[str, Any]:
    """Of 4 requests: tokens of the step, and what drafting took."""
    records = [
        record(ct, 4, tokens, draft_gpu_ms=ms, target_verify_gpu_ms=8.0, **reqs(1000))
        for ct, (tokens, ms) in enumerate(drafting)
    ]
    return {**DUMP, "gamma": 3, "records": records}


def test_a_dump_of_drafting_that_grows_with_the_step(tmp_path: Path) -> None:
    content = dump(*(each for at in range(11) for each in ((12, 1.0 + at / 100), (16, 2.0 + at / 100))))
    profile, notes = notes_of(tmp_path / "dump", content, "sglang-dump")
    took = "drafting for 4 requests took 1.05 ms in steps of 12 tokens and 2.05 ms in steps of 16"
    assert notes == (f"{took}: {UNTOLD}",)
    # All of it is priced, and none is taken for a first pass of so many tokens.
    tables = tables_from_profile(profile)
    assert tables.draft_row(3)[4] == pytest.approx(1.55)
    assert tables.feed_costs == []


def test_a_drafting_of_vllm_that_grows_with_the_step(tmp_path: Path) -> None:
    rows = [
        {"forward_ms": 6.0, "drafter_ms": ms, "num_target_tokens": tokens, "num_reqs": 8, "full_cudagraph": True}
        for tokens, ms in ((8, 0.5), *4 * [(64, 2.0)])
    ]
    profile, notes = notes_of(tmp_path / "rows", rows, "vllm-steps", num_speculative_tokens=7, context_len=64)
    took = "drafting for 8 requests took 0.5 ms in steps of 8 tokens and 2 ms in steps of 64"
    assert notes == (f"{took}: {UNTOLD}",)
    assert tables_from_profile(profile).draft_row(7)[8] == 2.0  # the median of the five


def test_the_difference_of_two_runs(tmp_path: Path) -> None:
    cases = [case("decode", 4 * [request(1, 1025)], [2500.0]), case("verify", 4 * [request(4, 1028, 3)], [3420.0])]
    (tmp_path / "with").write_text(json.dumps(cases))
    with_drafter = {3: tmp_path / "with"}
    _, notes = notes_of(tmp_path / "alone", FORWARD_CASES, "vllm-forward", with_drafter, capture_limit=16)
    took = "drafting for 4 requests took 0.49 ms in steps of 4 tokens and 1.01 ms in steps of 16"
    assert notes == (f"{took}: {UNTOLD}",)


@pytest.mark.parametrize(
    "drafting",
    [
        [(12, 1.0), (16, 1.02)],  # no more than is worth telling
        [(12, 1.0), (12, 2.0), (12, 1.5), (16, 1.0), (16, 2.0), (16, 1.8)],  # noise
        [(12, 1.0), (12, 2.0)],  # of the same tokens
    ],
)
def test_nothing_is_said_of_drafting_that_is_alike(tmp_path: Path, drafting: list[tuple[int, float]]) -> None:
    assert notes_of(tmp_path / "dump", dump(*drafting), "sglang-dump")[1] == ()


def test_rows_that_tell_the_first_pass(tmp_path: Path) -> None:
    """1 ms of 12 tokens and 2 ms of 16: 0.25 ms for each token more."""
    rows = [
        {"timed": "verify", "mode": "graph", "num_reqs": 4, "num_tokens": 16, "context_len": 64, "ms": 8.0},
        *(
            {"timed": "draft", "mode": "graph", "num_reqs": n, "k": 3, "feed_len": feed, "context_len": 64, "ms": ms}
            for n, feed, ms in ((4, 3, 1.0), (4, 4, 2.0), (2, 4, 1.5))
        ),
    ]
    profile, notes = notes_of(tmp_path / "rows", rows, "steps")
    tables = tables_from_profile(profile)
    assert tables.draft_row(3)[4] == 1.0
    (costs,) = tables.feed_costs
    assert (costs.narrow_len, costs.wide_len, costs.ms_per_token) == (3, 4, 0.25)
    assert notes == (
        "timings of drafting in no price, as their first pass is neither the shortest of all nor one of two that are "
        "compared: 1",
    )
