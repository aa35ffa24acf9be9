"""What long work says of itself where there is no terminal, and how it ends on Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from specplan.cli import output

INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"


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


def test_an_interrupt_ends_an_import_and_is_raised_everywhere_else(tmp_path: Path) -> None:
    """Raised in an import it may be lost; elsewhere whoever writes a file removes the half of it."""
    (tmp_path / "slow.py").write_text(f"import os, signal\n{INTERRUPT}\nprint('went on')\n")
    start = "import os, signal\nfrom specplan.cli import on_interrupt\nsignal.signal(signal.SIGINT, on_interrupt)\n"
    caught = "try:\n    {}\nexcept KeyboardInterrupt:\n    print('raised')\n"
    for body, code, said in (("import slow", 130, ""), (INTERRUPT, 0, "raised\n")):
        ended = subprocess.run(
            [sys.executable, "-c", start + caught.format(body)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (code, said)
