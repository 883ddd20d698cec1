"""Campaign C67 of the paper: complete windows on independent workers, which exchange nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.fleet.fleet import Fleet, FleetStream
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.parallel import LocalFleet
from drainsinkhorn_bench import loaders
from drainsinkhorn_bench.arms import MAX_DEPTH, PAPER, PLAIN, backend_of, described, jsonable, versus
from drainsinkhorn_bench.loaders import Sensors
from drainsinkhorn_bench.meters import machine
from drainsinkhorn_bench.plan import Arm, Campaign, Finding, Loaded, Outcome, Place, Study, Unit, Work
from drainsinkhorn_bench.windows import sensor_windows

WORKERS = (1, 2, 4)
EPS, ROUTES, TOL = 0.05, 2, 1e-3


def room(device: str) -> int:
    """Return how many workers can each have a core, or on CUDA a GPU, to themselves."""
    facts = machine(device)
    return int(facts["gpu_count"] if device == "cuda" else facts["cores"])


def fleet_of(workers: int, device: str) -> LocalFleet:
    """One core, or one GPU, for each worker."""
    return LocalFleet(workers, cores=1, devices=list(range(workers)) if device == "cuda" else None)


def alone(device: str) -> Backend[Any]:
    """The backend of a worker: one thread, or one GPU."""
    if device == "cuda":
        return backend_of(device)
    from drainsinkhorn.backends.cpu import CpuBackend

    return CpuBackend(threads=1)


def streamed(fleet: Fleet, problems: Sequence[Problem[Any]], device: str) -> FleetStream:
    """The problems on a fleet, plain and under the paper's audits."""
    return fleet.stream(
        iter(problems),
        tol=TOL,
        backend=alone(device),
        audit=PAPER,
        max_depth=MAX_DEPTH,
        rescue=False,
        warn=False,
        **PLAIN,
    )


def solved(
    workers: int, problems: Sequence[Problem[Any]], device: str, clock: Callable[[], float]
) -> tuple[dict[int, Potentials[Any]], dict[int, int], float]:
    """Potentials and depths by ticket, and seconds on workers that are warm."""
    with fleet_of(workers, device) as fleet:
        for _ in streamed(fleet, problems[: 4 * workers], device):
            pass
        begun = clock()
        results = list(streamed(fleet, problems, device))
        seconds = clock() - begun
    answers = {result.ticket: result.potentials for result in results if result.emitted is not None}
    return answers, {result.ticket: result.depth for result in results}, seconds


def lacking(workers: int, device: str) -> str | None:
    """Why so many workers cannot run here, or None."""
    there, what = room(device), "GPU" if device == "cuda" else "core"
    return None if workers <= there else f"{workers} workers need a {what} each, and there are {there}"


def arm(workers: int, device: str) -> Arm:
    """All windows on so many workers."""

    def run(work: Work) -> Outcome:
        answers, depths, seconds = solved(workers, work.problems, device, work.place.clock)
        return Outcome(answers=answers, e1=seconds, depths=[depths.get(k) for k in range(len(work.problems))])

    return Arm(
        name=f"workers-{workers}",
        label=f"{workers} worker{'s' * (workers > 1)}",
        run=run,
        options=jsonable({"workers": workers, "audit": str(PAPER), **PLAIN}),
        available=lambda: lacking(workers, device),
    )


def fixed_load(load: Callable[[int], list[Problem[Any]]], place: Place, device: str) -> Iterator[Finding]:
    """Weak scaling, with the same load for each worker: a perfect fleet takes as long as one worker.

    Args:
        load: Function from a number of workers to their problems.
        place: Where it runs.
        device: "cpu" or "cuda".
    """
    first = 0.0
    for workers in WORKERS:
        if why := lacking(workers, device):
            yield Finding("skipped", {"what": f"{workers} workers", "why": why})
            continue
        problems = load(workers)
        seconds = min(solved(workers, problems, device, place.clock)[2] for _ in range(2))
        first = first or seconds
        value = {"workers": workers, "problems": len(problems), "seconds": seconds, "efficiency": first / seconds}
        yield Finding("workers", {**value, "scaling": workers * first / seconds})


def campaign(scale: str, data: Path | None, device: str) -> Campaign:
    """Strong and weak scaling on sensor windows.

    Strong scaling: the same windows for every number of workers, on two routes, which are the halves of the log. Weak
    scaling: a fixed number of windows for each worker, as a study.
    """
    n, count, load = (16_384, 32, 16) if scale == "full" else (384, 128, 64)
    log = loaders.metropt3(data)
    half = len(log.rows) // 2
    routes = [Sensors(log.rows[:half], log.source), Sensors(log.rows[half:], log.source)]

    def route(number: int, windows: int) -> list[Problem[Any]]:
        # Problems travel to other processes, so they lie in this one's memory.
        n_here = min(n, half - windows - 1)
        return sensor_windows(routes[number], n_here, windows, EPS, number, "cpu")

    return Campaign(
        name="scaleout",
        title="Scale-out: complete windows on independent workers (C67)",
        scale=scale,
        arms=[arm(workers, device) for workers in WORKERS],
        units=[
            Unit(
                name=f"route {number}",
                load=lambda number=number: Loaded(route(number, count)),
                options={"n": n, "problems": count, "eps": EPS, "route": number},
                repeats=2,
            )
            for number in range(ROUTES)
        ],
        contrasts=[
            versus("1 worker / 2 workers", "workers-2", "workers-1"),
            versus("1 worker / 4 workers", "workers-4", "workers-1"),
        ],
        studies=[
            Study(
                name="fixed load for each worker",
                run=lambda place: fixed_load(lambda workers: route(0, workers * load), place, device),
                options={"load": load, "n": n, "eps": EPS},
            )
        ],
        inputs=log.source.inputs,
        options=described(
            log.source,
            device,
            "the two routes are the halves of the log",
            "the paper's 3.965 to 3.979 is throughput at a fixed load for each worker, which the study measures too",
        ),
    )
