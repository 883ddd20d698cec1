"""`drain`: demo, solve, explain, env, backends, tune, and commands of other distributions."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table

import drainsinkhorn
from drainsinkhorn.backends import REGISTRY, choose
from drainsinkhorn.backends import load as load_backend
from drainsinkhorn.cli import explain as explaining
from drainsinkhorn.cli import files, show
from drainsinkhorn.cli.archives import GIB
from drainsinkhorn.cli.bar import Bar
from drainsinkhorn.cli.commands import Commands
from drainsinkhorn.cli.messages import INTERRUPTED, JSON, escape, fail, warn
from drainsinkhorn.cli.paths import is_same_file, journal_files
from drainsinkhorn.core.events import Event, Lost, Resumed, fan_out
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import MODES, RECHECKS, STARTS, Options, Rechecks
from drainsinkhorn.model.errors import BackendUnavailable, DrainError, Interrupted
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.parallel import Fleet, LocalFleet, RayFleet
from drainsinkhorn.plans import plots
from drainsinkhorn.run.solve import solve
from drainsinkhorn.workloads import WORKLOADS
from drainsinkhorn.workloads import load as load_workload

app = typer.Typer(
    cls=Commands,
    help="Batched entropic optimal transport: many problems drain through one kernel, each to a verified accuracy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
READ_LIMIT = Annotated[
    float | None,
    typer.Option(
        metavar="GIB",
        help="Size to which a file may unpack. By default half of the available memory, and 1 GiB for a file that "
        "unpacks to more than 100 times its size.",
    ),
]
UNFINISHED = 1


def _writable(path: Path | None, **used: Sequence[Path]) -> None:
    """Before any work is done, reject an output path that cannot be written or that would overwrite a file in use.

    `used` holds the other files that the command reads or writes, by the name of their contents.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        fail(f"{path.parent} is no folder, so {path.name} could not be written there")
    if path.is_dir():
        fail(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():
        fail(f"{path} is no regular file; name a file")
    for what, others in used.items():
        if any(is_same_file(path, other) for other in others):
            fail(f"{path} holds the {what}; name another file to write to")


def _limit(gib: float | None) -> int | None:
    if gib is not None and not 0 < gib < 2**30:
        fail(f"read-limit must be a positive number of GiB, got {gib}")
    return None if gib is None else int(gib * GIB)


def _run_on(fleet: Fleet, problems: list[Problem[Any]], **how: Any) -> tuple[list[Result[Any]], Ledger]:
    """Solve on a fleet."""
    run = fleet.stream(problems, **how)
    results: dict[int, Result[Any]] = {}
    try:
        for result in run:
            results[result.ticket] = result
    except KeyboardInterrupt:
        raise Interrupted(results, len(problems), run.ledger) from None
    return [results[ticket] for ticket in sorted(results)], run.ledger


def _fleet(workers: int | None, ray: str | None) -> AbstractContextManager[Fleet | None]:
    """Where to solve: here, in processes of this machine, or on a Ray cluster."""
    if ray is not None:
        return RayFleet(ray, workers)
    return nullcontext() if workers is None else LocalFleet(workers)


def _say_faults(event: Event) -> None:
    """Say what an earlier run left and whether its journal was whole, and which workers were lost."""
    if isinstance(event, Lost):
        warn(f"worker {event.worker} was lost ({event.reason}); {len(event.tickets)} problems run again")
    if isinstance(event, Resumed) and event.known:
        warn(f"{event.known} problems are in {event.path} already and are not solved again")
    if isinstance(event, Resumed) and event.torn:
        warn(f"the end of {event.path} was torn: {event.torn} bytes of unfinished writing are left out")
    if isinstance(event, Resumed) and event.salvaged is not None:
        warn(
            f"{event.path} was damaged: {event.salvaged} whole problems are saved; the damaged file is kept beside it, "
            "with .damaged after its name"
        )


def _run(
    problems: list[Problem[Any]],
    options: Options,
    backend: str,
    *,
    quiet: bool,
    journal: Path | None = None,
    fleet: Fleet | None = None,
) -> tuple[list[Result[Any]], Ledger]:
    """Solve under a live bar."""
    with Bar(Console(stderr=True), len(problems), quiet=quiet) as bar:
        observe, options = fan_out(bar, _say_faults), replace(options, warn=False)
        if fleet is not None:
            return _run_on(fleet, problems, options=options, backend=backend, observe=observe, journal=journal)
        start = time.perf_counter()
        solution = solve(problems, backend=backend, options=options, observe=observe, journal=journal)
        ledger, whole = solution.ledger, time.perf_counter() - start
    rescue = ledger.rescue.seconds.values() if ledger.rescue else ()
    ledger.seconds["outside"] = max(0.0, whole - sum(ledger.seconds.values()) - sum(rescue))
    return list(solution), ledger


def _report(results: list[Result[Any]], ledger: Ledger, seconds: float) -> dict[str, Any]:
    failed = [show.as_row(result) for result in results if not result.converged]
    return {
        "problems": len(results),
        "converged": len(results) - len(failed),
        "seconds": seconds,
        "worst_residual": max((r.residual.worst for r in results if r.converged), default=None),
        "failed": failed,
        "ledger": files.describe_ledger(ledger),
    }


def _show(report: dict[str, Any], *, curve: bool) -> None:
    console = Console()
    show.show_choices(console, report["ledger"]["choices"])
    if curve:
        console.print(show.curve(report["ledger"]["survival"]))
    console.print(show.account(report["ledger"]))
    worst = report["worst_residual"]
    verified = f", every residual verified to be at most {worst:.4g}" if worst is not None else ""
    console.print(
        f"{report['converged']} of {report['problems']} problems converged in {report['seconds']:.2f} s{verified}",
        highlight=False,
    )
    if report["failed"]:
        console.print(show.results_table(report["failed"]))


@app.command()
def demo(
    workload: Annotated[str, typer.Option(help=f"One of {', '.join(WORKLOADS)}, or all.")] = "all",
    out: Annotated[Path | None, typer.Option(help="Where to write the picture (needs the extra plot).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated data.")] = 0,
    as_json: JSON = False,
) -> None:
    """Watch batches of unequal problems drain, each to a verified result."""
    console, reports = Console(), dict[str, Any]()
    _writable(out)
    if seed < 0:
        fail(f"seed must not be negative, got {seed}")
    for name in WORKLOADS if workload == "all" else [workload]:
        try:
            make, about = load_workload(name)
            problems = make(seed)
        except BackendUnavailable as error:
            if workload != "all":
                fail(error)
            warn(f"skipping {name}: {error}")
            continue
        except DrainError as error:
            fail(error)
        if not as_json:
            console.rule(f"[bold]{name}")
            console.print(about, highlight=False)
        start = time.perf_counter()
        results, ledger = _run(problems, Options(), "auto", quiet=as_json)
        reports[name] = _report(results, ledger, time.perf_counter() - start)
        if not as_json:
            _show(reports[name], curve=True)
        if out is not None:
            _draw(ledger, out if workload != "all" else out.with_stem(f"{out.stem}-{name}"), console, quiet=as_json)
    if as_json:
        print(json.dumps(reports, allow_nan=False))  # noqa: T201
    raise typer.Exit(0 if all(not report["failed"] for report in reports.values()) else UNFINISHED)


def _draw(ledger: Ledger, path: Path, console: Console, *, quiet: bool) -> None:
    _picture(lambda: plots.plot_ledger(ledger, str(path)), path, console, quiet=quiet)


def _picture(draw: Callable[[], object], path: Path, console: Console, *, quiet: bool) -> None:
    try:
        draw()
    except (DrainError, OSError, ValueError) as error:
        warn(f"no picture: {error}")
    else:
        if not quiet:
            console.print(f"picture: {escape(path)}", highlight=False, markup=False)


@app.command("solve")
def solve_file(
    source: Annotated[
        Path, typer.Argument(metavar="IN.npz", help="Problems; the keys are documented in docs/files.md.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT.npz", help="Where to write the solution.")],
    tol: Annotated[float, typer.Option(help="Bound on the L1 residual, for problems without their own.")] = 1e-3,
    mode: Annotated[str, typer.Option(help=f"auto, {', '.join(MODES)}.")] = "auto",
    width: Annotated[int | None, typer.Option(help="Lanes of a pack; by default what suits the problems.")] = None,
    max_depth: Annotated[int, typer.Option(help="Cycles before a problem is given up.")] = 10_000,
    backend: Annotated[str, typer.Option(help=f"auto, {', '.join(REGISTRY)}.")] = "auto",
    accelerate: Annotated[str, typer.Option(help="auto, none (plain Sinkhorn), or what the backend offers.")] = "auto",
    init: Annotated[str, typer.Option(help=f"{', '.join(STARTS)}: where problems without a start begin.")] = "auto",
    rescue: Annotated[bool, typer.Option(help="Run unconverged problems once more, alone.")] = True,
    recheck: Annotated[
        str,
        typer.Option(help=f"{', '.join(RECHECKS)}: which converged results are recomputed before they are written."),
    ] = "sampled",
    journal: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Keep what is finished here; go on from it when run again.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Solve in so many processes, or actors with --ray.")] = None,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Solve on a Ray cluster; local starts one, auto finds one.")
    ] = None,
    read_limit: READ_LIMIT = None,
    as_json: JSON = False,
) -> None:
    """Solve the problems of an .npz file. Exit code 0 only if every problem converged."""
    start = time.perf_counter()
    try:
        options = Options(
            tol=tol, mode=mode, width=width, max_depth=max_depth, accelerate=accelerate, init=init, rescue=rescue,
            recheck=cast("Rechecks", recheck),
        )  # fmt: skip
        _writable(out, problems=[source], journal=journal_files(journal))
        _writable(journal)
        for written in journal_files(journal):
            _writable(written, problems=[source])
        problems = files.read_problems(source, _limit(read_limit))
        with _fleet(workers, ray) as fleet:
            results, ledger = _run(problems, options, backend, quiet=as_json, journal=journal, fleet=fleet)
        files.write_solution(out, results, ledger, tol)
    except Interrupted as stopped:
        finished = [stopped.results[ticket] for ticket in sorted(stopped.results)]
        try:
            files.write_solution(out, finished, stopped.ledger, tol)
        except DrainError as error:
            fail(error)
        warn(f"interrupted: {len(finished)} of {stopped.total} problems finished, written to {out}")
        raise typer.Exit(INTERRUPTED) from None
    except DrainError as error:
        fail(error)
    report = _report(results, ledger, time.perf_counter() - start)
    if as_json:
        print(json.dumps({**report, "out": str(out)}, allow_nan=False))  # noqa: T201
    else:
        _show(report, curve=False)
        Console().print(f"solution: {escape(out)} (drain explain {escape(out)})", highlight=False, markup=False)
    raise typer.Exit(UNFINISHED if report["failed"] else 0)


