"""Import of accepted lengths: JSON lines that say how much each step yielded, and nothing about confidence."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from specplan.errors import ConfigError, FileError
from specplan.files.trace import Trace, TraceMetadata
from specplan.interop.rows import json_lines

__all__ = ["import_accepted_lengths", "looks_like_steps"]

_MOST_DRAFTS = 1024
_GOES_ON = 0.6  # of positions: 0.75 to 1.0 in traces at hand, 0.41 in the logs of steps that ran on them


def import_accepted_lengths(
    path: str | os.PathLike[str],
    *,
    field: str,
    counts_bonus: bool,
    num_speculative_tokens: int | None = None,
    sampling: Literal["greedy", "sampled"] = "sampled",
) -> Trace:
    """A dense outcome-only trace from one JSON object a line, each with a list of what one step would yield.

    Entry i is the step after i + 1 output tokens, as prefill emits the first; a request has one token more than its
    list has entries.

    Args:
        field: The list's name.
        counts_bonus: Whether an entry counts the step's bonus token besides its accepted drafts.
        num_speculative_tokens: K; longer acceptances are cut to it. The longest in the file where not given.
        sampling: How the target chose its tokens, which the file does not say; "sampled" claims least.

    A line's `prompt_len`, where it has one, is the prompt's; 0 otherwise.
    """
    if num_speculative_tokens is not None and not 1 <= num_speculative_tokens <= _MOST_DRAFTS:
        raise ConfigError(
            f"K is {num_speculative_tokens}, expected 1 to {_MOST_DRAFTS} drafts a step", "pass -k 7, say"
        )
    lengths: list[list[int]] = []
    prompt_len: list[int] = []
    for row in json_lines(path):
        lengths.append(_accepted_lens(row.fields, field, int(counts_bonus), row.place))
        prompt_len.append(_prompt_len(row.fields, row.place))

    accepted_len = np.fromiter(chain.from_iterable(lengths), dtype=np.int32)
    k = max(int(accepted_len.max()), 1) if num_speculative_tokens is None else num_speculative_tokens
    if k > _MOST_DRAFTS:
        raise FileError(
            f"{path}: the longest acceptance is {k} drafts, more than the {_MOST_DRAFTS} that a step can draft",
            "cut them to what was configured: -k 7, say",
        )
    steps = np.array([len(entries) for entries in lengths], dtype=np.int32)
    return Trace(
        metadata=TraceMetadata(
            kind="dense",
            sampling=sampling,
            num_speculative_tokens=k,
            target="unknown",
            draft="unknown",
            tokenizer="unknown",
            source=Path(path).name,
            provenance={"field": field, "counts_bonus": str(counts_bonus).lower()},
        ),
        request=np.repeat(np.arange(len(steps), dtype=np.int32), steps),
        position=np.concatenate([np.arange(1, count + 1, dtype=np.int32) for count in steps]),
        confidence=None,
        accepted_len=np.minimum(accepted_len, k).astype(np.int32),
        verified_len=np.full(len(accepted_len), k, dtype=np.int32),
        arrival_s=np.zeros(len(steps)),
        prompt_len=np.array(prompt_len, dtype=np.int32),
        output_len=steps + np.int32(1),
    )


def looks_like_steps(trace: Trace) -> bool:
    """Whether rows seem to be consecutive steps rather than consecutive positions.

    Where a draft of several tokens is accepted, a step that starts one token later finds the rest of it accepted too:
    accepted_len[p + 1] >= accepted_len[p] - 1, for a drafter that goes on as it began, short of K. Steps that ran one
    after the other know nothing of this.
    """
    here, following = trace.accepted_len[:-1], trace.accepted_len[1:]
    told = (trace.request[:-1] == trace.request[1:]) & (here >= 3)
    return int(told.sum()) >= 20 and float((following[told] >= here[told] - 1).mean()) < _GOES_ON


def _accepted_lens(record: Mapping[str, Any], field: str, bonus: int, where: str) -> list[int]:
    if field not in record:
        lists = [name for name, value in record.items() if isinstance(value, list)]
        raise FileError(
            f"{where}: no field {field!r}, expected a list of counts",
            f"name one of the line's lists: {', '.join(lists) or 'it has none'}",
        )
    entries = record[field]
    if not isinstance(entries, list) or not entries:
        found = "an empty list" if entries == [] else type(entries).__name__
        raise FileError(f"{where}: {field} is {found}, expected a list of counts", "correct the line or remove it")
    for index, entry in enumerate(entries):
        if type(entry) is not int or not bonus <= entry < 2**31:  # bool is an int too
            raise FileError(
                f"{where}: {field}[{index}] is {entry!r}, expected an integer of {bonus} or more",
                "entries that count accepted drafts alone are imported with --accepted-only",
            )
    return [entry - bonus for entry in entries]


def _prompt_len(record: Mapping[str, Any], where: str) -> int:
    prompt_len = record.get("prompt_len", 0)
    if type(prompt_len) is not int or not 0 <= prompt_len < 2**31:
        raise FileError(
            f"{where}: prompt_len is {prompt_len!r}, expected an integer of 0 or more", "correct the line or remove it"
        )
    return prompt_len
