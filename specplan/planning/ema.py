"""k moved by the share of drafts that is accepted: one controller, for the engine and for the simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specplan.errors import ConfigError

__all__ = ["ALPHA", "LESS_BELOW", "MORE_ABOVE", "EmaController", "fewest_drafts"]

ALPHA = 0.2  # what the newest step weighs
_TARGET = 0.6
LESS_BELOW = 0.8 * _TARGET  # 0.48
MORE_ABOVE = 1.2 * _TARGET  # 0.72


def fewest_drafts(num_speculative_tokens: int) -> int:
    """How low the controller goes where K are configured: max(1, K // 4)."""
    return max(1, num_speculative_tokens // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmaController:
    """One k for the whole batch, K at first. After each step that verified drafts, with observed = accepted / verified,

        ratio <- observed                            the first time
        ratio <- ratio + ALPHA * (observed - ratio)  from then on
        k <- k - 1 where ratio < 0.48, k + 1 where ratio > 0.72; never beyond [max(1, K // 4), K]

    It reads outcomes of verified drafts before any are proposed for the next step: lossless.

    The update is (1 - ALPHA) * ratio + ALPHA * observed, in the order that leaves a steady ratio exactly where it is.
    Whoever computes it elsewhere keeps that order: float64 rounds, and k turns on a comparison.

    The ratio is kept when k moves, though the fewer drafts, the larger the share accepted: k goes on moving for some
    steps after the share has turned. With a reset at each move, tried on the shipped traces, k moves over half as often
    again where one request runs alone, on the luck of single steps, for throughputs within 2% of these.

    It steers by acceptance and knows no cost: a baseline. The rule is that of the first `adaptive` mode of a vLLM fork
    (IluvatarLabs/vllm), whose upper bound was 2 K.
    """

    num_speculative_tokens: int  # K
    k: int  # to draft next, per request
    ratio: float | None = None  # None: nothing verified yet

    def __post_init__(self) -> None:
        if not fewest_drafts(self.num_speculative_tokens) <= self.k <= self.num_speculative_tokens:
            raise ConfigError(
                f"ema at k = {self.k} with K = {self.num_speculative_tokens}: expected K of 1 or more and k from "
                "max(1, K // 4) to K",
                "configure one draft per request or more, and start at K",
            )

    @classmethod
    def at_start(cls, num_speculative_tokens: int) -> EmaController:
        return cls(num_speculative_tokens=num_speculative_tokens, k=num_speculative_tokens)

    def after(self, *, num_accepted: int, num_verified: int) -> EmaController:
        """The controller after a step that verified so many drafts, over all its requests, and accepted so many.

        A step without drafts, such as one that only prefills, says nothing and changes nothing.
        """
        if not 0 <= num_accepted <= num_verified:
            raise ValueError(f"{num_accepted} drafts accepted of {num_verified} verified")
        if num_verified == 0:
            return self
        observed = num_accepted / num_verified
        ratio = observed if self.ratio is None else self.ratio + ALPHA * (observed - self.ratio)
        k = self.k
        if ratio < LESS_BELOW:
            k = max(k - 1, fewest_drafts(self.num_speculative_tokens))
        elif ratio > MORE_ABOVE:
            k = min(k + 1, self.num_speculative_tokens)
        return replace(self, k=k, ratio=ratio)
