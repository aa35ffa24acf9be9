"""The formats that costs are imported from, by name, and what each needs to be told."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from specplan.errors import ConfigError
from specplan.files.profile import Profile
from specplan.interop.steps import Unit, read_steps
from specplan.interop.timings import Facts, Timings, profile_of

__all__ = ["FORMATS", "ReadingOptions", "import_costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """What only some formats take; see their readers."""

    unit: Unit | None = None
    columns: Mapping[str, str] | None = None
    where: Mapping[str, Collection[str]] | None = None
    timing_scope: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    read: Callable[[Path, ReadingOptions], Timings]
    takes: frozenset[str] = frozenset()  # of the reading options


_OPTIONS = {"unit": "unit", "columns": "column", "where": "where", "timing_scope": "timing-scope"}

FORMATS: dict[str, Format] = {
    "steps": Format(
        read=lambda path, options: read_steps(
            path,
            unit=options.unit or "ms",
            columns=options.columns,
            where=options.where,
            timing_scope=options.timing_scope,
        ),
        takes=frozenset({"unit", "columns", "where", "timing_scope"}),
    ),
}


def import_costs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    format: str,
    options: ReadingOptions,
    given: Facts,
    citation: str | None = None,
) -> tuple[Profile, tuple[str, ...]]:
    """The profile of the files at `paths`, all of one format, and what there is to say of what was left out."""
    chosen = FORMATS[format]
    for option in fields(options):
        if getattr(options, option.name) is not None and option.name not in chosen.takes:
            able = [name for name, each in FORMATS.items() if option.name in each.takes]
            raise ConfigError(
                f"--{_OPTIONS[option.name]} says nothing to the format {format}",
                f"it is for {', '.join(able)}; leave it out",
            )
    read = [chosen.read(Path(path), options) for path in paths]
    notes = tuple(note for each in read for note in each.notes)
    return profile_of(read, paths, given=given, citation=citation), notes
