from __future__ import annotations

from specplan.files import Finding
from specplan.report.doctor import diagnosis_lines


def finding(code: str, severity: str) -> Finding:
    return Finding(code=code, severity=severity, place="place", message=f"{code} was found", hint="do something")


def test_the_worst_first_and_the_sum_last() -> None:
    found = [finding("small", "note"), finding("bad", "warning"), finding("worse", "warning")]
    assert list(diagnosis_lines("a CPU", found, [finding("dark", "note")], ["memory", "swap"])) == [
        "warning: place: bad was found (do something)",
        "warning: place: worse was found (do something)",
        "note: place: small was found (do something)",
        "unknown: place: dark was found (do something)",
        "fine: memory, swap",
        "a CPU: 2 warnings, 1 note, 1 unknown, 2 fine",
    ]


def test_nothing_fine_is_not_said() -> None:
    assert list(diagnosis_lines(None, [finding("bad", "warning")], [], [])) == [
        "warning: place: bad was found (do something)",
        "a device without a name: 1 warning, 0 notes, 0 unknown, 0 fine",
    ]
