"""`drain warm`: compile the kernels that a first solve would compile, for example while an image is built."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.console import Console

from drainsinkhorn.backends import REGISTRY, choose, load
from drainsinkhorn.cli.messages import JSON, escape, fail, print_json
from drainsinkhorn.cli.show import plain_table
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import DrainError, OptionsError
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.plans.consumers import apply, barycentric_map, partners, sample, top_match, transport_costs
from drainsinkhorn.run.solve import solve

SIZE = 40
"""Points of each side of the problems that are solved."""


class Case(NamedTuple):
    """A set of kernels: its name, a backend with settings that use it, and a problem that uses it."""

    name: str
    backend: Backend[Any]
    problem: Problem[Any]


def warm(
    backend: Annotated[str, typer.Option(help=f"auto, {', '.join(REGISTRY)}.")] = "auto",
    dims: Annotated[
        str, typer.Option(metavar="NUMBERS", help="Numbers of coordinates, for backends that compile for each.")
    ] = "2,3,50",
    as_json: JSON = False,
) -> None:
    """Compile the kernels that a first solve would compile, and print how long each set took."""
    try:
        picked = choose()[0] if backend == "auto" else load(backend)
        cases = list(_cases(picked, _numbers(dims)))
        folder = _kernel_folder(picked)
        rows: list[dict[str, Any]] = []
        for case in cases:
            before, start = _count(folder), time.perf_counter()
            _use(case)
            if picked.name == "triton":
                _finish_compiling()
            seconds = time.perf_counter() - start
            compiled = None if folder is None else _count(folder) - before
            rows.append({"kernels": case.name, "seconds": seconds, "compiled": compiled})
    except DrainError as error:
        fail(error)
    if as_json:
        print_json({"backend": picked.name, "cases": rows, "folder": None if folder is None else str(folder)})
        return
    table = plain_table("kernels", "seconds", "compiled")
    for row in rows:
        count = {None: "", 0: "none, all are on disk"}.get(row["compiled"], str(row["compiled"]))
        table.add_row(row["kernels"], f"{row['seconds']:.2f}", count)
    console = Console()
    console.print(table)
    if folder is not None:
        console.print(f"kernels are in {escape(folder)}", highlight=False, markup=False, soft_wrap=True)


def _numbers(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in words if not word.isdecimal() or not 1 <= int(word) <= 10**5]
    if wrong or not words:
        raise OptionsError(f"dims must be numbers from 1 to 100000, separated by commas, got {text!r}")
    return [int(word) for word in words]


def _cases(backend: Any, dims: list[int]) -> Iterator[Case]:
    """The problems whose kernels are compiled: on the CPU one for each set of kernels, else one for each dimension."""
    if backend.name == "cpu":
        for precision, representation in (("float32", "cached"), ("float64", "cached"), ("auto", "streaming")):
            name = representation if precision == "auto" else f"{precision}, {representation}"
            yield Case(name, replace(backend, precision=precision, representation=representation), _problem(2))
        return
    for dim in dims:
        for cost in ("sqeuclidean", "euclidean"):
            yield Case(f"{dim} coordinates, {cost}", backend, _problem(dim, cost))


def _problem(dim: int, cost: str = "sqeuclidean") -> Problem[Any]:
    x, y = np.random.default_rng(0).normal(size=(2, SIZE, dim))
    return Problem(x=x, y=y, eps=2.0 * dim, cost=cost)


def _use(case: Case) -> None:
    """Solve the problem in both modes of a large batch, with every acceleration, and call every consumer of plans."""
    rows = np.arange(4)
    results: list[Any] = []
    for acceleration in case.backend.accelerations:
        settings: Any = {"backend": case.backend, "accelerate": acceleration, "warn": False}
        results = list(solve([case.problem] * 3, mode="stream", width=2, certify="always", recheck="all", **settings))
        results += solve([case.problem], **settings)
    for some in (results[:3], results[3:]):
        apply(some, [np.ones(SIZE)] * len(some))
        for consume in (barycentric_map, top_match, transport_costs):
            consume(some)
        sample(some, 4, seed=0)
        partners(some, [rows] * len(some), seed=0)


def _finish_compiling() -> None:
    """Wait for the kernels that the Triton backend compiles in the background."""
    from drainsinkhorn.backends.triton.compiling import finish

    finish()


def _kernel_folder(backend: Any) -> Path | None:
    """The folder of compiled kernels; None for backends that have none, or if none can be written."""
    if backend.name == "triton":
        from drainsinkhorn.backends.triton.compiling import cache_folder

        return cache_folder()
    if backend.name != "cpu":
        return None
    # Numba has no types.
    config: Any = importlib.import_module("numba").config
    from drainsinkhorn.backends.cpu.kernel_cache import kernel_folder

    return kernel_folder(config.CACHE_DIR)


def _count(folder: Path | None) -> int:
    """Number of compiled kernels on disk."""
    return 0 if folder is None else sum(path.suffix in (".nbc", ".cubin", ".hsaco") for path in folder.rglob("*"))
