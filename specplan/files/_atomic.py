"""Files appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from specplan.errors import FileError

__all__ = ["write_atomically"]


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`, so that a reader finds the old file or the new one and an interruption leaves the old.

    The bytes go to a temporary file in the same directory, are synced, and take the name in one `os.replace`.
    """
    # Resolved, so that a symbolic link stays one and its target is what gets replaced.
    target = Path(path).resolve()
    if target.is_dir():
        raise FileError(f"cannot write {path}: it is a directory, expected a file", "add a file name to the path")
    if target.exists() and not target.is_file():
        # Replacing a device such as /dev/stdout would remove it.
        raise FileError(f"cannot write {path}: it is not a regular file", "give a path to an ordinary file")
    if target.exists() and not os.access(target, os.W_OK):
        raise FileError(f"cannot write {path}: the file is read-only", "give another path, or make it writable")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            # After a replace the name is gone already; after anything else, Ctrl-C included, this removes the half.
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}", _hint(error, target)) from error


def _hint(error: OSError, target: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"create the directory first: mkdir -p {target.parent}"
    if isinstance(error, NotADirectoryError):
        return f"{target.parent} is a file; give a path inside a directory"
    if isinstance(error, PermissionError):
        return f"you may not write in {target.parent}; give another path, or change its permissions"
    return "check the path, the permissions and the free space, or give another path"
