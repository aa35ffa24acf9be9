"""`specplan check`: which route steps take under an engine's limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specplan.cli.output import JsonOption, print_json

__all__ = ["check"]


def check(
    max_num_seqs: Annotated[int, typer.Option(help="The most requests in a step.")],
    num_speculative_tokens: Annotated[
        int, typer.Option("--num-speculative-tokens", "-k", help="K, the most drafts per request and step.")
    ],
    capture_limit: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the largest graph. Default: the tables'; without tables vLLM's, 512 at most "
            "(1024 on SM100: give it)."
        ),
    ] = None,
    graph_mode: Annotated[
        str, typer.Option(help="What the engine is told: none, piecewise, full, full-decode-only, full-and-piecewise.")
    ] = "full-and-piecewise",
    piecewise: Annotated[
        bool, typer.Option("--piecewise/--no-piecewise", help="Whether the engine can capture piecewise graphs.")
    ] = True,
    attention: Annotated[
        str,
        typer.Option(
            help="Query lengths its attention replays in a full graph. always: ragged ones. up-to:N: ragged ones of at "
            "most N tokens. uniform: equal ones only. never: none."
        ),
    ] = "always",
    tables: Annotated[Path | None, typer.Option(help="Cost tables that price what is found.")] = None,
    json: JsonOption = False,
) -> None:
    """Say whether adaptive verification can run, and whether the largest step replays a graph or runs eagerly.

    Example: specplan check --max-num-seqs 6 -k 6 --capture-limit 40
    """
    from specplan.files import CostTables
    from specplan.planning import check_route, parse_attention, parse_graph_mode
    from specplan.report.check import check_lines

    checked = check_route(
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=num_speculative_tokens,
        graph_mode=parse_graph_mode(graph_mode),
        has_piecewise=piecewise,
        attention=parse_attention(attention),
        capture_limit=capture_limit,
        tables=None if tables is None else CostTables.read(tables),
    )
    if json:
        import msgspec

        print_json(msgspec.to_builtins(checked))
        return
    for line in check_lines(checked):
        typer.echo(line)
