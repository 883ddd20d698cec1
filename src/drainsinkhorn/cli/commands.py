"""Commands of `drain` that other distributions register.

A distribution registers one with an entry point of the group `drainsinkhorn.commands`: its name is the command, its
object a `typer.Typer`. Objects are loaded when their command, or a list of all commands, is asked for.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from typer.core import TyperGroup
from typer.main import get_group

from drainsinkhorn.cli.messages import fail

GROUP = "drainsinkhorn.commands"
DISTRIBUTIONS = {"bench": "drainsinkhorn-bench"}
"""Known commands of other distributions, and what must be installed for each."""


def entry_points_by_name() -> dict[str, EntryPoint]:
    """Entry points of the installed commands, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


class Commands(TyperGroup):
    """Commands of this library, then those that installed distributions register."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands; the library's own come first."""
        return [*super().list_commands(ctx), *sorted(entry_points_by_name().keys() - self.commands.keys())]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, or None; a known one that is not installed ends with the way to install it."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        if (point := entry_points_by_name().get(cmd_name)) is not None:
            return get_group(point.load())
        if cmd_name in DISTRIBUTIONS and not ctx.resilient_parsing:
            distribution = DISTRIBUTIONS[cmd_name]
            install = f"pip install {distribution}, or in a checkout pip install -e ./{cmd_name}"
            fail(f"drain {cmd_name} is part of {distribution}, which is not installed; {install}")
        return None
