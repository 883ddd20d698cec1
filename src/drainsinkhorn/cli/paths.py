"""Which files a command uses, so that none of them is written over."""

from __future__ import annotations

import glob
import os
from pathlib import Path

JOURNAL_SUFFIXES = ("", "-wal", "-shm", "-journal", ".damaged", ".damaged-wal", ".damaged-shm")
"""Suffixes of all files that belong to a journal: those of SQLite, and those of a damaged journal put aside. If several
were put aside, the later ones are found by their names."""


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
