"""Which sizes the engine captures that imported timings are to price."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from specplan.errors import ConfigError
from specplan.files.profile import Sample
from specplan.interop.timings import Facts, known
from specplan.shapes import default_capture_sizes, require_ascending

__all__ = ["capture_sizes_of", "with_limit"]

_VLLM_LIMIT = 512


def with_limit(facts: Facts) -> Facts:
    """The facts with the limit that their capture sizes come to; refused where they are none, or end elsewhere."""
    sizes = facts.capture_sizes
    if sizes is None:
        return facts
    require_ascending(sizes)
    if facts.capture_limit not in (None, sizes[-1]):
        raise ConfigError(
            f"--capture-limit is {facts.capture_limit}, expected the largest of --capture-sizes, {sizes[-1]}",
            "leave out --capture-limit",
        )
    return replace(facts, capture_limit=sizes[-1])


def capture_sizes_of(verify: Iterable[Sample], facts: Facts, *, is_unpadded: bool) -> list[int]:
    """Ascending: those that were given; else those that the passes ran at, where an engine replayed them.

    `is_unpadded` passes tell nothing of an engine: then those that vLLM captures for as many requests and drafts, up
    to the limit that was given, or to the largest step that was timed.
    """
    passes = [sample for sample in verify if not sample.num_prompt_tokens]
    if facts.capture_sizes is not None:
        _refuse_other_padding(passes, facts.capture_sizes)
        return list(facts.capture_sizes)
    if is_unpadded and passes:
        sizes = default_capture_sizes(
            known(facts.max_num_seqs),
            known(facts.num_speculative_tokens),
            max_num_batched_tokens=max(sample.num_tokens for sample in passes),
            ceiling=_VLLM_LIMIT if facts.capture_limit is None else facts.capture_limit,
        )
        return list(sizes)
    return sorted({sample.executed_num_tokens for sample in passes if sample.mode == "graph"})


def _refuse_other_padding(passes: Iterable[Sample], capture_sizes: Sequence[int]) -> None:
    padded = {sample.executed_num_tokens for sample in passes if sample.executed_num_tokens > sample.num_tokens}
    others = sorted(padded.difference(capture_sizes))
    if others:
        raise ConfigError(
            f"a step ran padded to {others[0]} tokens, which is none of the {len(capture_sizes)} --capture-sizes",
            "leave them out: the files tell which sizes were captured",
        )
