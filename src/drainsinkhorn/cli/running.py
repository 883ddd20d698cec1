"""Solve the problems of a command: under a live bar, in this process or on a fleet."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from drainsinkhorn.cli.messages import warn
from drainsinkhorn.cli.show import as_row
from drainsinkhorn.core.events import Event, Lost, Resumed, fan_out
from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.core.options import Options
from drainsinkhorn.model.errors import Interrupted
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.parallel import Fleet, LocalFleet, RayFleet
from drainsinkhorn.run.progress import Bar
from drainsinkhorn.run.saved import describe_ledger
from drainsinkhorn.run.solve import solve


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


def open_fleet(workers: int | None, ray: str | None) -> AbstractContextManager[Fleet | None]:
    """A fleet of processes on this machine or of actors on a Ray cluster; None: solve in this process."""
    if ray is not None:
        return RayFleet(ray, workers)
    return nullcontext() if workers is None else LocalFleet(workers)


def _report_faults(event: Event) -> None:
    """Report what a journal held, whether it was damaged, and which workers were lost."""
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


def run(
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
        observe, options = fan_out(bar, _report_faults), replace(options, warn=False)
        if fleet is not None:
            return _run_on(fleet, problems, options=options, backend=backend, observe=observe, journal=journal)
        start = time.perf_counter()
        solution = solve(problems, backend=backend, options=options, observe=observe, journal=journal)
        ledger, seconds = solution.ledger, time.perf_counter() - start
    rescue = ledger.rescue.seconds.values() if ledger.rescue else ()
    ledger.seconds["outside"] = max(0.0, seconds - sum(ledger.seconds.values()) - sum(rescue))
    return list(solution), ledger


def describe(results: list[Result[Any]], ledger: Ledger, seconds: float) -> dict[str, Any]:
    """Counts, worst residual, unconverged problems and ledger of a run, as values of JSON."""
    failed = [as_row(result) for result in results if not result.converged]
    return {
        "problems": len(results),
        "converged": len(results) - len(failed),
        "seconds": seconds,
        "worst_residual": max((r.residual.worst for r in results if r.converged), default=None),
        "failed": failed,
        "ledger": describe_ledger(ledger),
    }
