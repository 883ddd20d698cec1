"""Texts for terminals."""

from __future__ import annotations


def escape(text: object) -> str:
    """Return a text with control characters escaped, so that none of foreign origin reaches a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
