"""The formats that costs are imported from, by name, and the options that only some of them take."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from specplan.errors import ConfigError
from specplan.files.profile import Profile
from specplan.interop.drafting import pooled_drafting, unpriced_drafting
from specplan.interop.imported_profile import profile_of
from specplan.interop.sglang_dump import read_sglang_dump
from specplan.interop.sglang_sps import read_sglang_sps
from specplan.interop.steps import Unit, read_steps
from specplan.interop.tensorrt_llm import read_tensorrt_llm
from specplan.interop.tensorrt_llm_steps import read_tensorrt_llm_steps
from specplan.interop.timings import Facts, Timings
from specplan.interop.vidur import read_vidur
from specplan.interop.vllm_forward import read_vllm_forward
from specplan.interop.vllm_steps import read_vllm_steps

__all__ = ["FORMATS", "ReadingOptions", "import_costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """What only some formats take, see their readers; None where not given."""

    unit: Unit | None = None
    columns: Mapping[str, str] | None = None
    where: Mapping[str, Collection[str]] | None = None
    timing_scope: str | None = None
    drafters: Mapping[int, Path] | None = None
    num_layers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    read: Callable[[Path, ReadingOptions, Facts], Timings]
    takes: frozenset[str] = frozenset()  # of the reading options


FORMATS = {
    "steps": Format(
        read=lambda path, options, given: read_steps(
            path,
            unit=options.unit or "ms",
            columns=options.columns,
            where=options.where,
            timing_scope=options.timing_scope,
        ),
        takes=frozenset({"unit", "columns", "where", "timing_scope"}),
    ),
    "vllm-forward": Format(
        read=lambda path, options, given: read_vllm_forward(path, drafters=options.drafters),
        takes=frozenset({"drafters"}),
    ),
    "vllm-steps": Format(
        read=lambda path, options, given: read_vllm_steps(path, num_speculative_tokens=given.num_speculative_tokens)
    ),
    "sglang-sps": Format(read=lambda path, options, given: read_sglang_sps(path)),
    "sglang-dump": Format(
        read=lambda path, options, given: read_sglang_dump(path, num_speculative_tokens=given.num_speculative_tokens)
    ),
    "tensorrt-llm": Format(
        read=lambda path, options, given: read_tensorrt_llm(path, num_speculative_tokens=given.num_speculative_tokens)
    ),
    "tensorrt-llm-steps": Format(read=lambda path, options, given: read_tensorrt_llm_steps(path)),
    "vidur": Format(
        read=lambda path, options, given: read_vidur(
            path, num_layers=options.num_layers, tensor_parallel_size=given.tensor_parallel_size
        ),
        takes=frozenset({"num_layers"}),
    ),
}
# As a user types them, where that is not the field's name.
_OPTIONS = {"columns": "column", "drafters": "with-drafter", "timing_scope": "timing-scope", "num_layers": "num-layers"}


def import_costs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    format: str,
    options: ReadingOptions,
    given: Facts,
    citation: str | None = None,
) -> tuple[Profile, tuple[str, ...]]:
    """The profile of the files at `paths`, all of one format, and what there is to say of what it leaves out."""
    chosen = FORMATS[format]
    for field in fields(options):
        if getattr(options, field.name) is not None and field.name not in chosen.takes:
            able = ", ".join(name for name, each in FORMATS.items() if field.name in each.takes)
            raise ConfigError(
                f"--{_OPTIONS.get(field.name, field.name)} says nothing to the format {format}",
                f"leave it out; it is for {able}",
            )
    if len(set(map(os.path.realpath, paths))) < len(paths):
        raise ConfigError("a file is named twice, and its timings would count twice", "name each file once")
    drafters = options.drafters or {}
    if drafters and len(paths) > 1:
        raise ConfigError(
            f"--with-drafter beside {len(paths)} files, expected one: whose cases they are without the drafter",
            "give one file, or import the others on their own",
        )
    read = [chosen.read(Path(path), options, given) for path in paths]
    profile = profile_of(read, paths, beside=list(drafters.values()), given=given, citation=citation)
    left_out = [note for each in read for note in each.notes]
    return profile, (*left_out, *pooled_drafting(profile.samples), *unpriced_drafting(profile.samples))
