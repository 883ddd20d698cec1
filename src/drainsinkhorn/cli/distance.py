"""`drain distance`: Sinkhorn divergences between clouds of points."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console

from drainsinkhorn.backends import REGISTRY
from drainsinkhorn.cli import running, show
from drainsinkhorn.cli.arguments import CONSECUTIVE, EPS, KEY, READ_LIMIT, REP, SOURCES, TIMES, make_reading
from drainsinkhorn.cli.files import json_number
from drainsinkhorn.cli.inputs import name_pairs, read_inputs
from drainsinkhorn.cli.messages import INTERRUPTED, JSON, UNFINISHED, fail, print_json, warn
from drainsinkhorn.cli.wants import add_problems, wanted_arrays
from drainsinkhorn.core.options import Options
from drainsinkhorn.model.errors import DrainError, Interrupted
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.text import escape


def distance(
    sources: SOURCES,
    eps: EPS = None,
    consecutive: CONSECUTIVE = False,
    key: KEY = None,
    rep: REP = "X_pca",
    times: TIMES = None,
    tol: Annotated[float, typer.Option(help="Bound on the L1 residual of every problem.")] = 1e-3,
    backend: Annotated[str, typer.Option(help=f"auto, {', '.join(REGISTRY)}.")] = "auto",
    read_limit: READ_LIMIT = None,
    as_json: JSON = False,
) -> None:
    """Print the Sinkhorn divergence of each pair of clouds. Exit code 0 only if every problem converged."""
    start = time.perf_counter()
    wants = ["divergence"]
    try:
        options = Options(tol=tol)
        reading = make_reading(eps, consecutive, key, rep, times, read_limit)
        problems, within = add_problems(wants, read_inputs(sources, reading), backend)
        results, _ = running.run(problems, options, backend, quiet=as_json)
        values = wanted_arrays(wants, results, within)["divergence"]
    except Interrupted:
        warn("interrupted: a divergence needs all of its problems")
        raise typer.Exit(INTERRUPTED) from None
    except DrainError as error:
        fail(error)
    pairs = [
        _describe(float(value), results[pair], [results[place] for place in places])
        for pair, (value, places) in enumerate(zip(values, within, strict=True))
    ]
    failed = [result for result in results if not result.converged]
    if as_json:
        print_json({"pairs": pairs, "seconds": time.perf_counter() - start})
    else:
        _show(pairs, name_pairs(sources, consecutive, len(pairs)))
        if failed:
            console = Console(stderr=True)
            console.print(show.results_table([show.as_row(replace(result, warns=False)) for result in failed]))
    raise typer.Exit(UNFINISHED if failed else 0)


def _describe(value: float, between: Result[Any], within: list[Result[Any]]) -> dict[str, Any]:
    """A divergence with the residuals of its three problems, as values of JSON."""
    parts = dict(zip(("xy", "xx", "yy"), [between, *within], strict=True))
    n, m = between.shape or (None, None)
    return {
        "divergence": json_number(value),
        "n": n,
        "m": m,
        "eps": json_number(between.eps),
        "converged": all(result.converged for result in parts.values()),
        "problems": {
            name: {
                "status": result.status.name,
                "depth": result.depth,
                **{side: json_number(residual) for side, residual in result.residual._asdict().items()},
            }
            for name, result in parts.items()
        },
    }


def _show(pairs: list[dict[str, Any]], names: list[str]) -> None:
    """One line for each pair: the divergence, whether its problems converged, and if there are several, the files."""
    for pair, name in zip(pairs, names, strict=True):
        label = f"  {escape(name)}" if len(pairs) > 1 and name else ""
        value = "-" if pair["divergence"] is None else f"{pair['divergence']:.9g}"
        state = "" if pair["converged"] else "  not converged"
        Console(soft_wrap=True).print(f"{value}{label}{state}", highlight=False, markup=False)
