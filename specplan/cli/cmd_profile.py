"""`specplan profile`: measure step costs on this device."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specplan.cli.output import INTERRUPTED, JsonOption, print_json, remark, show_progress
from specplan.cli.profile_lines import describe, describe_cut, dry_run_lines, dry_run_summary, summary

if TYPE_CHECKING:
    from specplan.files import Profile
    from specplan.measure import ProfilePlan
    from specplan.measure.sweep import SweepResult
    from specplan.measure.verification import Pair

__all__ = ["profile"]


class EngineName(StrEnum):
    VLLM = "vllm"


class LayoutName(StrEnum):
    MULTI_QUERY = "multi-query"
    BATCH_EXPANSION = "batch-expansion"


def profile(
    target: Annotated[str, typer.Option(help="Target model: a folder with config.json, or 'tiny'.")],
    draft: Annotated[str, typer.Option(help="Draft model: a folder with config.json, or 'tiny'.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write (JSON).")],
    num_speculative_tokens: Annotated[
        int, typer.Option("--num-speculative-tokens", "-k", help="K, the most drafts per request and step.")
    ] = 7,
    max_num_seqs: Annotated[int, typer.Option(help="The most requests in a step.")] = 64,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="The most tokens in a step. Default: 1024 on a CPU, 8192 on CUDA.")
    ] = None,
    context_len: Annotated[
        list[int] | None,
        typer.Option(
            help="KV tokens of each request; repeatable. Default: an eighth of the models' positions, at most 2048, "
            "and a quarter of that."
        ),
    ] = None,
    layout: Annotated[
        list[LayoutName] | None,
        typer.Option(
            help="How verify passes attend; repeatable. multi-query, which is priced and always asked for: a row for "
            "each request. batch-expansion, to compare: a row for each query. Default: multi-query."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    time_budget: Annotated[
        float | None, typer.Option(help="Seconds to spend measuring. Default: until every point has settled.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the incomplete profile at --output, or a killed sweep's beside it."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the points, and about how long they take; measure nothing.")
    ] = False,
    verify_error: Annotated[
        bool,
        typer.Option(
            "--verify-error",
            help="Afterwards measure some points again, and others between them, in a new process: tables then say how "
            "far they are off. Takes up to a third of the time budget more.",
        ),
    ] = False,
    engine: Annotated[
        EngineName | None,
        typer.Option(
            help="With --dry-run: print the commands by which this engine's own bench fills the points; it names the "
            "models as this engine does."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random tokens, caches and order.", min=0, max=2**63 - 2)] = 0,
    json: JsonOption = False,
) -> None:
    """Measure what draft and verify steps cost on this device.

    Example: specplan profile --target tiny --draft tiny --time-budget 90 -o profile.json

    Ctrl-C keeps what is done: the profile is written with the points measured so far and says that it is incomplete.
    What a killed sweep had is beside it, in a file that ends in .partial. --resume goes on from either. While another
    process verifies, Ctrl-C ends that process, and the profile stays as it was written before.
    """
    import msgspec

    from specplan.cli.loading import load_pair
    from specplan.errors import ConfigError
    from specplan.files import require_writable
    from specplan.measure import ProfilePlan, StoppingRule, SweepProgress, profile_pair
    from specplan.measure.environment import pick_dtype
    from specplan.measure.steps import require_room
    from specplan.measure.verification import Pair

    if time_budget is not None and not time_budget > 0:
        raise ConfigError(f"--time-budget is {time_budget}, expected more than 0 seconds", "give it a minute or two")
    require_writable(output)
    if engine is not None:
        if not dry_run:
            raise ConfigError(
                f"--engine {engine.value} without --dry-run: specplan prints the commands, and does not run them",
                "add --dry-run, and run what it prints",
            )
        contexts = tuple(sorted(set(context_len or (512, 2048))))
        plan = ProfilePlan(
            max_num_seqs=max_num_seqs,
            num_speculative_tokens=num_speculative_tokens,
            max_num_batched_tokens=8192 if max_num_batched_tokens is None else max_num_batched_tokens,
            contexts=contexts,
            draft_context_len=contexts[-1],  # the drafter is timed as the difference of two verify steps
            layouts=tuple(name.value for name in layout or [LayoutName.MULTI_QUERY]),
            checks_ragged=True,
        )
        print_bench(plan, target=target, draft=draft, output=output, as_json=json)
        return
    partial = partial_of(output)
    earlier = read_earlier(output, partial) if resume else None
    pair = load_pair(target, draft, device=device, seed=seed)
    if max_num_batched_tokens is None:
        max_num_batched_tokens = pair.default_batched_tokens
    positions = min(model.decoder.config.max_position_embeddings for model in (pair.target, pair.draft))
    longest = min(2048, positions // 8)
    plan = ProfilePlan(
        max_num_seqs=max_num_seqs,
        num_speculative_tokens=num_speculative_tokens,
        max_num_batched_tokens=max_num_batched_tokens,
        contexts=tuple(sorted(set(context_len or (max(2, longest // 4), max(2, longest))))),
        capture_ceiling=pair.capture_ceiling,
        layouts=tuple(name.value for name in layout or [LayoutName.MULTI_QUERY]),
        checks_ragged=True,
    )
    require_room(plan, pair.target.decoder, pair.draft.decoder)
    rule = StoppingRule(time_budget_s=time_budget)
    if dry_run:
        if json:
            print_json(dry_run_summary(plan, rule))
        else:
            for line in dry_run_lines(plan, rule):
                typer.echo(line)
        return
    checkpoint = Checkpoint(partial)
    with show_progress("measuring") as report:

        def on_progress(progress: SweepProgress) -> None:
            settled = f"{progress.points_done} of {progress.points_total} points settled"
            report(
                progress.fraction, f"round {progress.rounds}, {settled}" if progress.rounds else "making steps ready"
            )

        measured = profile_pair(
            pair.target,
            pair.draft,
            plan,
            rule,
            seed=seed,
            earlier=earlier,
            on_progress=on_progress,
            on_checkpoint=checkpoint.write,
        )
    measured.write(output)
    partial.unlink(missing_ok=True)
    is_interrupted = any(sample.stop_reason == "interrupted" for sample in measured.samples)
    if verify_error and not is_interrupted:
        pair_again = Pair(target=target, draft=draft, device=str(pair.device), dtype=pick_dtype(pair.device), seed=seed)
        del pair
        try:
            verified = verify(pair_again, plan, time_budget)
        except KeyboardInterrupt:
            state = "keeps its earlier verification" if measured.verification else "is not verified"
            remark(f"interrupted: {output} is written, and {state}; the same command with --resume verifies it")
            raise typer.Exit(INTERRUPTED) from None
        if verified.samples:  # instead of an earlier one
            measured = msgspec.structs.replace(measured, verification=verified.samples)
            measured.write(output)
        for line in describe_cut(verified, plan, seed, time_budget):
            remark(line)
    if json:
        print_json(summary(measured, output))
    else:
        for line in describe(measured, len(plan.points()), output):
            typer.echo(line)
    if is_interrupted:
        remark("interrupted: the profile holds what was measured until then, and says that it is incomplete")
        raise typer.Exit(INTERRUPTED)
    if not measured.complete:
        remark("out of time: the profile lacks points that were never visited; go on with --resume")


def partial_of(output: Path) -> Path:
    """Where a sweep keeps what it has so far. Refused beforehand where it could not."""
    from specplan.errors import FileError
    from specplan.files import require_writable

    partial = output.with_name(f"{output.name}.partial")
    try:
        require_writable(partial)
    except FileError as error:
        raise FileError(
            error.message, "what is measured is kept there until it is whole: move it away, or give another --output"
        ) from error
    return partial


class Checkpoint:
    """Keeps what a sweep has so far. Where that fails the sweep goes on, for it loses nothing unless it is killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_failed = False

    def write(self, so_far: Profile) -> None:
        from specplan.errors import FileError

        try:
            so_far.write(self.path)
        except FileError as error:
            if not self.has_failed:
                remark(f"{error.message}; measuring goes on, and a killed sweep would lose what it has since")
            self.has_failed = True


