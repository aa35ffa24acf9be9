"""`specplan simulate`: replay a trace under cost tables."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specplan.cli.output import JsonOption, print_json, show, show_progress

__all__ = ["simulate"]


class DrafterInput(StrEnum):
    LAST = "last"
    STEP = "step"


class Calibration(StrEnum):
    CROSS_FIT = "cross-fit"
    OFF = "off"


def simulate(
    trace: Annotated[Path, typer.Argument(help="Trace to replay (.parquet or .jsonl).")],
    tables: Annotated[Path, typer.Option(help="Cost tables that charge every step, or a profile.")],
    planner_tables: Annotated[
        Path | None, typer.Option(help="Cost tables that the policy decides with. Default: those that charge.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="none, fixed:k, ema, adaptive or oracle; repeatable. Default: none, adaptive, oracle."),
    ] = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            help="Requests in flight, separated by commas.", show_default="as many of 1,4,16,64 as the tables reach"
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option("--num-speculative-tokens", "-k", help="K, up to the trace's. Default: the trace's.")
    ] = None,
    lag: Annotated[int, typer.Option(help="Steps by which the budget's confidences are old: 0, 1 or 2.")] = 1,
    calibration: Annotated[
        Calibration,
        typer.Option(help="cross-fit: confidences calibrated on the other half of the requests. off: as recorded."),
    ] = Calibration.CROSS_FIT,
    drafter_input: Annotated[
        DrafterInput,
        typer.Option(
            help="What the drafter's first pass takes. last: the last tokens of each request. step: all that the step "
            "verified, as engines run it that do not wait for how many were accepted."
        ),
    ] = DrafterInput.LAST,
    num_resamples: Annotated[
        int, typer.Option("--resamples", help="Draws of the requests behind each interval; 0 leaves intervals out.")
    ] = 200,
    seed: Annotated[int, typer.Option(help="Seed of those draws.", min=0)] = 0,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse costs of other models or devices, instead of warning of them.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Result to write (JSON).")] = None,
    json: JsonOption = False,
) -> None:
    """Replay a recorded trace in a closed loop and compare policies.

    Example: specplan simulate trace.parquet --tables tables.json --policy adaptive --policy fixed:3 --concurrency 1,16
    """
    from specplan.cli.tables_file import read_tables
    from specplan.files import Trace, require_writable
    from specplan.planning import parse_policy
    from specplan.report import deploy_sentence, simulation_notes, simulation_table, write_result
    from specplan.simulation import simulate as run_simulation

    policies = [parse_policy(text) for text in policy or ["none", "adaptive", "oracle"]]
    asked = None if concurrency is None else parse_concurrencies(concurrency)
    if output is not None:
        require_writable(output, trace, tables, *filter(None, [planner_tables]))
    charged = read_tables(tables)
    recorded = Trace.read(trace)
    if not policy and recorded.confidence is None:
        policies = [known for known in policies if not known.needs_confidence]
    with show_progress("simulating") as report:
        result = run_simulation(
            recorded,
            tables=charged,
            planner_tables=None if planner_tables is None else read_tables(planner_tables),
            policies=policies,
            concurrencies=asked or [n for n in (1, 4, 16, 64) if n <= charged.max_num_reqs],
            k=num_speculative_tokens,
            lag=lag,
            calibration=calibration.value,
            drafter_input=drafter_input.value,
            strict=strict,
            num_resamples=num_resamples,
            seed=seed,
            on_progress=report,
        )
    if output is not None:
        write_result(result, output)
    if json:
        print_json(result.to_json())
        return
    show(simulation_table(result), *simulation_notes(result))
    typer.echo(deploy_sentence(result))


def parse_concurrencies(text: str) -> list[int]:
    """`1,4,16` as numbers; what is not a number of at least 1 is refused."""
    from specplan.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    wrong = [part for part in parts if not re.fullmatch("0*[1-9][0-9]{0,8}", part)]
    if wrong:
        raise ConfigError(f"--concurrency holds {wrong[0]!r}, expected whole numbers of at least 1", "try 1,4,16,64")
    return [int(part) for part in parts]