@app.command()
def explain(
    source: Annotated[
        Path, typer.Argument(metavar="FILE.npz", help="A solution that drain solve wrote; with --sample, problems.")
    ],
    every: Annotated[bool, typer.Option("--all", help="Every problem, not only the first twenty.")] = False,
    sample: Annotated[
        int | None,
        typer.Option(metavar="K", help="Run K of the file's problems at other tols, starts and accelerations."),
    ] = None,
    tol: Annotated[float, typer.Option(help="With --sample: the tol to vary.")] = 1e-3,
    backend: Annotated[str, typer.Option(help=f"With --sample: auto, {', '.join(REGISTRY)}.")] = "auto",
    plot: Annotated[Path | None, typer.Option(metavar="PATH", help="Draw it (needs the extra plot).")] = None,
    read_limit: READ_LIMIT = None,
    as_json: JSON = False,
) -> None:
    """Explain a solution: where the work went, what was removed, what another width, mode, tol or start would give."""
    _writable(plot, **{"problems" if sample is not None else "solution": [source]})
    limit = _limit(read_limit)
    try:
        if sample is not None:
            report = explaining.sample(files.read_problems(source, limit), sample, Options(tol=tol).tol, backend)
        else:
            rows, ledger = files.read_solution(source, limit)
            report = {"problems": rows, "ledger": ledger, "explanation": explaining.explain(rows, ledger)}
    except DrainError as error:
        fail(error)
    console = Console()
    if as_json:
        print(json.dumps(report, allow_nan=False))  # noqa: T201
    elif sample is not None:
        explaining.show_sample(console, report)
    else:
        _show_solution(console, report, every=every)
    if plot is not None:
        if sample is not None:
            _picture(lambda: plots.plot_trials(explaining.curves(report), str(plot)), plot, console, quiet=as_json)
        else:
            drawn = report["ledger"], report["explanation"]
            _picture(lambda: plots.plot_explanation(*drawn, str(plot)), plot, console, quiet=as_json)


