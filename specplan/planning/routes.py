"""Which route a step takes: what is captured of it, and whether a batch replays a graph or runs eagerly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from specplan.errors import ConfigError, InfeasibleError
from specplan.shapes import padded_size

__all__ = [
    "AttentionSupport",
    "Captured",
    "GraphMode",
    "StepRoute",
    "parse_attention",
    "parse_graph_mode",
    "resolve_graph_mode",
    "route_step",
]

# How a batch runs: as one graph, as graphs between which attention is launched from the host, or without any.
Captured = Literal["full", "piecewise", "eager"]
KNOWN_ATTENTION = ("always", "up-to:N", "uniform", "never")


class GraphMode(StrEnum):
    """What an engine captures. A mixed batch holds prompt tokens, a decode batch does not."""

    NONE = "none"
    PIECEWISE = "piecewise"
    FULL = "full"
    FULL_DECODE_ONLY = "full-decode-only"
    FULL_AND_PIECEWISE = "full-and-piecewise"

    @property
    def decode_batches(self) -> Captured:
        return _CAPTURED[self][0]

    @property
    def mixed_batches(self) -> Captured:
        return _CAPTURED[self][1]


_CAPTURED: dict[GraphMode, tuple[Captured, Captured]] = {
    GraphMode.NONE: ("eager", "eager"),
    GraphMode.PIECEWISE: ("piecewise", "piecewise"),
    GraphMode.FULL: ("full", "full"),
    GraphMode.FULL_DECODE_ONLY: ("full", "eager"),
    GraphMode.FULL_AND_PIECEWISE: ("full", "piecewise"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSupport:
    """Which query lengths an attention backend replays in a full graph.

    `always`: ragged ones of any length. `up-to`: ragged ones of at most `max_query_len` tokens. `uniform`: one length
    for all requests, fixed at capture. `never`: none.
    """

    kind: Literal["always", "up-to", "uniform", "never"]
    max_query_len: int | None = None  # in tokens; of `up-to`, and of nothing else

    def __post_init__(self) -> None:
        bounded = self.max_query_len is not None
        if (self.kind == "up-to") != bounded or (self.max_query_len is not None and self.max_query_len < 1):
            raise ConfigError(
                f"attention {self.kind} with a bound of {self.max_query_len} tokens: expected 1 or more for up-to, and "
                "none otherwise",
                f"known: {', '.join(KNOWN_ATTENTION)}; N as in up-to:8",
            )

    @property
    def name(self) -> str:
        return self.kind if self.max_query_len is None else f"{self.kind}:{self.max_query_len}"


_PLAIN_ATTENTION = {
    support.name: support
    for support in (AttentionSupport(kind="always"), AttentionSupport(kind="uniform"), AttentionSupport(kind="never"))
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRoute:
    """How a batch of `num_tokens` runs, and how many tokens it then executes."""

    num_tokens: int
    padded_tokens: int  # the captured size that is replayed; `num_tokens` where the batch runs eagerly
    mode: Literal["graph", "eager"]


def parse_graph_mode(text: str) -> GraphMode:
    """`none`, `piecewise`, `full`, `full-decode-only` or `full-and-piecewise`."""
    try:
        return GraphMode(text)
    except ValueError:
        raise ConfigError(f"unknown graph mode {text!r}", f"known graph modes: {', '.join(GraphMode)}") from None


def parse_attention(text: str) -> AttentionSupport:
    """`always`, `up-to:8`, `uniform` or `never`."""
    if match := re.fullmatch(r"up-to:([0-9]{1,9})", text):
        return AttentionSupport(kind="up-to", max_query_len=int(match[1]))
    if support := _PLAIN_ATTENTION.get(text):
        return support
    raise ConfigError(
        f"unknown attention support {text!r}", f"known: {', '.join(KNOWN_ATTENTION)}; N as in up-to:8, in tokens"
    )


def resolve_graph_mode(
    wished: GraphMode,
    *,
    has_piecewise: bool,
    attention: AttentionSupport,
    num_speculative_tokens: int,
) -> GraphMode:
    """The mode under which adaptive verification runs, given the one wished for.

    It trims each request to a length of 1 .. 1 + K that only the device knows, so decode batches need full graphs with
    attention inside. One full graph for all batches is more than that: mixed batches go piecewise, or run eagerly
    where `has_piecewise` is false.

    Raises:
        ConfigError: K is below 1; nothing is drafted, so nothing can be trimmed.
        InfeasibleError: The wished mode has no full graph of a decode batch, or attention cannot replay ragged queries
            of 1 + K tokens in one.
    """
    if num_speculative_tokens < 1:
        raise ConfigError(
            f"K is {num_speculative_tokens}, and adaptive verification trims drafts: expected 1 or more", "pass -k 1"
        )
    best = GraphMode.FULL_AND_PIECEWISE if has_piecewise else GraphMode.FULL_DECODE_ONLY
    if wished.decode_batches != "full":
        does = "captures nothing" if wished is GraphMode.NONE else "launches attention from the host, outside of graphs"
        raise InfeasibleError(
            f"graph mode {wished} {does}, and adaptive verification needs full graphs of decode batches: query lengths "
            "are decided on the device",
            f"use --graph-mode {best}",
        )
    _require_ragged_queries(attention, num_speculative_tokens)
    return wished if wished is GraphMode.FULL_DECODE_ONLY else best


def route_step(num_tokens: int, capture_sizes: Sequence[int]) -> StepRoute:
    """The smallest of the ascending `capture_sizes` that holds a batch, or eager execution past the largest.

    Raises:
        ConfigError: The batch has no tokens.
    """
    if num_tokens < 1:
        raise ConfigError(f"a batch of {num_tokens} tokens: expected 1 or more", "pass the tokens of a step")
    is_captured = bool(capture_sizes) and num_tokens <= capture_sizes[-1]
    return StepRoute(
        num_tokens=num_tokens,
        padded_tokens=padded_size(num_tokens, capture_sizes),
        mode="graph" if is_captured else "eager",
    )


def _require_ragged_queries(attention: AttentionSupport, num_speculative_tokens: int) -> None:
    query_len = 1 + num_speculative_tokens
    if attention.kind == "always":
        return
    another = f"use an attention backend whose full graphs take ragged queries of up to {query_len} tokens"
    trimmed = f"at K = {num_speculative_tokens} adaptive verification trims queries to 1 to {query_len} tokens each"
    if attention.max_query_len is not None:
        if query_len <= attention.max_query_len:
            return
        most_k = attention.max_query_len - 1
        raise InfeasibleError(
            f"attention replays ragged queries of up to {attention.max_query_len} tokens, and 1 + K = {query_len} > "
            f"{attention.max_query_len}",
            f"draft at most {most_k} (-k {most_k}), or {another}" if most_k else f"no K fits: {another}",
        )
    if attention.kind == "uniform":
        raise InfeasibleError(
            f"attention captures equal query lengths only, and {trimmed}: a trimmed batch is not what was captured",
            f"{another}, or verify every draft (fixed:k)",
        )
    raise InfeasibleError(f"attention is never part of a full graph, and {trimmed} inside one", another)
