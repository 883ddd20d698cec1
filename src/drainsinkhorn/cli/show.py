"""Output for terminals: tables, the survival curve in block characters, and the work of a run in one line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from drainsinkhorn.cli.files import json_number
from drainsinkhorn.cli.messages import escape
from drainsinkhorn.model.result import Result

BLOCKS = " ▁▂▃▄▅▆▇█"
COLOURS = {"CONVERGED": "green", "DEPTH_LIMIT": "yellow", "NONFINITE": "red", "INVALID": "red"}


def plain_table(*columns: str, **style: Any) -> Table:
    """An empty table without lines; `style` has further arguments of `rich.table.Table`."""
    table = Table(box=None, **style)
    for column in columns:
        table.add_column(column)
    return table


def curve(survival: Sequence[int], columns: int = 60, rows: int = 8) -> Panel:
    """The survival curve: how many problems are still at work at each cycle."""
    depth, top = len(survival), max(survival, default=0)
    if not depth:
        return Panel(Text("no problem ran a cycle"), title="survival", width=columns + 14)
    columns = min(columns, depth)
    # A column stands for a stretch of cycles and shows their mean.
    edges = [round(i * depth / columns) for i in range(columns + 1)]
    means = [sum(survival[i:j]) / (j - i) for i, j in itertools.pairwise(edges)]
    lines: list[Text] = []
    for row in reversed(range(rows)):
        label = f"{round(top * (row + 1) / rows):>6,} " if row in (rows - 1, rows // 2 - 1) else " " * 7
        eighths = (math.ceil(mean / top * rows * 8) - row * 8 for mean in means)
        lines.append(Text(label) + Text("".join(BLOCKS[min(8, max(0, e))] for e in eighths), style="cyan"))
    lines.append(Text(" " * 7 + "1" + f"{depth:,}".rjust(max(1, columns - 1))))
    return Panel(Group(*lines), title="problems still at work, by cycle", width=max(36, columns + 14))


def account(ledger: Mapping[str, Any]) -> Text:
    """Slots spent and removed, in one line."""
    static, removed = ledger["static_slots"], ledger["removed_slots"]
    share = f" ({removed / static:.0%})" if static else ""
    rescue = ledger.get("rescue")
    rescued = f"; rescue took {rescue['slots']:,} more" if rescue else ""
    return Text.assemble(
        f"{ledger['slots']:,} slots spent; static batches would spend {static:,}: ",
        (f"{removed:,} slots removed{share}", "bold green" if removed > 0 else ""),
        rescued,
    )


def results_table(rows: Sequence[Mapping[str, Any]], *, limit: int | None = 20) -> Table:
    """One line per problem, the first `limit` of them."""
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name, justify in (
        ("problem", "right"),
        ("status", "left"),
        ("depth", "right"),
        ("row", "right"),
        ("col", "right"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("note", overflow="fold")
    for row in rows[:limit]:
        status = str(row["status"])
        table.add_row(
            f"{row['ticket']}",
            Text(escape(status), style=COLOURS.get(status, "")),
            f"{row['depth']:,}",
            *("-" if row[side] is None else f"{row[side]:.2e}" for side in ("row", "col")),
            Text(escape(row["note"])),
        )
    if limit is not None and len(rows) > limit:
        table.add_row("...", f"{len(rows) - limit} more", "", "", "", "")
    return table


def as_row(result: Result[Any]) -> dict[str, Any]:
    """Return the fields of a Result that the table and JSON show."""
    note = "" if result.converged else result.message.partition(": ")[2]
    notes = [note, "rescued" if result.rescued else "", _width(result)]
    notes += ["streamed for want of memory"] if result.streamed else []
    return {
        "ticket": result.ticket,
        "status": result.status.name,
        "depth": result.depth,
        "row": json_number(result.residual.row),
        "col": json_number(result.residual.col),
        "note": "; ".join(filter(None, notes)),
    }


def _width(result: Result[Any]) -> str:
    """The dtype of potentials that came back in a wider one than the points."""
    if not result.widened or result.emitted is None:
        return ""
    return f"potentials in {str(result.emitted.f.dtype).removeprefix('torch.')}"


def show_choices(console: Console, choices: Sequence[Sequence[str]]) -> None:
    """What was chosen, and why."""
    for what, picked, reason in choices:
        console.print(Text.assemble(f"{escape(what)}: ", (escape(picked), "bold"), f" ({escape(reason)})"))


def show_report(report: Mapping[str, Any], *, with_curve: bool) -> None:
    """Print the report of a run: choices, account, counts, and a table of problems that did not converge."""
    console = Console()
    show_choices(console, report["ledger"]["choices"])
    if with_curve:
        console.print(curve(report["ledger"]["survival"]))
    console.print(account(report["ledger"]))
    worst = report["worst_residual"]
    verified = f", every residual verified to be at most {worst:.4g}" if worst is not None else ""
    console.print(
        f"{report['converged']} of {report['problems']} problems converged in {report['seconds']:.2f} s{verified}",
        highlight=False,
    )
    if "within" in report:
        clouds = report["within"]
        console.print(
            f"for divergences, {clouds['converged']} of {clouds['problems']} clouds with themselves converged"
        )
    if report["failed"]:
        console.print(results_table(report["failed"]))
