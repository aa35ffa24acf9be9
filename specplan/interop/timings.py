"""Steps as other tools have timed them, and what else they tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from specplan.errors import ConfigError
from specplan.shapes import Lengths

__all__ = ["Facts", "Mode", "Timing", "Timings", "known"]

Mode = Literal["graph", "eager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Repetitions of one step. Its fields are those of a profile's sample; None is what the source does not tell."""

    place: str  # in its file: "steps.csv: line 3"
    num_tokens: int
    repetitions_ms: tuple[float, ...]
    model: Literal["verify", "draft", "draft-prefill", "host"] = "verify"
    mode: Mode | None = None
    num_reqs: int | None = None  # None: the source prices verify passes by their tokens alone
    executed_num_tokens: int | None = None
    context_len: int | None = None
    k: int | None = None
    feed_len: int | None = None  # of each request, in the first pass of a drafter's step
    lengths: Lengths = "even"
    num_prefilling: int = 0
    num_prompt_tokens: int = 0

    @property
    def is_captured(self) -> bool:
        """Whether it is a pass that engines replay as a graph, where one is captured."""
        return self.model in ("draft", "verify") and not self.num_prompt_tokens

    @property
    def has_context(self) -> bool:
        return self.model in ("draft", "verify")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What prices rest on besides times: as the source tells it, or else whoever imports it."""

    device: str | None = None
    target: str | None = None
    draft: str | None = None
    dtype: str | None = None
    tensor_parallel_size: int | None = None
    num_speculative_tokens: int | None = None
    max_num_seqs: int | None = None
    context_len: int | None = None  # of timings that do not tell theirs
    capture_limit: int | None = None  # in tokens: up to it, timings that do not tell their mode are of replayed graphs
    capture_sizes: tuple[int, ...] | None = None  # all of the engine's, ascending; None: graphs.py says which

    def joined(self, other: Facts, where: str) -> Facts:
        """Both together; refused where they contradict each other."""
        told = {each.name: getattr(other, each.name) for each in fields(self)}
        for name, theirs in told.items():
            mine = getattr(self, name)
            if None not in (mine, theirs) and mine != theirs:
                raise ConfigError(
                    f"{where}: its {name} is {theirs}, expected {mine} as an option or another file says",
                    "leave out the option, or import the files on their own",
                )
        return replace(self, **{name: value for name, value in told.items() if value is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """What a format's reader finds in a file."""

    label: str  # what the format is called in a profile's source
    timing_scope: str
    timings: Sequence[Timing]
    told: Facts = field(default_factory=Facts)
    graph_kind: Literal["cuda-graph"] | None = None
    is_unpadded: bool = False  # every step was replayed at its own size, whatever an engine captures
    notes: tuple[str, ...] = ()  # what was left out, and why


def known(value: int | None) -> int:
    """A fact that whoever made the profile has seen to."""
    assert value is not None
    return value
