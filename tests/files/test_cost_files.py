"""A file that holds a profile or cost tables, whichever."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import make_profile_of_every_region

from specplan.costs import tables_from_profile
from specplan.errors import FileError
from specplan.files import CostTables, read_costs


def test_the_schema_tells_the_two_apart(tmp_path: Path) -> None:
    profile = make_profile_of_every_region()
    tables = tables_from_profile(profile)
    profile.write(tmp_path / "profile.json")
    tables.write(tmp_path / "tables.json")
    assert read_costs(tmp_path / "profile.json") == profile
    read = read_costs(tmp_path / "tables.json")
    assert isinstance(read, CostTables)
    assert read.digest() == tables.digest()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema": "specplan.validation/1"}', "(specplan.profile/1 or specplan.tables/1), got specplan.validation/1"),
        ('{"schema": "two\\nlines"}', "got 'two\\nlines'"),
        ("{}", "got no schema"),
        ('{"schema": 3}', "no schema, expected specplan.profile/1"),
        ('{"schema": "specplan.profile/9"}', "specplan.profile/9 is newer than this specplan reads (1)"),
        ('{"schema": "specplan.tables/9"}', "specplan.tables/9 is newer than this specplan reads (1)"),
        ('{"schema": "specplan.tables/1"}', "missing required field"),
        ("[1]", "expected a JSON object, got array"),
        ("", "not JSON: it ends too early"),
        ("PAR1\xff", "not JSON"),
        ('{"schema":' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_neither_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(content)
    with pytest.raises(FileError) as raised:
        read_costs(path)
    assert raised.value.message.startswith(f"{path}: ")
    assert message in raised.value.message
    assert raised.value.message.isprintable()


def test_a_missing_file_and_one_that_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no such file"):
        read_costs(tmp_path / "absent.json")
    with pytest.raises(FileError, match="is a directory"):
        read_costs(tmp_path)
