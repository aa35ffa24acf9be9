"""`specplan validate`: hold the simulator's predictions against an engine, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specplan.cli.cmd_simulate import parse_concurrencies
from specplan.cli.output import JsonOption, print_json, remark, show, show_progress

if TYPE_CHECKING:
    from specplan.files import Trace
    from specplan.planning import Policy

__all__ = ["validate"]


def validate(
    target: Annotated[str, typer.Option(help="Target model: a folder with config.json, or 'tiny'.")],
    draft: Annotated[str, typer.Option(help="Draft model: a folder with config.json, or 'tiny'.")],
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Prompts: JSONL, one object with a `prompt` a line. Under --impose there are none: prompts are then "
            "random tokens, as long as the trace's."
        ),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, separated by commas.")] = "1,4,16,64",
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="none, fixed:k, ema, adaptive or oracle; repeatable. Default: none, fixed:3 (at most K), adaptive."
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        int, typer.Option("--num-speculative-tokens", "-k", help="K, the most drafts per request and step.")
    ] = 7,
    lag: Annotated[int, typer.Option(help="Steps by which the budget's confidences are old.", min=0, max=2)] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds, each of profiling and then measuring: 2 or more.")] = 5,
    max_output_tokens: Annotated[int, typer.Option(help="The most output tokens per request.")] = 64,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="The most tokens in a step. Default: 1024 on a CPU, 8192 on CUDA.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    impose: Annotated[
        Path | None,
        typer.Option(
            help="A dense trace that drafts and outcomes follow, while every tensor operation still runs: times a pair "
            "with random weights under real acceptance."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is random: tokens, caches, order.", min=0, max=2**63 - 2)] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Validation to write (JSON).")] = None,
    json: JsonOption = False,
) -> None:
    """Profile, record, simulate and run the engine in one go, and tell predicted from measured tokens/s.

    Example: specplan validate --target tiny --draft tiny --prompts prompts.jsonl --concurrency 1,4 -o validation.json

    Ends with 0 however far off the predictions are, and with 4 where an output is not what the target decodes alone.
    """
    from specplan.cli.loading import load_pair
    from specplan.engine import read_prompts
    from specplan.errors import ConfigError, InfeasibleError
    from specplan.files import require_writable
    from specplan.planning import parse_policy
    from specplan.report.validation import validation_report, verdict_sentence, wrong_outputs
    from specplan.simulation.verdicts import ENOUGH_ROUNDS, FEWEST_ROUNDS

    fixed_k = max(1, min(3, num_speculative_tokens))
    asked = policy or ["none", f"fixed:{fixed_k}", "adaptive"]
    policies = list(dict.fromkeys(parse_policy(text) for text in asked))
    concurrencies = sorted(set(parse_concurrencies(concurrency)))
    if rounds < FEWEST_ROUNDS:
        raise ConfigError(
            f"--rounds is {rounds}, expected {FEWEST_ROUNDS} or more: one round alone has no spread",
            f"leave it out for {ENOUGH_ROUNDS}",
        )
    if (prompts is None) == (impose is None):
        found = "neither --prompts nor --impose is" if prompts is None else "both --prompts and --impose are"
        raise ConfigError(
            f"{found} given, expected one: outcomes come from the models on your prompts, or from a trace",
            "give --prompts for a trained pair, --impose for any",
        )
    if output is not None:
        require_writable(output, *filter(None, [prompts, impose]))
    texts = None if prompts is None else read_prompts(prompts)
    imposed = None
    if impose is not None:
        imposed = read_imposed(impose, num_speculative_tokens)
        if imposed.confidence is None:
            policies = with_outcomes_only(policies, asked_for=bool(policy))
    if rounds < ENOUGH_ROUNDS:
        remark(f"{rounds} rounds: their spread says little; the target is set for {ENOUGH_ROUNDS} or more")

    from specplan.measure import ValidationPlan, validate_pair

    pair = load_pair(target, draft, device=device, seed=seed)
    if max_num_batched_tokens is None:
        max_num_batched_tokens = pair.default_batched_tokens
    plan = ValidationPlan(
        policies=tuple(policies),
        concurrencies=tuple(concurrencies),
        num_speculative_tokens=num_speculative_tokens,
        lag=lag,
        num_rounds=rounds,
        max_output_tokens=max_output_tokens,
        max_num_batched_tokens=max_num_batched_tokens,
        seed=seed,
    )
    with show_progress("validating") as report:
        validation = validate_pair(
            pair.target,
            pair.draft,
            texts,
            plan,
            source="random tokens" if prompts is None else prompts.name,
            imposed=imposed,
            on_progress=report,
        )
    if output is not None:
        validation.write(output)
    if json:
        print_json(validation.to_json())
    else:
        show(*validation_report(validation))
        typer.echo(verdict_sentence(validation))
        if output is not None:
            typer.echo(f"wrote {output}")
    if wrong := wrong_outputs(validation):
        raise InfeasibleError(
            f"the engine is not lossless here: {wrong}",
            f"a fault of specplan: please report it, with {output or 'the file that --output writes'}",
        )


def read_imposed(path: Path, num_speculative_tokens: int) -> Trace:
    """A trace whose outcomes can be imposed on steps of K drafts."""
    from specplan.engine import ImposedOutcomes
    from specplan.errors import ConfigError
    from specplan.files import Trace

    trace = Trace.read(path)
    known = ImposedOutcomes(trace).num_speculative_tokens  # refuses a trace that is not dense
    if num_speculative_tokens > known:
        raise ConfigError(
            f"K is {num_speculative_tokens}, and the trace to impose holds {known} drafts per position",
            f"pass -k {known} or less, or record a trace with more drafts per position",
        )
    return trace


def with_outcomes_only(policies: Sequence[Policy], *, asked_for: bool) -> list[Policy]:
    """The policies that need no confidences; one that was asked for and does is refused."""
    from specplan.errors import ConfigError

    for policy in policies:
        if policy.needs_confidence and asked_for:
            raise ConfigError(
                f"policy {policy.name} needs confidences, and the trace to impose holds outcomes only",
                "use none, fixed:K, ema or oracle, or a trace with confidences: `specplan record`",
            )
    return [policy for policy in policies if not policy.needs_confidence]
