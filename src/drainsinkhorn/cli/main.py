"""`drain`: demo, solve, distance, explain, serve, warm, env, backends, tune, and commands of other distributions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

import drainsinkhorn
from drainsinkhorn.backends import REGISTRY
from drainsinkhorn.cli import explain as explaining
from drainsinkhorn.cli import files, machine, running, show
from drainsinkhorn.cli.arguments import (
    CONSECUTIVE,
    EPS,
    KEY,
    READ_LIMIT,
    REP,
    RHO,
    SOURCES,
    TIMES,
    limit_of,
    make_reading,
)
from drainsinkhorn.cli.commands import Commands
from drainsinkhorn.cli.distance import distance
from drainsinkhorn.cli.inputs import files_of, read_inputs
from drainsinkhorn.cli.messages import INTERRUPTED, JSON, UNFINISHED, escape, fail, print_json, warn
from drainsinkhorn.cli.paths import is_same_file, journal_files
from drainsinkhorn.cli.serve import serve
from drainsinkhorn.cli.wants import WANTS, add_problems, parse_wants, wanted_arrays
from drainsinkhorn.cli.warm import warm
from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import MODES, RECHECKS, STARTS, Options, Rechecks
from drainsinkhorn.model.errors import BackendUnavailable, DrainError, Interrupted
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.plans import plots
from drainsinkhorn.run.saved import write_solution
from drainsinkhorn.workloads import WORKLOADS
from drainsinkhorn.workloads import load as load_workload
from drainsinkhorn.workloads.pictures import plot_demo

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"drain {drainsinkhorn.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def drain(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Batched entropic optimal transport: many problems drain through one kernel, each to a verified accuracy."""


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


def _writable_solution(out: Path, journal: Path | None, sources: Sequence[Path]) -> None:
    """Reject a solution or a journal that cannot be written, or that would overwrite each other or an input."""
    _writable(out, problems=sources, journal=journal_files(journal))
    _writable(journal)
    for written in journal_files(journal):
        _writable(written, problems=sources)


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
        if not as_json:
            # Before the workload is loaded: its library may take seconds to import.
            console.rule(f"[bold]{name}")
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
            console.print(about, highlight=False)
        start = time.perf_counter()
        # Audited often, so that the chart shows the pack narrow cycle by cycle.
        results, ledger = running.run(problems, Options(audit=Audit(every=4)), "auto", quiet=as_json)
        reports[name] = running.describe(results, ledger, time.perf_counter() - start)
        if not as_json:
            show.show_report(reports[name], with_curve=True)
        if out is not None:
            path = out if workload != "all" else out.with_stem(f"{out.stem}-{name}")
            _picture(partial(plot_demo, name, results, ledger, str(path)), path, console, quiet=as_json)
    if as_json:
        print_json(reports)
    raise typer.Exit(0 if all(not report["failed"] for report in reports.values()) else UNFINISHED)


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
    sources: Annotated[list[Path], SOURCES],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT.npz", help="Where to write the solution.")],
    eps: EPS = None,
    rho: RHO = None,
    consecutive: CONSECUTIVE = False,
    key: KEY = None,
    rep: REP = "X_pca",
    times: TIMES = None,
    want: Annotated[
        str | None, typer.Option(metavar="NAMES", help=f"Write these too, separated by commas: {', '.join(WANTS)}.")
    ] = None,
    tol: Annotated[float, typer.Option(help="Bound on the L1 residual, for problems without their own.")] = 1e-3,
    mode: Annotated[str, typer.Option(help=f"auto, {', '.join(MODES)}.")] = "auto",
    width: Annotated[int | None, typer.Option(help="Lanes of a pack; by default what suits the problems.")] = None,
    max_depth: Annotated[int, typer.Option(help="Cycles before a problem is given up.")] = 10_000,
    backend: Annotated[str, typer.Option(help=f"auto, {', '.join(REGISTRY)}.")] = "auto",
    accelerate: Annotated[str, typer.Option(help="auto, none (plain Sinkhorn), or what the backend offers.")] = "auto",
    init: Annotated[str, typer.Option(help=f"{', '.join(STARTS)}: where problems without a start begin.")] = "auto",
    rescue: Annotated[bool, typer.Option(help="Run unconverged problems once more, in float64.")] = True,
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
    """Solve problems of an .npz file, or between clouds of points. Exit code 0 only if every problem converged."""
    start, inputs, wants = time.perf_counter(), list[Problem[Any]](), list[str]()
    try:
        wants = parse_wants(want)
        options = Options(
            tol=tol, mode=mode, width=width, max_depth=max_depth, accelerate=accelerate, init=init, rescue=rescue,
            recheck=cast("Rechecks", recheck),
        )  # fmt: skip
        _writable_solution(out, journal, files_of(sources))
        reading = make_reading(eps, consecutive, key, rep, times, read_limit, rho)
        inputs = read_inputs(sources, reading)
        problems, within = add_problems(wants, inputs, backend)
        with running.open_fleet(workers, ray) as fleet:
            results, ledger = running.run(problems, options, backend, quiet=as_json, journal=journal, fleet=fleet)
        write_solution(out, results[: len(inputs)], ledger, tol, wanted_arrays(wants, results, within))
    except Interrupted as stopped:
        finished = [stopped.results[ticket] for ticket in sorted(stopped.results) if ticket < len(inputs)]
        try:
            write_solution(out, finished, stopped.ledger, tol)
        except DrainError as error:
            fail(error)
        unwritten = f", without {', '.join(wants)}" if wants else ""
        warn(f"interrupted: {len(finished)} of {len(inputs)} problems finished, written to {out}{unwritten}")
        raise typer.Exit(INTERRUPTED) from None
    except DrainError as error:
        fail(error)
    _report_solution(results, len(inputs), ledger, time.perf_counter() - start, out, as_json=as_json)


