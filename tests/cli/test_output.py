"""What long work says of itself where there is no terminal."""

from __future__ import annotations

import pytest

from specplan.cli import output


def test_a_line_for_every_tenth_says_how_long_it_will_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times_s = iter([100.0, 130.0, 600.0, 1090.0])
    monkeypatch.setattr("specplan.cli.output.time.monotonic", lambda: next(times_s, 1100.0))
    report = output.line_report("validating")
    for fraction in (0.05, 0.1, 0.15, 0.5, 0.99, 1.0):
        report(fraction, "serving")
    assert capsys.readouterr().err.splitlines() == [
        "validating: 10% (serving; about 4 min left)",
        "validating: 50% (serving; about 8 min left)",
        "validating: 90% (serving; about 10 s left)",
        "validating: 100% (serving)",
    ]
