"""What a doctor found, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specplan.files import Finding

__all__ = ["diagnosis_lines"]


def diagnosis_lines(
    device: str | None, findings: Sequence[Finding], unknown: Sequence[Finding], fine: Sequence[str]
) -> Iterator[str]:
    """Warnings first, then notes, then what nobody knows, what is fine, and the sum of it."""
    warnings, notes = (
        [finding for finding in findings if finding.severity == severity] for severity in ("warning", "note")
    )
    for kind, found in (("warning", warnings), ("note", notes), ("unknown", unknown)):
        yield from (f"{kind}: {each.place}: {each.message} ({each.hint})" for each in found)
    if fine:
        yield f"fine: {', '.join(fine)}"
    counts = ((len(warnings), "warnings"), (len(notes), "notes"), (len(unknown), "unknown"), (len(fine), "fine"))
    told = ", ".join(f"{count} {name.removesuffix('s') if count == 1 else name}" for count, name in counts)
    yield f"{device or 'a device without a name'}: {told}"