def _report_solution(
    results: list[Result[Any]], count: int, ledger: Ledger, seconds: float, out: Path, *, as_json: bool
) -> None:
    """Report a solution of `count` problems and of those that `add_problems` added, then exit with its code."""
    report = running.describe(results[:count], ledger, seconds)
    clouds = results[count:]
    if clouds:
        report["within"] = {"problems": len(clouds), "converged": sum(result.converged for result in clouds)}
    if as_json:
        print_json({**report, "out": str(out)})
    else:
        show.show_report(report, with_curve=False)
        Console().print(f"solution: {escape(out)} (drain explain {escape(out)})", highlight=False, markup=False)
    raise typer.Exit(UNFINISHED if report["failed"] or not all(result.converged for result in clouds) else 0)


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
    eps: Annotated[
        str | None, typer.Option(metavar="EPS", help="With --sample: eps of a file that has none, as for drain solve.")
    ] = None,
    tol: Annotated[float, typer.Option(help="With --sample: the tol to vary.")] = 1e-3,
    backend: Annotated[str, typer.Option(help=f"With --sample: auto, {', '.join(REGISTRY)}.")] = "auto",
    plot: Annotated[Path | None, typer.Option(metavar="PATH", help="Draw it (needs the extra plot).")] = None,
    read_limit: READ_LIMIT = None,
    as_json: JSON = False,
) -> None:
    """Explain a solution: where the work went, what was removed, what another width, mode, tol or start would give."""
    _writable(plot, **{"problems" if sample is not None else "solution": [source]})
    limit = limit_of(read_limit)
    try:
        if sample is not None:
            problems = files.read_problems(source, limit, eps)
            report = explaining.sample(problems, sample, Options(tol=tol).tol, backend)
        else:
            rows, ledger = files.read_solution(source, limit)
            report = {"problems": rows, "ledger": ledger, "explanation": explaining.explain(rows, ledger)}
    except DrainError as error:
        fail(error)
    console = Console()
    if as_json:
        print_json(report)
    elif sample is not None:
        explaining.show_sample(console, report)
    else:
        explaining.show_solution(console, report, every=every)
    if plot is not None:
        if sample is not None:
            _picture(lambda: plots.plot_trials(explaining.curves(report), str(plot)), plot, console, quiet=as_json)
        else:
            drawn = report["ledger"], report["explanation"]
            _picture(lambda: plots.plot_explanation(*drawn, str(plot)), plot, console, quiet=as_json)


for command in (distance, serve, warm, machine.env, machine.tune, machine.backends):
    app.command()(command)

if __name__ == "__main__":
    app()
