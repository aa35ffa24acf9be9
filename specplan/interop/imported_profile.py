"""The profile that timings make. Nothing is added to what was told."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specplan import __version__
from specplan.errors import ConfigError, FileError
from specplan.files.profile import Environment, ModelInfo, Profile, Sample
from specplan.interop.graphs import capture_sizes_of, with_limit
from specplan.interop.timings import Facts, Mode, Timing, Timings, known

__all__ = ["profile_of"]

UNKNOWN = "unknown"
LONGEST_MS, MOST_TOKENS = 1e9, 2**20  # that a profile holds


def profile_of(
    read: Sequence[Timings],
    paths: Sequence[str | os.PathLike[str]],
    *,
    beside: Sequence[str | os.PathLike[str]] = (),
    given: Facts,
    citation: str | None = None,
) -> Profile:
    """The timings of one format's files, `read` from `paths`, as a profile.

    Args:
        beside: Files that were read with these.
        given: What the files do not tell.
        citation: Where they come from, for the profile's source.
    """
    first = read[0]
    timings = [timing for each in read for timing in each.timings]
    facts = given
    for each, path in zip(read, paths, strict=True):
        facts = facts.joined(each.told, str(path))
        if (each.label, each.timing_scope) != (first.label, first.timing_scope):
            raise ConfigError(
                f"{path}: is of another clock ({each.timing_scope}) than {paths[0]} ({first.timing_scope})",
                "import them on their own: their times do not compare",
            )
    if not any(timing.model == "verify" for timing in timings):
        raise FileError(
            f"{', '.join(map(str, paths))}: holds no timings of verify passes, which every step runs",
            "add the file that has them",
        )
    is_unpadded = any(each.is_unpadded for each in read)
    _refuse_unneeded(timings, given, is_unpadded=is_unpadded)
    facts = _completed(timings, with_limit(facts))
    samples = list(_samples(timings, facts))
    verify = [sample for sample in samples if sample.model == "verify"]
    has_drafts = any(sample.model in ("draft", "draft-prefill") for sample in samples)
    if facts.draft is not None and not has_drafts:
        raise ConfigError(
            f"--draft names {facts.draft}, and there are no timings of a drafter", "leave it out, or add its timings"
        )
    files = ", ".join(Path(path).name for path in (*paths, *beside))
    return Profile(
        specplan_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        source=f"imported: {first.label}, {files}" + (f"; {citation}" if citation else ""),
        environment=Environment(
            device=facts.device,
            device_type=None,
            device_uuid=None,
            sm_count=None,
            num_threads=None,
            driver=None,
            cuda=None,
            torch=None,
            python=None,
            platform=None,
            dtype=facts.dtype,
            graph_kind=first.graph_kind,
            timing_scope=first.timing_scope,
            tensor_parallel_size=facts.tensor_parallel_size,
        ),
        target=_model(facts.target),
        draft=_model(facts.draft) if has_drafts else None,
        num_speculative_tokens=known(facts.num_speculative_tokens),
        max_num_seqs=known(facts.max_num_seqs),
        max_num_batched_tokens=max(sample.num_tokens for sample in verify),
        capture_sizes=capture_sizes_of(verify, facts, is_unpadded=is_unpadded),
        complete=True,
        samples=samples,
    )


def _refuse_unneeded(timings: Sequence[Timing], given: Facts, *, is_unpadded: bool) -> None:
    """An option that would change nothing is a misunderstanding."""
    needed = {
        "context_len": any(timing.context_len is None and timing.has_context for timing in timings),
        "capture_limit": is_unpadded or any(timing.mode is None and timing.is_captured for timing in timings),
    }
    for name, is_needed in needed.items():
        if getattr(given, name) is not None and not is_needed:
            raise ConfigError(
                f"--{name.replace('_', '-')} is given, and every timing tells its own", "leave out the option"
            )


def _completed(timings: Sequence[Timing], facts: Facts) -> Facts:
    """With limits that follow from the timings: the most requests, prompts apart, and drafts that any of them has."""
    counts = [timing.num_reqs - timing.num_prefilling for timing in timings if timing.num_reqs is not None]
    ks = [timing.k for timing in timings if timing.k is not None]
    if facts.max_num_seqs is None and not counts:
        raise ConfigError(
            "the source prices steps by their tokens alone, and does not say how many requests a step may have",
            "give --max-num-seqs N, the most requests in a step",
        )
    if facts.num_speculative_tokens is None and not ks:
        raise ConfigError(
            "the source does not say how many tokens are drafted",
            "give --num-speculative-tokens K, the most drafts per request and step",
        )
    return replace(
        facts,
        max_num_seqs=max(1, *counts) if facts.max_num_seqs is None else facts.max_num_seqs,
        num_speculative_tokens=max(ks) if facts.num_speculative_tokens is None else facts.num_speculative_tokens,
    )


def _samples(timings: Iterable[Timing], facts: Facts) -> Iterator[Sample]:
    """One for each shape, in the order of its first timing; timings of one shape are its repetitions."""
    shapes: dict[tuple[object, ...], tuple[dict[str, Any], list[float], str]] = {}
    for timing in timings:
        shape = _shape(timing, facts)
        _, repetitions, _ = shapes.setdefault(tuple(shape.values()), (shape, [], timing.place))
        repetitions.extend(timing.repetitions_ms)
    limit = known(facts.num_speculative_tokens)
    for shape, repetitions, place in shapes.values():
        if shape["executed_num_tokens"] > MOST_TOKENS:
            raise FileError(
                f"{place}: a step of {shape['executed_num_tokens']} tokens, expected at most {MOST_TOKENS}",
                "correct it there, or leave it out",
            )
        for ms in repetitions:
            if not 0 < ms <= LONGEST_MS:
                raise FileError(
                    f"{place}: a step of {ms:g} ms, expected more than 0, at most {LONGEST_MS:g}",
                    "correct it there, or leave it out; `steps` takes --unit",
                )
        if shape["k"] is not None and shape["k"] > limit:
            raise FileError(
                f"{place}: k is {shape['k']}, expected at most the {limit} drafts that a request may have",
                "give a larger --num-speculative-tokens, or leave out what drafts more",
            )
        try:
            yield Sample(**shape, warmup_ms=[], repetitions_ms=repetitions, stop_reason="imported")
        except ValueError as error:
            raise FileError(f"{place}: {str(error).removeprefix('.')}", "correct it there, or leave it out") from error


def _shape(timing: Timing, facts: Facts) -> dict[str, Any]:
    """A sample's fields but its repetitions. As a step of its size may have, where the source knows no requests."""
    num_reqs = timing.num_reqs
    if num_reqs is None:
        num_reqs = min(timing.num_tokens, known(facts.max_num_seqs))
    executed = timing.num_tokens if timing.executed_num_tokens is None else timing.executed_num_tokens
    return {
        "model": timing.model,
        "mode": _mode(timing, executed, facts),
        "layout": "multi-query",
        "num_reqs": num_reqs,
        "num_tokens": timing.num_tokens,
        "executed_num_reqs": num_reqs,
        "executed_num_tokens": executed,
        "k": timing.k,
        "feed_len": timing.feed_len,
        "context_len": _context(timing, facts),
        "lengths": timing.lengths,
        "num_prefilling": timing.num_prefilling,
        "num_prompt_tokens": timing.num_prompt_tokens,
    }


def _mode(timing: Timing, executed: int, facts: Facts) -> Mode:
    if timing.mode is not None:
        return timing.mode
    if not timing.is_captured:
        return "eager"
    if facts.capture_limit is None:
        raise ConfigError(
            f"{timing.place}: the source does not tell replayed graphs from eager steps",
            "give --capture-limit N, the tokens of the engine's largest graph: 512 for vLLM's default, 0 for none; or "
            "the sizes of all its graphs: --capture-sizes 1,2,4,8",
        )
    return "graph" if executed <= facts.capture_limit else "eager"


def _context(timing: Timing, facts: Facts) -> int:
    if timing.context_len is not None:
        return timing.context_len
    if not timing.has_context:
        return 0
    if facts.context_len is None:
        raise ConfigError(
            f"{timing.place}: the source does not say how long the contexts were",
            "give --context-len N, the tokens in each request's cache",
        )
    return facts.context_len


def _model(name: str | None) -> ModelInfo:
    return ModelInfo(name=name or UNKNOWN, num_params=None, config_sha256=None, weights=None)
