"""`specplan import costs`: make a profile of steps that others have timed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specplan.cli.output import JsonOption, print_json, remark
from specplan.cli.sizes import parse_sizes

if TYPE_CHECKING:
    from specplan.files import Profile, Sample

__all__ = ["import_costs"]


class FormatName(StrEnum):
    STEPS = "steps"
    VLLM_FORWARD = "vllm-forward"
    VLLM_STEPS = "vllm-steps"
    SGLANG_SPS = "sglang-sps"
    SGLANG_DUMP = "sglang-dump"
    TENSORRT_LLM = "tensorrt-llm"
    TENSORRT_LLM_STEPS = "tensorrt-llm-steps"
    VIDUR = "vidur"


class UnitName(StrEnum):
    MILLISECONDS = "ms"
    MICROSECONDS = "us"
    SECONDS = "s"


def import_costs(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Timings, all of one format.")],
    format: Annotated[FormatName, typer.Option(help="What wrote them; docs/importing.md describes each.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write (JSON).")],
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option(
            "--num-speculative-tokens",
            "-k",
            min=1,
            max=2**20,
            help="K, the most drafts per request and step, where the files do not tell.",
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, max=2**20, help="The most requests in a step. Default: the most in the files.")
    ] = None,
    context_len: Annotated[
        int | None,
        typer.Option(min=0, max=2**31, help="Tokens in each request's cache, where the files do not tell."),
    ] = None,
    capture_limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**20,
            help="Tokens of the engine's largest graph, where the files do not tell replays from eager steps: larger "
            "steps are eager, and 0 means all are.",
        ),
    ] = None,
    capture_sizes: Annotated[
        str | None,
        typer.Option(
            metavar="1,2,4,8",
            help="All sizes that the engine captures, ascending, where the steps were timed at others. Default: those "
            "that the files tell; vllm-forward: those that vLLM captures, up to the limit.",
        ),
    ] = None,
    device: Annotated[str | None, typer.Option(help="The device's name.")] = None,
    target: Annotated[str | None, typer.Option(help="The target's name.")] = None,
    draft: Annotated[str | None, typer.Option(help="The draft's name.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the weights and activations: bfloat16, say.")] = None,
    tensor_parallel_size: Annotated[int | None, typer.Option(min=1, max=2**20, help="GPUs that share a layer.")] = None,
    unit: Annotated[UnitName | None, typer.Option(help="steps: of the times. Default: ms.")] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=THEIRS", help="steps: what the files call a column, num_reqs=batch; repeatable."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="steps: keep the rows that have this; repeatable. Several values of a column: rows with any of them.",
        ),
    ] = None,
    timing_scope: Annotated[
        str | None, typer.Option(help="steps: what lies between start and stop of the clock that timed them.")
    ] = None,
    with_drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=FILE",
            help="vllm-forward: a run of some of the cases with the drafter, which drafted K tokens; repeatable. "
            "Drafting is what it took more.",
        ),
    ] = None,
    num_layers: Annotated[int | None, typer.Option(min=1, max=2**20, help="vidur: layers of the model.")] = None,
    citation: Annotated[
        str | None, typer.Option(help="Where the files come from and under which licence; kept in the profile.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a profile of step timings that were taken elsewhere. What they do not tell, options do; nothing is made up.

    Example: specplan import costs steps.csv --format steps --context-len 2048 --capture-limit 512 -k 7 -o profile.json

    `specplan tables` prices it like any other profile, from what the source's clock covered.
    """
    from specplan.files import require_writable
    from specplan.interop import Facts, ReadingOptions
    from specplan.interop import import_costs as import_timings

    drafters = runs_by_k(with_drafter or [])
    require_writable(output, *files, *drafters.values())
    profile, notes = import_timings(
        files,
        format=format.value,
        options=ReadingOptions(
            unit=None if unit is None else unit.value,
            columns=theirs_by_column(column) if column else None,
            where=values_by_column(where) if where else None,
            timing_scope=timing_scope,
            drafters=drafters or None,
            num_layers=num_layers,
        ),
        given=Facts(
            device=device,
            target=target,
            draft=draft,
            dtype=dtype,
            tensor_parallel_size=tensor_parallel_size,
            num_speculative_tokens=num_speculative_tokens,
            max_num_seqs=max_num_seqs,
            context_len=context_len,
            capture_limit=capture_limit,
            capture_sizes=None if capture_sizes is None else tuple(parse_sizes(capture_sizes)),
        ),
        citation=citation,
    )
    profile.write(output)
    for note in notes:
        remark(note)
    if json:
        print_json(
            {
                "profile": str(output),
                "source": profile.source,
                "samples": len(profile.samples),
                "digest": profile.digest(),
                "notes": list(notes),
            }
        )
        return
    for line in describe(profile, output):
        typer.echo(line)


def pairs(texts: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    from specplan.errors import ConfigError

    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{option} is {text!r}, expected two words with = between them", f"try {option} a=b")
        yield name, value


def theirs_by_column(mappings: Sequence[str]) -> dict[str, str]:
    from specplan.errors import ConfigError

    theirs: dict[str, str] = {}
    for name, column in pairs(mappings, "--column"):
        if name in theirs:
            raise ConfigError(f"--column maps {name} twice, to {theirs[name]} and {column}", "give one of them")
        theirs[name] = column
    return theirs


def values_by_column(conditions: Sequence[str]) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for name, value in pairs(conditions, "--where"):
        values.setdefault(name, []).append(value)
    return values


def runs_by_k(texts: Sequence[str]) -> dict[int, Path]:
    from specplan.errors import ConfigError

    runs: dict[int, Path] = {}
    for k, file in pairs(texts, "--with-drafter"):
        if not re.fullmatch("[1-9][0-9]{0,5}", k) or int(k) in runs:
            raise ConfigError(
                f"--with-drafter begins with {k!r}, expected how many tokens it drafted, and each number once",
                "try --with-drafter 7=with.json",
            )
        runs[int(k)] = Path(file)
    return runs


def describe(profile: Profile, output: Path) -> Iterator[str]:
    """What was found, what the clock covered, and what is not in the costs."""
    yield profile.source
    for what, samples in groups(profile.samples):
        requests = span([sample.num_reqs for sample in samples])
        tokens = span([sample.num_tokens for sample in samples])
        times = span([len(sample.repetitions_ms) for sample in samples])
        yield f"{what}: shapes: {len(samples)}; requests: {requests}; tokens: {tokens}; repetitions of each: {times}"
    yield f"clock: {profile.environment.timing_scope}"
    if profile.draft is None:
        yield "no drafter was timed on its own: drafting is priced at 0 ms"
    k, limit, covered = profile.num_speculative_tokens, profile.capture_limit, most_requests(profile)
    yield f"K = {k}, up to {covered} requests, capture limit {limit} tokens"
    if covered < profile.max_num_seqs:
        yield f"tables cover {covered} of {profile.max_num_seqs} requests: no even verify steps of more were timed"
    yield f"wrote {output}"


def most_requests(profile: Profile) -> int:
    """That tables can price."""
    from specplan.costs.samples import of_lengths, verify_points

    timed = verify_points(of_lengths(profile, "even")).row
    return min(profile.max_num_seqs, int(timed.max(initial=0)))


def span(values: Sequence[int]) -> str:
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def groups(samples: Sequence[Sample]) -> Iterator[tuple[str, list[Sample]]]:
    kinds: dict[str, list[Sample]] = {}
    for sample in samples:
        kind = "mixed" if sample.shape.is_mixed else sample.model
        kinds.setdefault(f"{kind} {sample.mode}", []).append(sample)
    yield from kinds.items()
