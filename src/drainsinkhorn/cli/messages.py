"""What all commands share: messages on stderr, exit codes, and the option for JSON."""

from __future__ import annotations

import json
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from drainsinkhorn.model.text import escape as escape

UNFINISHED, BAD_INPUT, INTERRUPTED = 1, 2, 130
"""Exit codes of every command."""
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def warn(message: str) -> None:
    """Print a message to stderr, not as markup: paths and names of extras have brackets."""
    Console(stderr=True).print(escape(message), markup=False, highlight=False, soft_wrap=True)


def fail(error: Exception | str) -> NoReturn:
    """Print an error to stderr and leave the command with BAD_INPUT."""
    warn(f"error: {error}")
    raise typer.Exit(BAD_INPUT)


def print_json(value: Any) -> None:
    """Print a value to stdout as one JSON object."""
    print(json.dumps(value, allow_nan=False))  # noqa: T201
