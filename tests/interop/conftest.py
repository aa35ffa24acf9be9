"""A profile of a file in some format, as `specplan import costs` makes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from specplan.files import Profile
from specplan.interop import Facts, ReadingOptions, import_costs


@pytest.fixture
def imported(tmp_path: Path) -> Callable[..., Profile]:
    """`imported("steps", "num_reqs,...", unit="us", context_len=512)`: content, then options of either kind."""

    def run(format: str, *contents: str, **options: Any) -> Profile:
        paths = []
        for index, content in enumerate(contents):
            paths.append(tmp_path / f"source{index}")
            paths[-1].write_text(content)
        known = {field.name for field in fields(ReadingOptions)}
        reading = {name: options.pop(name) for name in list(options) if name in known}
        profile, _ = import_costs(
            paths,
            format=format,
            options=ReadingOptions(**reading),
            citation=options.pop("citation", None),
            given=Facts(**options),
        )
        profile.write(tmp_path / "profile.json")
        return Profile.read(tmp_path / "profile.json")

    return run