def verify(pair: Pair, plan: ProfilePlan, time_budget: float | None) -> SweepResult:
    """What a new process measures of the same pair, with the progress of it."""
    from specplan.measure import StoppingRule
    from specplan.measure.verification import measure_anew, verification_points

    rule = StoppingRule()
    budget_s = len(verification_points(plan, seed=pair.seed)) * rule.max_busy_s
    if time_budget is not None:
        budget_s = min(budget_s, time_budget / 3)
    with show_progress("verifying") as report:
        return measure_anew(
            pair,
            plan,
            replace(rule, time_budget_s=budget_s),
            on_progress=lambda fraction: report(fraction, "a new process measures"),
        )


def print_bench(plan: ProfilePlan, *, target: str, draft: str, output: Path, as_json: bool) -> None:
    from specplan.interop.vllm_commands import bench_forward_commands
    from specplan.report.bench_commands import bench_script

    commands = bench_forward_commands(
        plan.points(),
        target=target,
        draft=draft,
        num_speculative_tokens=plan.num_speculative_tokens,
        output=str(output),
    )
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(commands))
        return
    for line in bench_script(commands):
        typer.echo(line)


def read_earlier(output: Path, partial: Path) -> Profile:
    """What a sweep that was killed had written, or else one that was stopped or ran out of time."""
    from specplan.errors import ConfigError
    from specplan.files import Profile

    if partial.exists():
        return Profile.read(partial)
    if not output.exists():
        raise ConfigError(
            f"nothing to resume: there is neither {output} nor {partial}", "leave out --resume to start a sweep"
        )
    return Profile.read(output)
