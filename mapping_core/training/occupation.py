"""One run at a time in a `run_dir`: a second one would clear away what the first is writing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mapping_core.errors import CheckpointError

LOCK = ".lock"
_held: set[Path] = set()  # by this process, whose threads the system's locks do not tell apart


@contextmanager
def occupied(run_dir: Path | None) -> Iterator[None]:
    """Hold `run_dir` while entered; raises `CheckpointError` where another run holds it.

    The lock is this process': it ends with it, whatever ends it, and the workers of its loaders do not inherit it.
    Where the system or the file system has no such locks, only this process' other runs are seen.
    """
    if run_dir is None:
        yield
        return
    place = run_dir.resolve()
    file = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o666) if place not in _held else None
    if file is None or not _locks(file):
        if file is not None:
            os.close(file)
        raise CheckpointError(
            f"{run_dir}: another run is at work in it: wait for it, end it, or choose another run_dir"
        )
    _held.add(place)
    try:
        yield
    finally:
        _held.discard(place)
        os.close(file)


def _locks(file: int) -> bool:
    """Take the lock of an open file; false if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True
