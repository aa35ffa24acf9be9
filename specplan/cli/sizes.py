"""Capture sizes, as commands take them."""

from __future__ import annotations

__all__ = ["parse_sizes"]

_SHOWN = 40  # characters of what is none


def parse_sizes(text: str) -> list[int]:
    """`1,2,4` as numbers, in their order."""
    from specplan.errors import ConfigError

    parts = [part.strip() for part in text.split(",")]
    wrong = [
        part for part in parts if not (part.isascii() and part.isdigit() and len(part) < 8 and 0 < int(part) <= 2**20)
    ]
    if wrong:
        found = wrong[0] if len(wrong[0]) <= _SHOWN else f"{wrong[0][:_SHOWN]}..."
        raise ConfigError(f"--capture-sizes holds {found!r}, expected whole numbers of 1 to {2**20}", "try 1,2,4,8")
    return [int(part) for part in parts]
