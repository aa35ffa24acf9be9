from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specplan.errors import FileError
from specplan.interop.rows import Row, json_lines, read_object, read_table


def write(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "file"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "a,b\n1,x\n2,y\n",
        "# a comment, with commas\na, b\n1, x\n\n# another\n2,y",
        '{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n',
        '\n[{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]',
        "\ufeffa,b\r\n1,x\r\n2,y\r\n",
    ],
)
def test_a_table_is_told_by_its_first_character(tmp_path: Path, content: str) -> None:
    rows = read_table(write(tmp_path, content))
    assert [(row.count("a"), row.value("b")) for row in rows] == [(1, "x"), (2, "y")]


def test_rows_know_their_lines(tmp_path: Path) -> None:
    path = write(tmp_path, '# one\na\n# three\n4\n"5\n6"\n')
    assert [row.place for row in read_table(path)] == [f"{path}: line 4", f"{path}: line 6"]
    path = write(tmp_path, "[{}, {}]")
    assert [row.place for row in read_table(path)] == [f"{path}: [0]", f"{path}: [1]"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no rows"),
        ("# nothing else\n", "holds no rows"),
        ("a,b\n", "holds no rows"),
        ("[]", "holds no rows"),
        ("a,b\n1\n", "line 2: 1 fields, expected the 2 of the header"),
        ("a,b,a\n1,2,3\n", "line 1: two columns of one name, of a, b, a"),
        ('a\n"1\n', "line 2: not CSV"),
        ('a\n"1"2\n', "line 2: not CSV"),
        ("a\n" + "9" * 200_000, "line 2: not CSV: field larger than field limit"),
        (b"a\n\xff\n", "byte 2 is not UTF-8"),
        ('{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ('{"a": 1}\n7\n', "line 2: expected a JSON object, got int"),
        ("[1]", r"\[0\]: expected a JSON object, got int"),
        ("[{}", "not JSON"),
        ('{"a": NaN}', "line 1: not JSON"),
        ('{"a": 1e999}', "line 1: not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(FileError, match=message) as caught:
        read_table(write(tmp_path, content))
    assert "\n" not in caught.value.message


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for read in (read_table, json_lines, read_object):
        with pytest.raises(FileError, match="No such file"):
            read(tmp_path / "absent")
        with pytest.raises(FileError, match="directory"):
            read(tmp_path)


@pytest.mark.parametrize("value", [4, 4.0, "4", " 4 ", "4.0", "4e0"])
def test_whole_numbers(value: object) -> None:
    assert Row(place="p", fields={"n": value}).count("n") == 4


@pytest.mark.parametrize(
    "value",
    [0, -1, 4.5, "4.5", "four", True, [], {}, "nan", "inf", "-inf", float("nan"), 2**20 + 1, 10**400, "1e999", "0x4"],
)
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(FileError, match=r"^p: n is .*, expected a whole number of 1 to 1048576$"):
        Row(place="p", fields={"n": value}).count("n")


@pytest.mark.parametrize("value", [0, -1.0, "x", True, "nan", "inf", float("inf"), 1e10, 10**400, [1.0]])
def test_what_is_no_time(value: object) -> None:
    with pytest.raises(FileError, match=r"^p: t is .*, expected more than 0, at most 1e\+09$"):
        Row(place="p", fields={"t": value}).number("t")


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    for value in ("x" * 1000, "two\nlines", "\x1b[31m"):
        with pytest.raises(FileError) as caught:
            Row(place="p", fields={"n": value}).count("n")
        assert len(caught.value.message) < 150
        assert caught.value.message.isprintable()


@pytest.mark.parametrize("fields", [{}, {"n": None}, {"n": ""}])
def test_null_and_empty_are_not_there(fields: dict[str, Any]) -> None:
    row = Row(place="p", fields=fields)
    assert "n" not in row
    with pytest.raises(FileError, match="p: no n, expected one beside its fields"):
        row.value("n")


def test_of_many_fields_the_first_are_named() -> None:
    row = Row(place="p", fields={str(index): index for index in range(1000)})
    with pytest.raises(FileError, match=r"\(0, 1, .*, 19, \.\.\.\)$"):
        row.value("n")


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (lambda row: row.counts("n"), 3, "n is 3, expected a list"),
        (lambda row: row.counts("n"), [], r"n is \[\], expected a list of one or more"),
        (lambda row: row.counts("n"), [1, "x"], r"n\[1\] is x, expected a whole number"),
        (lambda row: row.counts("n"), [1, 8, 8], r"n\[2\] is 8, expected more than 8"),
        (lambda row: row.numbers("n", beside="m"), [1.0], "n holds 1, expected as many as m"),
        (lambda row: row.numbers("n"), [0.0], r"n\[0\] is 0.0, expected more than 0"),
        (lambda row: row.numbers("n", least=0), [-1.0], r"n\[0\] is -1.0, expected 0 or more"),
        (lambda row: row.child("n"), [], r"n is \[\], expected a JSON object"),
        (lambda row: row.children("n"), [{}, 1], r"n\[1\] is 1, expected a JSON object"),
    ],
)
def test_lists_and_objects(read: Callable[[Row], object], value: object, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read(Row(place="p", fields={"n": value, "m": [1, 2]}))


def test_children_know_their_place() -> None:
    row = Row(place="p", fields={"a": {"b": [{"c": 0}]}})
    with pytest.raises(FileError, match=r"^p: a: b\[0\]: c is 0"):
        row.child("a").children("b")[0].count("c")
