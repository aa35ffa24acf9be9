"""What decides how many drafts are proposed and verified in each step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from specplan.errors import ConfigError
from specplan.planning.ema import fewest_drafts

__all__ = ["KNOWN_POLICIES", "Losslessness", "Policy", "PolicyKind", "parse_policy"]

PolicyKind = Literal["none", "fixed", "ema", "adaptive", "oracle"]
Losslessness = Literal["lossless", "greedy-only", "anticipating"]

KNOWN_POLICIES = ("none", "fixed:K", "ema", "adaptive", "oracle")
_COMPLEXITY: dict[PolicyKind, int] = {"none": 0, "fixed": 1, "ema": 2, "adaptive": 3, "oracle": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """`none`: no drafter is loaded. `fixed`: k drafts per request, all verified. `ema`: the same, with a k that follows
    the share accepted. `adaptive`: K drafts per request, of which a budget admits the best. `oracle`: adaptive with
    outcomes in place of confidences, a bound on its ranking."""

    kind: PolicyKind
    fixed_k: int | None = None  # of `fixed`, and of nothing else

    def __post_init__(self) -> None:
        if (self.kind == "fixed") != (self.fixed_k is not None) or (self.fixed_k is not None and self.fixed_k < 0):
            raise ConfigError(
                f"policy {self.kind} with k = {self.fixed_k}: expected k of 0 or more for fixed, and none otherwise",
                f"known policies: {', '.join(KNOWN_POLICIES)}",
            )

    @property
    def name(self) -> str:
        return self.kind if self.fixed_k is None else f"{self.kind}:{self.fixed_k}"

    @property
    def loads_drafter(self) -> bool:
        return self.kind != "none"

    @property
    def has_budget(self) -> bool:
        """Whether a budget, chosen from cost tables, decides what of the drafts is verified."""
        return self.kind in ("adaptive", "oracle")

    @property
    def needs_confidence(self) -> bool:
        return self.kind == "adaptive"

    @property
    def complexity(self) -> int:
        """Orders policies by what it takes to run them: none, fixed, ema, adaptive, oracle."""
        return _COMPLEXITY[self.kind]

    def num_drafts(self, num_speculative_tokens: int) -> int:
        """The most drafts proposed per request and step, where K are configured; a step reserves tokens for them."""
        if self.kind == "none":
            return 0
        return num_speculative_tokens if self.fixed_k is None else self.fixed_k

    def fewest_drafts(self, num_speculative_tokens: int) -> int:
        """The fewest: of every policy but `ema` as many as the most."""
        return fewest_drafts(num_speculative_tokens) if self.kind == "ema" else self.num_drafts(num_speculative_tokens)

    def losslessness(self, lag: int) -> Losslessness:
        """What a budget read at this lag does to sampled output; see the design's *Losslessness*."""
        if self.kind == "oracle":
            return "anticipating"
        return "greedy-only" if self.kind == "adaptive" and lag == 0 else "lossless"


_UNNUMBERED: tuple[PolicyKind, ...] = ("none", "ema", "adaptive", "oracle")
_PLAIN_POLICIES = {policy.name: policy for policy in (Policy(kind=kind) for kind in _UNNUMBERED)}


def parse_policy(text: str) -> Policy:
    """`none`, `fixed:3`, `ema`, `adaptive` or `oracle`."""
    if policy := _PLAIN_POLICIES.get(text):
        return policy
    if match := re.fullmatch(r"fixed:([0-9]{1,9})", text):
        return Policy(kind="fixed", fixed_k=int(match[1]))
    raise ConfigError(f"unknown policy {text!r}", f"known policies: {', '.join(KNOWN_POLICIES)}; K as in fixed:3")
