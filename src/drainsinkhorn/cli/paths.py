"""Write output files completely under another name before renaming, and never over a file that the command uses."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

JOURNAL_SUFFIXES = ("", "-wal", "-shm", "-journal", ".damaged", ".damaged-wal", ".damaged-shm")
"""Suffixes of all files that belong to a journal: those of SQLite, and those of a damaged journal put aside. If several
were put aside, the later ones are found by their names."""


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` once it is written, so that no partial file is ever visible.

    It is made in the same folder under a random name. Exclusive creation fails where the name exists, and does not
    follow a symbolic link. After an error nothing is left of it, and what was at `path` is untouched.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths are, or would be, one file: also through symbolic and hard links."""
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def journal_files(journal: Path | None) -> list[Path]:
    """All paths that a journal may write to, and all damaged journals that were put aside."""
    if journal is None:
        return []
    aside = journal.parent.glob(f"{glob.escape(journal.name)}.damaged*")
    return [*(journal.with_name(journal.name + suffix) for suffix in JOURNAL_SUFFIXES), *aside]
