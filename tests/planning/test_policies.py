from __future__ import annotations

import pytest

from specplan.errors import ConfigError
from specplan.planning import KNOWN_POLICIES, Policy, parse_policy


@pytest.mark.parametrize("text", ["none", "fixed:0", "fixed:7", "ema", "adaptive", "oracle"])
def test_a_policy_is_named_as_it_was_parsed(text: str) -> None:
    assert parse_policy(text).name == text


@pytest.mark.parametrize(
    "text", ["", "fixed", "fixed:", "fixed:-1", "fixed:1.5", "fixed:x", "Adaptive", "greedy", "none ", "ema:3"]
)
def test_unknown_policies_are_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match="unknown policy") as caught:
        parse_policy(text)
    assert all(known in caught.value.hint for known in KNOWN_POLICIES)


@pytest.mark.parametrize(("kind", "fixed_k"), [("fixed", None), ("none", 3), ("ema", 3), ("fixed", -1)])
def test_a_policy_is_valid_from_birth(kind: str, fixed_k: int | None) -> None:
    with pytest.raises(ConfigError):
        Policy(kind=kind, fixed_k=fixed_k)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "fewest", "most", "loads", "needs"),
    [
        ("none", 0, 0, False, False),
        ("fixed:3", 3, 3, True, False),
        ("fixed:0", 0, 0, True, False),
        ("ema", 1, 7, True, False),
        ("adaptive", 7, 7, True, True),
        ("oracle", 7, 7, True, False),
    ],
)
def test_what_a_policy_runs(text: str, fewest: int, most: int, loads: bool, needs: bool) -> None:
    policy = parse_policy(text)
    assert (policy.fewest_drafts(7), policy.num_drafts(7)) == (fewest, most)
    assert (policy.loads_drafter, policy.needs_confidence) == (loads, needs)


def test_losslessness() -> None:
    labels = {
        (text, lag): parse_policy(text).losslessness(lag)
        for text in ("none", "fixed:3", "ema", "adaptive", "oracle")
        for lag in (0, 1, 2)
    }
    assert {label for (text, _), label in labels.items() if text in ("none", "fixed:3", "ema")} == {"lossless"}
    assert [labels["adaptive", lag] for lag in (0, 1, 2)] == ["greedy-only", "lossless", "lossless"]
    assert {labels["oracle", lag] for lag in (0, 1, 2)} == {"anticipating"}


def test_simpler_first() -> None:
    policies = [parse_policy(text) for text in ("oracle", "adaptive", "ema", "fixed:2", "none")]
    assert [policy.name for policy in sorted(policies, key=lambda policy: policy.complexity)] == [
        "none",
        "fixed:2",
        "ema",
        "adaptive",
        "oracle",
    ]