def _show_solution(console: Console, report: dict[str, Any], *, every: bool) -> None:
    ledger = report["ledger"]
    console.print(show.results_table(report["problems"], limit=None if every else 20))
    console.print(show.curve(ledger["survival"]))
    console.print(show.account(ledger))
    console.print(f"{ledger['audits']:,} audits, {ledger['verified']:,} verifies, {ledger['legs']:,} legs")
    show.show_choices(console, ledger["choices"])
    explaining.show_explanation(console, report["explanation"], ledger)


@app.command()
def env(as_json: JSON = False) -> None:
    """What this machine and installation are, for bug reports."""
    facts: dict[str, Any] = {
        "drainsinkhorn": drainsinkhorn.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }
    for package in ("numpy", "rich", "typer", "matplotlib", "scikit-learn", "torch", "jax", "ray"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    if as_json:
        print(json.dumps(facts))  # noqa: T201
        return
    table = Table(box=None, show_header=False)
    for name, value in facts.items():
        table.add_row(name, "not installed" if value is None else str(value))
    Console().print(table)


@app.command()
def tune(as_json: JSON = False) -> None:
    """Measure which tiles are fastest on this GPU (a few minutes), and keep them for later runs."""
    try:
        load_backend("triton")
        from drainsinkhorn.backends.triton import tiles, tuning

        gpu = tuning.gpu()
    except (BackendUnavailable, ImportError) as error:
        fail(str(error))
    best: dict[tuple[int, int], Any] = {}
    table = Table(box=None)
    for column in ("scores", "padded to", "tile", "us together", "us alone"):
        table.add_column(column)
    for trial in tuning.trials():
        best_so_far = best.get((trial.kind, trial.dp))
        if best_so_far is None or trial.cost < best_so_far.cost:
            best[trial.kind, trial.dp] = trial
    found = {key: trial.tile for key, trial in best.items()}
    path = tiles.keep(gpu, found)
    if as_json:
        print(json.dumps({"gpu": gpu, "file": str(path), "tiles": [t._asdict() for t in best.values()]}))  # noqa: T201
        return
    for trial in best.values():
        size = f"{trial.tile['bm']} x {trial.tile['bn']}, {trial.tile['warps']} warps"
        table.add_row(tiles.KINDS[trial.kind], str(trial.dp), size, f"{trial.together:.1f}", f"{trial.alone:.1f}")
    Console().print(table)
    Console().print(f"kept in {escape(path)}", highlight=False, markup=False)


@app.command()
def backends(as_json: JSON = False) -> None:
    """Which backends can run here, and which one auto takes."""
    rows: list[dict[str, str]] = []
    for name, entry in REGISTRY.items():
        try:
            load_backend(name)
            state = "available"
        except BackendUnavailable as error:
            state = str(error)
        rows.append({"name": name, "state": state, "about": entry.about})
    auto, reason = choose()
    if as_json:
        print(json.dumps({"backends": rows, "auto": auto.name, "reason": reason}))  # noqa: T201
        return
    table = Table(box=None)
    for column in ("name", "state", "about"):
        table.add_column(column)
    for row in rows:
        table.add_row(row["name"], row["state"], row["about"])
    console = Console()
    console.print(table)
    console.print(f"auto takes [bold]{auto.name}[/]: {reason}", highlight=False)


if __name__ == "__main__":
    app()
