"""Findings, line by line: what each is called, where it is, what was found and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specplan.files import Finding

__all__ = ["finding_lines"]


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
