"""What `drain explain` says: where the work went, and what another width, mode, tol or start would give."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drainsinkhorn.backends import choose, load
from drainsinkhorn.cli import show
from drainsinkhorn.cli.messages import escape
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.ledger import survival
from drainsinkhorn.core.options import MODES
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import OptionsError, ProblemError
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.starts import start
from drainsinkhorn.run.resolve import resolve_eps
from drainsinkhorn.run.solve import solve
from drainsinkhorn.theory import profile_width_cost, removable
from drainsinkhorn.theory.replay import replay

MOST = 4096
"""Problems of a file that a prediction counts; more would only make it slower."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Slots, kernel cycles and repacks that a mode and a width would take for the same depths."""

    mode: str
    width: int
    slots: int
    cycles: int
    repacks: int
    seconds: float | None = None


def what_if(depths: Sequence[int], width: int, price: Callable[..., float] | None = None) -> list[Choice]:
    """Every mode at this width; compact and stream at half of it, and at twice where more lanes would be used.

    Results would be the same, except in mode static.

    `price` gives seconds for (depths, mode, width), where they are known.
    """
    wanted = [(mode, MODES[mode].width or width) for mode in MODES]
    others = [width // 2] * (width > 1) + [2 * width] * (width < len(depths))
    wanted += [(mode, other) for mode in ("compact", "stream") for other in others]
    choices: list[Choice] = []
    for mode, lanes in wanted:
        ledger = replay(depths, mode, lanes, Audit())
        seconds = None if price is None else price(depths, mode, lanes)
        cycles = sum(cycles for _, cycles in ledger.widths)
        choices.append(Choice(mode, lanes, ledger.slots, cycles, ledger.repacks, seconds))
    return choices


def explain(rows: Sequence[Mapping[str, Any]], ledger: Mapping[str, Any]) -> dict[str, Any]:
    """What a saved solution tells beyond its numbers."""
    depths = [row["depth"] for row in rows if row["depth"] > 0]
    width = max((width for width, _ in ledger["widths"]), default=1)
    total = sum(ledger["seconds"].values())
    return {
        "width": width,
        "shares": {verb: seconds / total for verb, seconds in ledger["seconds"].items()} if total else {},
        "removable_slots": removable(depths, width) if depths else 0,
        "what_if": [_plain(choice) for choice in what_if(depths, width)] if depths else [],
    }


def _plain(choice: Choice) -> dict[str, Any]:
    return {name: value for name, value in asdict(choice).items() if value is not None}


def show_solution(console: Console, report: Mapping[str, Any], *, every: bool) -> None:
    """Print a solution: its problems, the first twenty unless `every`, their ledger, and the explanation."""
    ledger = report["ledger"]
    console.print(show.results_table(report["problems"], limit=None if every else 20))
    console.print(show.curve(ledger["survival"]))
    console.print(show.account(ledger))
    console.print(f"{ledger['audits']:,} audits, {ledger['verified']:,} verifies, {ledger['legs']:,} legs")
    show.show_choices(console, ledger["choices"])
    _show_explanation(console, report["explanation"], ledger)


def _show_explanation(console: Console, report: Mapping[str, Any], ledger: Mapping[str, Any]) -> None:
    if report["shares"]:
        console.print(_time_table(ledger["seconds"], report["shares"]))
    if report["what_if"]:
        console.print(_choices_table(report["what_if"], "the same depths in every mode"))
        console.print("another tol or start: drain explain IN.npz --sample 8", highlight=False)


def _time_table(seconds: Mapping[str, float], shares: Mapping[str, float]) -> Table:
    table = _table("where the time went", ("part", "seconds", "share"))
    for verb, share in sorted(shares.items(), key=lambda item: -item[1]):
        table.add_row(Text(escape(verb)), f"{seconds[verb]:.4f}", f"{share:.1%}")
    return table


def _choices_table(choices: Sequence[Mapping[str, Any]], title: str) -> Table:
    timed = any("seconds" in choice for choice in choices)
    table = _table(title, ("mode", "width", "slots", "kernel cycles", "repacks", *(["seconds"] if timed else [])))
    for choice in choices:
        cells = [f"{choice[name]:,}" for name in ("width", "slots", "cycles", "repacks")]
        table.add_row(choice["mode"], *cells, *([f"{choice['seconds']:.3g}"] if timed else []))
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=Text(title, style="bold"), title_justify="left", header_style="bold", box=None, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place else "left")
    return table


@dataclass(frozen=True, slots=True)
class SampleRun:
    """One run of the sample: its settings and its outcome.

    Attributes:
        name: The settings that were requested.
        mode: The mode that ran.
        start: Where problems started: "zero", "gaussian" or "given", with counts if they differ.
        acceleration: The acceleration that ran.
        depths: Depth of each problem.
        converged: How many converged.
        seconds: Wall time.
        note: Why it could not be run; empty if it ran.
    """

    name: str
    mode: str = ""
    start: str = ""
    acceleration: str = ""
    depths: tuple[int, ...] = ()
    converged: int = 0
    seconds: float = 0.0
    note: str = ""


