"""Mixed steps: what a profile's samples of them become."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from specplan.costs import tables_from_profile
from specplan.costs.mixed import price_mixed
from specplan.errors import ConfigError
from specplan.files import Failure, Profile, Sample

Make = Callable[..., Any]
CONTEXTS, VERIFYING, DRAFTS, SIZES = (64, 256), (1, 4), (0, 3), (16, 64, 256)


def mixed_ms(context: int, verifying: int, drafts: int, size: int) -> float:
    return 1.0 + size / 64 + verifying * (1 + drafts) / 16 + verifying * context / 512


@pytest.fixture
def mixed_samples(make_sample: Make) -> Callable[..., Iterator[Sample]]:
    def make(ms: Callable[..., float] = mixed_ms) -> Iterator[Sample]:
        cells = [(0, 0, 0, size) for size in SIZES]
        cells += product(CONTEXTS, VERIFYING, DRAFTS, SIZES)
        for context, verifying, drafts, size in cells:
            prompts = -(-size // 100)
            num_reqs, num_tokens = verifying + prompts, verifying * (1 + drafts) + size
            yield make_sample(
                "verify", "eager", num_reqs, num_tokens, None, context, [ms(context, verifying, drafts, size)] * 20,
                num_prefilling=prompts, num_prompt_tokens=size,
            )  # fmt: skip

    return make


def test_a_grid_by_context_requests_drafts_and_prompt_tokens(make_profile: Make, mixed_samples: Make) -> None:
    """Where nothing verifies there is one cost for every context and any drafts."""
    profile: Profile = make_profile(extra=mixed_samples())
    costs = price_mixed(profile, "running-max").costs
    assert costs is not None
    assert (costs.contexts, costs.num_verifying, costs.drafts) == ([64, 256], [0, 1, 4], [0, 3])
    assert costs.prompt_tokens == [16, 64, 256]
    for (c, context), (v, verifying), (d, drafts), (p, size) in product(
        enumerate(CONTEXTS), enumerate((0, 1, 4)), enumerate(DRAFTS), enumerate(SIZES)
    ):
        assert costs.ms[c, v, d, p] == mixed_ms(context, verifying, drafts, size)
    assert not costs.ci_ms.any()


def test_verify_passes_are_priced_as_before(make_profile: Make, mixed_samples: Make) -> None:
    without, tables = tables_from_profile(make_profile()), tables_from_profile(make_profile(extra=mixed_samples()))
    reach = tables.max_num_tokens  # past what requests bring without prompts there is no price, for there is no step
    assert reach == tables.max_num_reqs * (1 + (tables.num_speculative_tokens or 0)) < without.max_num_tokens
    assert np.array_equal(tables.verify_table_ms, without.verify_table_ms[..., : reach + 1])
    assert tables.max_step_tokens == without.max_step_tokens == without.max_num_tokens
    assert tables.contexts == without.contexts
    assert without.mixed is None
    codes = [{finding.code for finding in each.findings} for each in (without, tables)]
    assert codes[0] - codes[1] == {"mixed-not-measured"}
    assert codes[1] <= codes[0]


def test_the_error_is_that_of_sizes_left_out(make_profile: Make, mixed_samples: Make) -> None:
    """Costs that are linear in the prompt tokens are predicted without error; of three sizes one lies between."""
    assert (error := price_mixed(make_profile(extra=mixed_samples()), "none").error) is not None
    assert (error.mape, error.points) == (pytest.approx(0, abs=1e-9), 9)
    bent = mixed_samples(lambda context, verifying, drafts, size: 2.0 if size == 64 else 1.0)
    assert (error := price_mixed(make_profile(extra=bent), "none").error) is not None
    assert error.bias == pytest.approx(-0.5)


def test_a_step_with_more_prompt_tokens_costs_no_less(make_profile: Make, mixed_samples: Make) -> None:
    profile = make_profile(extra=mixed_samples(lambda c, v, d, size: {16: 2.0, 64: 1.0, 256: 4.0}[size]))
    for monotone, expected in (("running-max", [2, 2, 4]), ("pad-up", [2, 2, 4]), ("none", [2, 1, 4])):
        costs = price_mixed(profile, monotone).costs
        assert costs is not None
        assert (costs.ms == expected).all()


def test_a_draft_never_makes_a_step_cheaper(make_profile: Make, mixed_samples: Make) -> None:
    """Beside many prompt tokens a draft costs less than the noise: a budget would take all of them."""
    noise = iter(np.random.default_rng(0).uniform(0.0, 0.5, 99))
    samples = list(mixed_samples(lambda context, verifying, drafts, size: size + next(noise)))
    costs = price_mixed(make_profile(extra=samples), "running-max").costs
    assert costs is not None
    for axis in (1, 2, 3):
        assert (np.diff(costs.ms, axis=axis) >= 0).all()
    raw = price_mixed(make_profile(extra=samples), "none").costs
    assert raw is not None
    assert (np.diff(raw.ms, axis=2) < 0).any()


def test_a_size_that_could_not_run_is_named_with_the_reason(make_profile: Make, mixed_samples: Make) -> None:
    """And is priced on the line through the two below it."""
    some = [sample for sample in mixed_samples() if (sample.num_prompt_tokens, sample.shape.num_verifying) != (256, 4)]
    lost = Failure(
        model="verify", mode="eager", layout="multi-query", num_reqs=7, num_tokens=272, k=None, context_len=64,
        num_prefilling=3, num_prompt_tokens=256, message="out of device memory",
    )  # fmt: skip
    found = price_mixed(make_profile(extra=some, failures=[lost]), "running-max")
    assert [finding.code for finding in found.findings] == ["mixed-incomplete"]
    assert found.findings[0].message.endswith("; the first, 272 tokens: out of device memory")
    assert "--max-num-batched-tokens" in found.findings[0].hint
    assert found.costs is not None
    whole = price_mixed(make_profile(extra=mixed_samples()), "running-max").costs
    assert whole is not None
    assert found.costs.ms == pytest.approx(whole.ms)  # these costs are linear in the prompt tokens


def test_a_size_that_a_composition_lacks_lies_between_its_own(make_profile: Make, mixed_samples: Make) -> None:
    some = [sample for sample in mixed_samples() if (sample.num_prompt_tokens, sample.shape.num_verifying) != (64, 4)]
    found, whole = (price_mixed(make_profile(extra=each), "none").costs for each in (some, mixed_samples()))
    assert found is not None
    assert whole is not None
    assert found.prompt_tokens == [16, 64, 256]
    assert found.ms == pytest.approx(whole.ms)


def test_a_step_that_is_full_ends_its_composition_and_no_other(make_profile: Make, mixed_samples: Make) -> None:
    """Beside 16 tokens of four requests 240 of prompts fit: no other composition has that size, nor needs it."""
    full = [
        msgspec.structs.replace(
            sample,
            num_tokens=sample.num_tokens - 16,
            executed_num_tokens=sample.num_tokens - 16,
            num_prompt_tokens=240,
            repetitions_ms=[mixed_ms(sample.context_len, 4, 3, 240)] * len(sample.repetitions_ms),
        )
        if (sample.num_prompt_tokens, sample.shape.num_verifying, sample.shape.num_drafts) == (256, 4, 12)
        else sample
        for sample in mixed_samples()
    ]
    assert full != list(mixed_samples())
    found, whole = (price_mixed(make_profile(extra=each), "none").costs for each in (full, mixed_samples()))
    assert found is not None
    assert whole is not None
    assert found.prompt_tokens == [16, 64, 256]
    assert found.ms == pytest.approx(whole.ms)


def test_too_few_sizes_or_compositions_price_nothing(make_profile: Make, mixed_samples: Make) -> None:
    one = [sample for sample in mixed_samples() if sample.num_prompt_tokens == 64]
    alone = [sample for sample in mixed_samples() if sample.shape.num_verifying == 0]
    few = [sample for sample in mixed_samples() if sample.shape.num_verifying != 4 or sample.context_len == 64]
    for too_few, words in ((one, "of 9 .*, 0 were"), (alone, "of 1 .*, 1 were"), (few, "of 9 .*, 7 were")):
        found = price_mixed(make_profile(extra=too_few), "running-max")
        assert found.costs is found.error is None
        assert [finding.code for finding in found.findings] == ["mixed-too-few"]
        assert re.search(words, found.findings[0].message)


def test_samples_of_no_grid_are_found_to_be_none_at_once(make_profile: Make, make_sample: Make) -> None:
    """A thousand contexts, requests and drafts would be a grid of 10^9."""
    stray = [
        make_sample(
            "verify", "eager", n + 1, n * (1 + n) + 16, None, 100 + n, [1.0], num_prefilling=1, num_prompt_tokens=16
        )
        for n in range(1, 1000)
    ]
    found = price_mixed(make_profile(extra=stray), "none")
    assert [finding.code for finding in found.findings] == ["mixed-too-few"]


def test_repetitions_of_one_composition_count_together(make_profile: Make, make_sample: Make) -> None:
    alike = {"num_prompt_tokens": 16, "lengths": "even"}
    samples = [
        make_sample("verify", "eager", 2, 17, None, 64, [1.0, 2.0], num_prefilling=1, **alike),
        make_sample("verify", "eager", 3, 17, None, 64, [6.0], num_prefilling=2, **alike),
        make_sample("verify", "eager", 2, 65, None, 64, [8.0], num_prefilling=1, num_prompt_tokens=64),
    ]
    costs = price_mixed(make_profile(extra=samples), "none").costs
    assert costs is not None
    assert (costs.contexts, costs.num_verifying, costs.drafts) == ([64], [1], [0])
    assert costs.ms.tolist() == [[[[2.0, 8.0]]]]


def test_a_time_that_is_none_is_named(make_profile: Make, make_sample: Make) -> None:
    bad = make_sample("verify", "eager", 1, 16, None, 0, [-1.0], num_prefilling=1, num_prompt_tokens=16)
    with pytest.raises(ConfigError, match=r"samples\[\d+\]\.repetitions_ms\[0\]: expected a positive finite"):
        price_mixed(make_profile(extra=[bad]), "none")


def test_a_composition_that_fills_a_step_ends_no_grid(make_profile: Make, mixed_samples: Make) -> None:
    """4 requests with 3 drafts each bring 16 tokens, all that a step holds: no prompt fits, and nothing runs there."""
    some = [s for s in mixed_samples() if (s.shape.num_verifying, s.shape.num_drafts) != (4, 12)]
    full = msgspec.structs.replace(make_profile(extra=some), max_num_batched_tokens=16)
    found = price_mixed(full, "none")
    assert found.findings == []
    assert found.costs is not None
    assert found.costs.ms.shape == (2, 3, 2, 3)
    assert np.array_equal(found.costs.ms[:, 2, 1], found.costs.ms[:, 2, 0])
    lacking = msgspec.structs.replace(full, max_num_batched_tokens=64)
    assert [finding.code for finding in price_mixed(lacking, "none").findings] == ["mixed-too-few"]
