"""`specplan check`: judge a profile or cost tables, or which route steps take under an engine's limits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specplan.cli.output import NOT_GOOD, JsonOption, print_json
from specplan.cli.sizes import parse_sizes

if TYPE_CHECKING:
    from specplan.errors import CoverageError
    from specplan.files import CostTables, Finding
    from specplan.planning import RouteCheck

__all__ = ["check"]


def check(
    file: Annotated[
        Path | None, typer.Argument(help="Profile or cost tables to judge; with an engine's limits, to price them.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where there is a warning.")] = False,
    here: Annotated[
        str | None,
        typer.Option(help="Whether these costs are of this machine's device too: auto, cpu, cuda or cuda:N."),
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="The most requests in a step of the engine.")] = None,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option("--num-speculative-tokens", "-k", help="K, the most drafts per request and step of the engine."),
    ] = None,
    capture_limit: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the largest graph. Default: the file's; without one vLLM's, 512 at most "
            "(1024 on SM100: give it)."
        ),
    ] = None,
    capture_sizes: Annotated[
        str | None,
        typer.Option(help="All sizes that the engine captures, in its order, in place of the limit: 1,2,4,8."),
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
    json: JsonOption = False,
) -> None:
    """Judge what costs rest on, each finding with its place and what to do next; or an engine's limits, or both.

    Example: specplan check tables.json --strict

    With --max-num-seqs and -k: whether adaptive verification can run, and whether the largest step replays a graph or
    runs eagerly; a file says what that costs. Example: specplan check --max-num-seqs 6 -k 6 --capture-limit 40
    """
    from specplan.errors import ConfigError, CoverageError

    if (max_num_seqs is None) != (num_speculative_tokens is None):
        missing = "--max-num-seqs" if max_num_seqs is None else "-k"
        raise ConfigError(f"{missing} is missing: an engine's limits are both", "see specplan check --help")
    if here is not None and file is None:
        raise ConfigError(f"--here {here} without a file whose device to compare", "give a profile or cost tables")
    if file is None and max_num_seqs is None:
        raise ConfigError("nothing to check", "give a profile, cost tables, or --max-num-seqs and -k")
    tables, findings = (None, []) if file is None else judged(file, here)
    sizes = None if capture_sizes is None else parse_sizes(capture_sizes)
    if sizes is not None and (capture_limit is not None or max_num_seqs is None):
        raise ConfigError(
            "--capture-sizes goes with --max-num-seqs and -k, and in place of --capture-limit", "leave one of them out"
        )
    route = None
    if max_num_seqs is not None and num_speculative_tokens is not None:
        from specplan.planning import check_route, parse_attention, parse_graph_mode
        from specplan.planning.capture_sizes import judge_capture_sizes

        route_of = partial(
            check_route,
            max_num_seqs=max_num_seqs,
            num_speculative_tokens=num_speculative_tokens,
            graph_mode=parse_graph_mode(graph_mode),
            has_piecewise=piecewise,
            attention=parse_attention(attention),
            capture_limit=capture_limit,
            capture_sizes=sizes,
        )
        try:
            route = route_of(tables=tables)
        except CoverageError as error:
            if tables is None:
                raise
            findings.append(_not_priced(error))
            route = route_of(tables=None)
        if sizes is not None:
            findings += judge_capture_sizes(
                sizes, max_num_seqs=max_num_seqs, num_speculative_tokens=num_speculative_tokens
            )
    show(file, tables, findings, route, as_json=json)
    found = [*findings, *(() if route is None else route.findings)]
    if strict and any(finding.severity == "warning" for finding in found):
        raise typer.Exit(NOT_GOOD)


def _not_priced(error: CoverageError) -> Finding:
    """A step that the tables do not reach is still routed, and all else they say still holds."""
    from specplan.files.tables import Finding

    return Finding(code="step-not-priced", severity="warning", place="route", message=error.message, hint=error.hint)


def judged(file: Path, here: str | None) -> tuple[CostTables | None, list[Finding]]:
    """The file's tables, or those that its samples come to, if they come to any; and what there is to say of them: what
    was found when they were made, what a budget makes of them, and whether they are of this device."""
    from specplan.costs import judge_samples, tables_from_profile
    from specplan.errors import CoverageError
    from specplan.files import CostTables, read_costs
    from specplan.planning.choices import judge_choices

    costs = read_costs(file)
    tables: CostTables | None = None
    if isinstance(costs, CostTables):
        tables = costs
    else:
        try:
            tables = tables_from_profile(costs)
        except CoverageError as error:
            findings = judge_samples(costs, error)
    if tables is not None:
        findings = [*tables.findings, *judge_choices(tables)]
    if here is not None:
        from specplan.costs.binding import PLACE, identity_of, judge_place
        from specplan.device.identity import identify_device
        from specplan.measure.environment import pick_device

        findings += judge_place(identity_of(costs), identify_device(pick_device(here)), PLACE)
    return tables, findings


def show(
    file: Path | None, tables: CostTables | None, findings: list[Finding], route: RouteCheck | None, *, as_json: bool
) -> None:
    if as_json:
        import msgspec

        result: dict[str, Any] = {
            "schema": "specplan.check/1",
            "file": None if file is None else str(file),
            "findings": msgspec.to_builtins(findings),
            "route": msgspec.to_builtins(route),
        }
        print_json(result)
        return
    from specplan.report.check import check_lines
    from specplan.report.findings import finding_lines, semantics_note

    if tables is not None:
        for line in semantics_note(tables.semantics):
            typer.echo(line)
    if file is not None or findings:
        for line in finding_lines("capture sizes" if file is None else str(file), findings):
            typer.echo(line)
    if route is not None:
        for line in check_lines(route):
            typer.echo(line)
