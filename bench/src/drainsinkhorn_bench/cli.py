"""`drain bench`: run campaigns, report them, compare two commits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from drainsinkhorn.cli.messages import INTERRUPTED, JSON, escape, fail, print_json, warn
from drainsinkhorn.cli.show import plain_table
from drainsinkhorn.model.errors import DrainError
from drainsinkhorn_bench import compare as comparing
from drainsinkhorn_bench import meters, named, probe, records, report, runner
from drainsinkhorn_bench.plan import SCALES, Campaign

app = typer.Typer(
    name="bench",
    help="Paired experiments on this machine: run them, report them, compare two commits.",
    no_args_is_help=True,
)
OUT = Path("bench-runs")
"""Folder of runs when none is named."""
T = TypeVar("T")
FAILED, STOPPED = 1, 3
DEVICE = Annotated[str, typer.Option(help="auto, cpu or cuda.")]


class Live:
    """Shows where a run stands: a bar on a terminal, a line for each unit elsewhere."""

    def __init__(self, console: Console, campaigns: list[Campaign], *, quiet: bool = False) -> None:
        self._items = {plan.name: len(plan.units) + len(plan.studies) for plan in campaigns}
        self._done = dict.fromkeys(self._items, 0)
        self._rate: dict[str, float] = {}
        self._console, self._quiet, self._said = console, quiet, ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=quiet or not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=sum(self._items.values()), left="")

    def __enter__(self) -> Live:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, tick: runner.Tick) -> None:
        """Show a tick."""
        self._done[tick.campaign] = tick.done
        if tick.left is not None and tick.total > tick.done:
            self._rate[tick.campaign] = tick.left / (tick.total - tick.done)
        left, what = self._left(), escape(f"{tick.campaign}: {tick.what}")
        self._bar.update(self._task, description=what, completed=sum(self._done.values()), left=left)
        said = escape(f"{tick.campaign}: {tick.what.split(':')[0]}")
        if self._bar.disable and not self._quiet and said != self._said:
            self._said = said
            count = f"{sum(self._done.values())}/{sum(self._items.values())}"
            self._console.print(f"[{count}] {said}{f', {left}' if left else ''}", markup=False, highlight=False)

    def _left(self) -> str:
        """What is left of all campaigns; one that has not begun takes what a unit took in the others."""
        if not self._rate:
            return ""
        mean = sum(self._rate.values()) / len(self._rate)
        rest = sum((self._items[n] - self._done[n]) * self._rate.get(n, mean) for n in self._items)
        return f"about {timedelta(seconds=round(rest))} left"


NAMES = Annotated[list[str] | None, typer.Argument(help=f"Any of {', '.join(named.NAMES)}; none: all.")]


@app.command()
def run(
    names: NAMES = None,
    scale: Annotated[
        str, typer.Option(help=f"{' or '.join(SCALES)}: minutes on a laptop, or the paper's sizes.")
    ] = "small",
    data: Annotated[
        Path | None, typer.Option(help="Folder with the public data sets or their npz subsets; none: generated data.")
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Run folder; a run goes on from what is there.")] = OUT,
    device: DEVICE = "auto",
    seconds: Annotated[
        float | None, typer.Option(help="Begin nothing that would end later than this; run again to go on.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Only units and studies whose names begin so.")] = None,
    as_json: JSON = False,
) -> None:
    """Run campaigns. Exit code 3: stopped for time, run again to go on; 1: something could not be run."""
    place = _told(lambda: meters.place(device))
    plans = [
        _told(lambda n=name: named.load(n, scale=scale, data=data, device=place.device))
        for name in names or named.NAMES
    ]
    ended: dict[str, runner.Ended] = {}
    left = seconds
    clock = place.clock
    with Live(Console(stderr=True), plans, quiet=as_json) as live:
        for plan in plans:
            begun = clock()
            try:
                ended[plan.name] = runner.run(plan, out / plan.name, place, seconds=left, tell=live, only=only)
            except DrainError as error:
                fail(error)
            except KeyboardInterrupt:
                warn(f"interrupted; what is finished is in {out}, the same command goes on from there")
                raise typer.Exit(INTERRUPTED) from None
            if left is not None:
                left -= clock() - begun
                if left <= 0:
                    break
    _say_ended(ended, plans, out, only=only, as_json=as_json)


def _told(work: Callable[[], T]) -> T:
    try:
        return work()
    except DrainError as error:
        fail(error)


def _say_ended(
    ended: dict[str, runner.Ended], plans: list[Campaign], out: Path, *, only: str | None, as_json: bool
) -> None:
    void = {f"{name}/{unit}/{arm}": why for name, end in ended.items() for (unit, arm), why in end.void.items()}
    open_ = [plan.name for plan in plans if plan.name not in ended or not ended[plan.name].complete]
    if as_json:
        counts = {name: {"done": end.done, "total": end.total} for name, end in ended.items()}
        print_json({"out": str(out), "campaigns": counts, "void": void})
    else:
        for what, why in void.items():
            warn(f"void: {what}: {why}")
        for name, end in ended.items():
            warn(f"{name}: {end.done} of {end.total} done")
        warn(f"raw files: {out} (drain bench report {out})")
    broken = [what for what in void if what.endswith(("/load", "/study"))]
    if broken:
        raise typer.Exit(FAILED)
    raise typer.Exit(STOPPED if open_ and only is None else 0)


@app.command("report")
def write_report(
    outs: Annotated[list[Path] | None, typer.Argument(help="Run folders; several are summed up by host.")] = None,
    to: Annotated[Path | None, typer.Option(help="Where to write; none: the folder report in the first.")] = None,
) -> None:
    """Write index.html, tables.md and tables.tex from the raw files alone."""
    folders = outs or [OUT]
    for path in _told(lambda: report.write(records.read_all(*folders), to or folders[0] / "report")):
        Console().print(escape(path), markup=False, highlight=False)


@app.command()
def compare(
    base: Annotated[str, typer.Option(help="The revision that is compared with.")],
    head: Annotated[str, typer.Option(help="The revision that is judged.")] = "HEAD",
    case: Annotated[list[str] | None, typer.Option(help=f"{', '.join(probe.CASES)}; none: all.")] = None,
    rounds: Annotated[int, typer.Option(help="Paired measurements of every case.")] = 10,
    device: DEVICE = "auto",
    as_json: JSON = False,
) -> None:
    """Measure two commits side by side in clean worktrees. Exit code 1 if the head is slower beyond the noise."""
    console = Console(stderr=True)
    place = _told(lambda: meters.place(device))
    repository = _told(lambda: comparing.repository_of(Path.cwd()))
    with console.status("") if console.is_terminal and not as_json else _Silent() as status:
        found = _told(
            lambda: comparing.compare(
                repository, base, head, cases=case or (), rounds=rounds, device=place.device, tell=status.update
            )
        )
    if as_json:
        print_json([_compared(row) for row in found])
    else:
        _show_compared(found, base, head)
    worse = [row for row in found if row.verdict == "slower" or row.verdict.startswith("void")]
    raise typer.Exit(FAILED if worse else 0)


class _Silent:
    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, _: str) -> None:
        pass


def _compared(row: comparing.Compared) -> dict[str, Any]:
    head, floor = row.head, row.floor
    told: dict[str, Any] = {"case": row.case, "verdict": row.verdict, "note": row.note}
    if head is not None and floor is not None and head.interval is not None and floor.interval is not None:
        told |= {"ratio": head.ratio, "interval": [head.interval.low, head.interval.high], "noise": row.noise}
        told |= {"wins": head.wins, "rounds": head.pairs, "floor": [floor.interval.low, floor.interval.high]}
    return told


def _show_compared(found: list[comparing.Compared], base: str, head: str) -> None:
    title = f"seconds of {base} / seconds of {head}: above 1, {head} is faster"
    table = plain_table("case", "ratio", "95 % interval", "wins", "noise floor", "verdict", title=title)
    for row in map(_compared, found):
        said = escape(row["verdict"] + (f" ({row['note']})" if row["note"] else ""))
        if "ratio" not in row:
            table.add_row(row["case"], "", "", "", "", said)
            continue
        low, high = row["interval"]
        noise = f"{row['noise'] - 1:.1%}"
        wins = f"{row['wins']} of {row['rounds']}"
        table.add_row(row["case"], f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}", wins, noise, said)
    Console().print(table)


@app.command("list")
def list_campaigns(
    scale: Annotated[str, typer.Option(help=f"{' or '.join(SCALES)}.")] = "small",
    device: DEVICE = "auto",
    data: Annotated[Path | None, typer.Option(help="As for run.")] = None,
    as_json: JSON = False,
) -> None:
    """Campaigns, their units, and which arms can run here."""
    place = _told(lambda: meters.place(device))
    rows = list[dict[str, Any]]()
    for name in named.NAMES:
        plan = _told(lambda n=name: named.load(n, scale=scale, data=data, device=place.device))
        absent = {arm.name: reason for arm in plan.arms if (reason := arm.available()) is not None}
        rows.append(
            {
                "name": plan.name,
                "title": plan.title,
                "units": len(plan.units),
                "studies": len(plan.studies),
                "arms": [arm.name for arm in plan.arms if arm.name not in absent],
                "absent": absent,
            }
        )
    if as_json:
        print_json(rows)
        return
    table = plain_table("campaign", "units", "studies", "arms that run here", "about")
    for row in rows:
        table.add_row(row["name"], str(row["units"]), str(row["studies"]), ", ".join(row["arms"]), row["title"])
    Console().print(table)
    for row in rows:
        for arm, reason in row["absent"].items():
            Console().print(f"{row['name']}: {arm} cannot run here: {reason}", markup=False, highlight=False)
