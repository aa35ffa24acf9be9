"""Findings, line by line: what each is called, where it is, what was found and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specplan.files import Finding
from specplan.files.tables import Semantics

__all__ = ["finding_lines", "semantics_note"]

_READINGS: dict[Semantics, str] = {
    "linear": "a size that was not measured costs what lies between its neighbours",
    "floor": "a size that was not measured, past the last one too, costs what the measured one below it does",
    "exact": "a size that was not measured has no cost",
}


def finding_lines(name: str, findings: Sequence[Finding]) -> Iterator[str]:
    """Warnings first; then how many of each there are of what is called `name`."""
    counts = []
    for severity in ("warning", "note"):
        found = [finding for finding in findings if finding.severity == severity]
        counts.append(f"{len(found)} {severity}{'' if len(found) == 1 else 's'}")
        for finding in found:
            yield f"{severity} {finding.code}: {finding.place}: {finding.message}"
            yield f"  next: {finding.hint}"
    yield f"{name}: {', '.join(counts)}"


def semantics_note(semantics: Semantics) -> Iterator[str]:
    """Of tables that are not padded: how these are read, where findings are of what an engine runs."""
    if semantics != "padded":
        yield (
            f"these tables are {semantics}: {_READINGS[semantics]}; what is found of the curve and of the capture "
            "limit is of padded ones, as an engine runs them"
        )
