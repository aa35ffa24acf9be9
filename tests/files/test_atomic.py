from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from specplan.errors import FileError
from specplan.files._atomic import write_atomically


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one")
    write_atomically(str(path), b"two")
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["file"]


def test_the_mode_of_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    write_atomically(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    write_atomically(link, b"data")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"data"


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["full", "ctrl-c"]
)
def test_an_interruption_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(descriptor: int) -> None:
        raise failure

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError if isinstance(failure, OSError) else KeyboardInterrupt):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a directory") as raised:
        write_atomically(tmp_path, b"")
    assert str(tmp_path) in raised.value.message


def test_a_missing_directory_is_named_in_the_hint(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file or directory") as raised:
        write_atomically(tmp_path / "absent" / "file", b"")
    assert raised.value.hint.endswith(f"mkdir -p {tmp_path / 'absent'}")
    assert names(tmp_path) == []


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="Not a directory") as raised:
        write_atomically(tmp_path / "file" / "inner", b"")
    assert "is a file" in raised.value.hint


def test_a_directory_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match="Permission denied") as raised:
        write_atomically(tmp_path / "file", b"")
    assert f"you may not write in {tmp_path}" in raised.value.hint


def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    # Root may write anywhere, so the answer of the system is what the test sets.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(FileError, match="read-only"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="not a regular file"):
        write_atomically(pipe, b"")
    assert pipe.is_fifo()
