"""`specplan import trace`: make a trace from what others have recorded."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specplan.cli.output import JsonOption, print_json, remark

__all__ = ["import_trace"]


class Sampling(StrEnum):
    GREEDY = "greedy"
    SAMPLED = "sampled"


def import_trace(
    source: Annotated[Path, typer.Argument(help="JSONL, one request a line, with a list of accepted lengths.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Trace to write (.parquet or .jsonl).")],
    field: Annotated[
        str, typer.Option(help="The field with the list: one entry per output position, not per step that ran.")
    ],
    counts_bonus: Annotated[
        bool,
        typer.Option(
            "--counts-bonus/--accepted-only",
            help="Whether an entry is the tokens a step yields (accepted drafts + 1) or the accepted drafts alone.",
        ),
    ] = True,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option("--num-speculative-tokens", "-k", help="K; longer entries are cut to it. Default: the longest."),
    ] = None,
    sampling: Annotated[
        Sampling,
        typer.Option(
            help="How the target chose its tokens. Replay is exact for greedy output, approximate for sampled."
        ),
    ] = Sampling.SAMPLED,
    json: JsonOption = False,
) -> None:
    """Make an outcome-only trace (accepted lengths without confidences) from JSONL lists.

    Entry i says what a step starting after i + 1 output tokens would yield, whether or not one ran there: a log of the
    steps that did run is not that, for replay starts steps elsewhere.

    Example: specplan import trace accepted.jsonl --field tokens_from_here -k 7 -o trace.parquet

    Policies that need confidences refuse such a trace; `none`, `fixed:k`, `ema` and `oracle` replay it.
    """
    from specplan.files import require_trace_suffix, require_writable
    from specplan.interop import import_accepted_lengths, looks_like_steps

    require_trace_suffix(output)
    require_writable(output, source)
    trace = import_accepted_lengths(
        source,
        field=field,
        counts_bonus=counts_bonus,
        num_speculative_tokens=num_speculative_tokens,
        sampling=sampling.value,
    )
    trace.write(output)
    if looks_like_steps(trace):
        remark(
            "warning: these lists look like one entry per step that ran, not per output position; replaying them would "
            "skip steps (docs/planning.md, Outcome-only traces)"
        )
    if json:
        print_json({"trace": str(output), "requests": trace.num_requests, "rows": len(trace.request)})
        return
    typer.echo(f"{trace.num_requests} requests, {len(trace.request)} positions, K = {trace.num_speculative_tokens}")
    typer.echo(f"wrote {output}")
