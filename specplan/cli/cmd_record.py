"""`specplan record`: run a pair and write a dense trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specplan.cli.output import JsonOption, print_json, show_progress

__all__ = ["record"]


def record(
    target: Annotated[str, typer.Option(help="Target model: a folder, or 'tiny'.")],
    draft: Annotated[str, typer.Option(help="Draft model: a folder, or 'tiny'.")],
    prompts: Annotated[Path, typer.Option(help="Prompts: JSONL, one object with a `prompt` a line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Trace to write (.parquet or .jsonl).")],
    num_speculative_tokens: Annotated[
        int, typer.Option("--num-speculative-tokens", "-k", help="K, the drafts recorded at every position.")
    ] = 7,
    max_output_tokens: Annotated[int, typer.Option(help="The most output tokens per request.")] = 128,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    json: JsonOption = False,
) -> None:
    """Record what the drafter would propose, and the target accept, at every position of greedy output.

    Example: specplan record --target tiny --draft tiny --prompts prompts.jsonl -k 7 -o trace.parquet

    The trace holds figures only: no text and no token ids.
    """
    from specplan.cli.loading import load_pair
    from specplan.engine import read_prompts, record_trace
    from specplan.files import require_trace_suffix, require_writable

    require_writable(output, prompts)
    require_trace_suffix(output)
    texts = read_prompts(prompts)
    pair = load_pair(target, draft, device=device)
    with show_progress("recording") as report:
        trace = record_trace(
            pair.target,
            pair.draft,
            texts,
            source=prompts.name,
            k=num_speculative_tokens,
            max_output_tokens=max_output_tokens,
            on_progress=lambda done, total: report(done / total, f"pass {done} of {total}"),
        )
    trace.write(output)
    summary = {
        "trace": str(output),
        "requests": trace.num_requests,
        "rows": len(trace.request),
        "mean_accepted_len": float(trace.accepted_len.mean()),
    }
    if json:
        print_json(summary)
        return
    typer.echo(
        f"{trace.num_requests} requests, {len(trace.request)} positions; mean accepted_len over all of them: "
        f"{summary['mean_accepted_len']:.2f} of {num_speculative_tokens} drafts, bonus token left out"
    )
    typer.echo(f"wrote {output}")
