"""Files appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from specplan.errors import ConfigError, FileError

__all__ = ["require_writable", "write_atomically"]


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` to `path`, so that a reader finds the old file or the new one and an interruption leaves the old.

    The bytes go to a temporary file in the same directory, are synced, and take the name in one `os.replace`.
    """
    target = _replaceable(path)
    temporary = _temporary(target)
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
        raise _refusal(path, target, error) from error


def require_writable(path: str | os.PathLike[str], *inputs: str | os.PathLike[str]) -> None:
    """Refuse what `write_atomically` would refuse, before long work begins, and leave nothing behind.

    An output that is one of the `inputs` is refused too: it would take the place of what it was made from.
    """
    target = _replaceable(path)
    for given in inputs:
        if target == Path(os.path.realpath(given)):  # unlike resolve, at peace with a loop of links
            raise ConfigError(f"the output {path} is also an input, and would replace it", "give another output path")
    temporary = _temporary(target)
    try:
        temporary.touch(exist_ok=False)
        temporary.unlink()
    except OSError as error:
        raise _refusal(path, target, error) from error


def _replaceable(path: str | os.PathLike[str]) -> Path:
    try:
        # Resolved, so that a symbolic link stays one and its target is what gets replaced.
        target = Path(path).resolve()
        is_directory = target.is_dir()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileError(f"cannot write {path}: {reason}", "give another path") from error
    if is_directory:
        raise FileError(f"cannot write {path}: it is a directory, expected a file", "add a file name to the path")
    if target.exists() and not target.is_file():
        # Replacing a device such as /dev/stdout would remove it.
        raise FileError(f"cannot write {path}: it is not a regular file", "give a path to an ordinary file")
    if target.exists() and not os.access(target, os.W_OK):
        raise FileError(f"cannot write {path}: the file is read-only", "give another path, or make it writable")
    return target


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")


def _refusal(path: str | os.PathLike[str], target: Path, error: OSError) -> FileError:
    return FileError(f"cannot write {path}: {error.strerror or error}", _hint(error, target))


def _hint(error: OSError, target: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return f"create the directory first: mkdir -p {target.parent}"
    if isinstance(error, NotADirectoryError):
        return f"{target.parent} is a file; give a path inside a directory"
    if isinstance(error, PermissionError):
        return f"you may not write in {target.parent}; give another path, or change its permissions"
    return "check the path, the permissions and the free space, or give another path"