def sample(problems: Sequence[Problem[Any]], count: int, tol: float, backend: str, seed: int = 0) -> dict[str, Any]:
    """Run some of the problems at other tols, from other starts and with every acceleration of the backend."""
    if count < 1:
        raise OptionsError(f"a sample needs at least 1 problem, got {count}")
    if not problems:
        raise ProblemError("there are no problems to draw a sample from")
    picked = choose()[0] if backend == "auto" else load(backend)
    places = sorted(random.Random(seed).sample(range(len(problems)), min(count, len(problems))))
    # Trials of one problem have one eps.
    drawn = resolve_eps([problems[place] for place in places], backend=picked)
    usual = picked.accelerations[0]
    solve(drawn[:1], backend=picked, tol=tol, accelerate=usual)  # compiles, so that no trial has it inside
    trials = [
        _run(f"tol {tol:g}", drawn, picked, tol, usual),
        _run(f"tol {tol / 10:g}", _at(drawn, 0.1), picked, tol / 10, usual),
        _run(f"tol {tol * 10:g}", _at(drawn, 10.0), picked, tol * 10, usual),
        *(_run(f"start {name}", _from(drawn, name), picked, tol, usual) for name in ("zero", "gaussian")),
        *(_run(f"accelerate {name}", drawn, picked, tol, name) for name in picked.accelerations[1:]),
    ]
    report: dict[str, Any] = {"sampled": places, "problems": len(problems), "trials": list(map(asdict, trials))}
    ran = [(problem, depth) for problem, depth in zip(drawn, trials[0].depths, strict=True) if depth > 0]
    shapes = sorted(shape for problem, _ in ran if (shape := _shape(problem)) is not None)
    if shapes:
        shape = shapes[len(shapes) // 2]
        lanes, depths = [problem for problem, _ in ran], [depth for _, depth in ran]
        cost = profile_width_cost(picked, shape, seconds=1.5, tol=tol, accelerate=usual, problems=lanes)
        # The whole file, its depths drawn from the sample's.
        drawn_depths = random.Random(seed).choices(depths, k=min(MOST, len(problems)))
        choices = what_if(drawn_depths, min(len(drawn_depths), 16), lambda *case: cost.predict(*case).seconds)
        report["what_if"] = [_plain(choice) for choice in choices]
    return report


def _at(problems: Sequence[Problem[Any]], factor: float) -> list[Problem[Any]]:
    """Return the problems, with the tol of those that have their own multiplied by `factor`."""
    return [p if p.tol is None else replace(p, tol=factor * float(p.tol)) for p in problems]


def _from(problems: Sequence[Problem[Any]], init: str) -> list[Problem[Any]]:
    return [replace(problem, init=init) for problem in problems]


def _run(name: str, problems: Sequence[Problem[Any]], backend: Backend[Any], tol: float, accelerate: str) -> SampleRun:
    begun = time.perf_counter()
    solution = solve(list(problems), backend=backend, tol=tol, accelerate=accelerate, warn=False)
    seconds = time.perf_counter() - begun
    results = list(solution)
    return SampleRun(
        name=name,
        mode=", ".join(choice.picked for choice in solution.ledger.choices if choice.what == "mode"),
        start=_starts(results),
        acceleration=", ".join(sorted({result.acceleration for result in results})),
        depths=tuple(result.depth for result in results),
        converged=sum(result.converged for result in results),
        seconds=seconds,
        note=_why_not(results),
    )


def _starts(results: Sequence[Result[Any]]) -> str:
    """Where the problems that ran started."""
    counts = Counter(_start_of(result) for result in results if result.emitted is not None)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _start_of(result: Result[Any]) -> str:
    """The start of a problem, as its instance and, for "auto", the rule of all backends decide."""
    instance = result.instance
    if isinstance(instance.init, Potentials):
        return "given"
    return "gaussian" if instance.init != "zero" and start(instance)[1].any() else "zero"


def _why_not(results: Sequence[Result[Any]]) -> str:
    return results[0].message if all(result.emitted is None for result in results) else ""


def _shape(problem: Problem[Any]) -> tuple[int, int, int] | None:
    """(n, m, d) of a problem between points; None for dense costs."""
    if problem.x is None or problem.y is None:
        return None
    return problem.x.shape[0], problem.y.shape[0], int(problem.x.shape[1])


def show_sample(console: Console, report: Mapping[str, Any]) -> None:
    """Print what the trials found, and what they predict for the whole file."""
    sampled = f"{len(report['sampled'])} of {report['problems']} problems"
    console.print(f"{sampled}; each row states the mode, start and acceleration that ran", highlight=False)
    header = (
        "trial",
        "mode",
        "start",
        "acceleration",
        "converged",
        "median depth",
        "largest",
        "slots",
        "ratio",
        "seconds",
    )
    table, base = _table("the sample, really run", header), sum(report["trials"][0]["depths"])
    for trial in report["trials"]:
        depths = sorted(trial["depths"])
        if trial["note"]:
            table.add_row(trial["name"], "", "", "", Text("not offered"), "", "", "", "", "")
            continue
        table.add_row(
            trial["name"],
            trial["mode"],
            trial["start"],
            trial["acceleration"],
            f"{trial['converged']} of {len(depths)}",
            f"{depths[len(depths) // 2]:,}",
            f"{depths[-1]:,}",
            f"{sum(depths):,}",
            f"{sum(depths) / base:.2f}" if base else "-",
            f"{trial['seconds']:.3f}",
        )
    console.print(table)
    if report.get("what_if"):
        title = f"predicted for all {min(MOST, report['problems']):,}, their depths drawn from the sample's"
        console.print(_choices_table(report["what_if"], title))


def curves(report: Mapping[str, Any]) -> dict[str, list[int]]:
    """The survival curve of every trial that ran."""
    return {trial["name"]: survival(trial["depths"]) for trial in report["trials"] if not trial["note"]}
