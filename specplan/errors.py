"""Every error a user can cause or meet, and the exit code each ends with.

SpecplanError
├── ConfigError        2  an option or argument cannot be used as given
├── FileError          3  a file is missing, malformed, too old or too new, or cannot be written
├── CoverageError      3  a cost was asked for outside what was measured
├── InfeasibleError    4  the question has an answer, and the answer is no
└── MeasurementError   5  the device could not be measured

1 is no error: whoever asked whether something is as it should be gets a no. A comparison found something slower, or a
strict doctor a warning.

The message says what was found and what was expected; the hint says what to do or run next. cli/ is the one place that
turns these into output; anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ConfigError",
    "CoverageError",
    "FileError",
    "InfeasibleError",
    "MeasurementError",
    "SpecplanError",
]


class SpecplanError(Exception):
    """An expected failure: what was found and expected, and what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[SpecplanError], tuple[str, str]]:
        """So that one raised in another process arrives whole."""
        return type(self), (self.message, self.hint)


class ConfigError(SpecplanError):
    """An option or argument cannot be used as given."""

    exit_code = 2


class FileError(SpecplanError):
    """A file is missing, malformed, too old or too new, or cannot be written."""

    exit_code = 3


class CoverageError(SpecplanError):
    """A cost was asked for outside what was measured."""

    exit_code = 3


class InfeasibleError(SpecplanError):
    """The question was understood, and the answer is that it cannot be done."""

    exit_code = 4


class MeasurementError(SpecplanError):
    """The device could not be measured."""

    exit_code = 5
