"""`solve`: many problems at once, each to a verified accuracy."""

from __future__ import annotations

import os
from typing import Any, Unpack

import numpy as np

from drainsinkhorn.core.collector import collector_paused
from drainsinkhorn.core.events import Observer, ignore
from drainsinkhorn.core.options import Options, Settings
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import ContractError, Interrupted, OptionsError, ProblemError
from drainsinkhorn.model.outcomes import Outcomes
from drainsinkhorn.run.arguments import check_arguments
from drainsinkhorn.run.feed import Tap
from drainsinkhorn.run.local import LocalRun
from drainsinkhorn.run.pairs import as_problems
from drainsinkhorn.run.session import Session
from drainsinkhorn.run.solution import Solution
from drainsinkhorn.run.stack import ProblemStack, is_column

DEFAULTS = Options()


def solve(
    x: Any = None,
    y: Any = None,
    *,
    eps: Any = None,
    a: Any = None,
    b: Any = None,
    init: Any = None,
    cost: Any = "sqeuclidean",
    chain: Any = None,
    batch: Any = None,
    rho: Any = None,
    tol: Any = None,
    backend: str | Backend[Any] = "auto",
    options: Options = DEFAULTS,
    observe: Observer = ignore,
    journal: str | os.PathLike[str] | None = None,
    progress: bool = False,
    **settings: Unpack[Settings],
) -> Solution[Any]:
    """Solve many entropic optimal transport problems, each to a verified accuracy.

    Args:
        x: Problems, pairs (x, y) of clouds, or points: see `problems` for stacked, shared and ragged inputs.
        y: Target points, if x holds source points.
        eps: A number in units of the cost, `relative`, `sharpness`, `falling`, or a list with one of them for each
            problem. None: `relative(0.05)`.
        a: Source weights; None: uniform.
        b: Target weights; None: uniform.
        init: Where to start: "auto", "gaussian" or "zero" for every problem without a start of its own, or potentials.
        cost: A name, a Cost, a PointCost, a Formula, a CostFn of OTT, or dense matrices.
        chain: Keys: problems of one chain run in order, each from its predecessor's potentials.
        batch: A pair of integer vectors that name the problem of each point of x (N, d) and y (M, d), see `problems`.
        rho: Price of soft marginals: a number, a pair (rows, columns), or a list of these. None: both are hard.
        tol: Bound on the larger L1 marginal residual: a number, or one per problem.
        backend: "auto", a name, or a Backend.
        options: All options at once; keywords below change single ones.
        observe: Called with every event of the run; of a rescue, only with its start and its finished problems. If it
            raises, it is not called again; the run continues, and an ObserverWarning names the exception at the end.
        journal: Path of a file in which finished problems are recorded, so that a killed run can be resumed.
        progress: Show a bar on stderr, if it is a terminal or a notebook.
        **settings: Fields of Options, such as mode, width, max_depth (a number, or one per problem), audit, certify,
            accelerate, rescue and recheck.

    Returns:
        One Result per problem in the order of submission, and the ledger. A problem that cannot be solved has a status
        that says why; only `strict=True` raises. One ConvergenceWarning counts those that did not converge.

    Raises:
        ProblemError: If arrays are passed, and an argument is wrong for every problem: see `problems`.
        ContractError: If a lane emitted another lane's state, or a recheck refuted a result; `results` has the others.
        OutOfMemory: If memory ran out outside of any lane. Its `results` holds the finished results.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> solution = solve(rng.normal(size=(4, 20, 2)), rng.normal(size=(4, 30, 2)), eps=0.5)
        >>> solution.converged, solution[3].residual.worst <= 1e-3
        (True, True)
    """
    if not isinstance(options, Options):
        raise OptionsError(f"options must be an Options, got {options!r}")
    has_many_tols, has_many_limits = is_column(tol), is_column(settings.get("max_depth"))
    start, init = (init, None) if isinstance(init, str) else ("auto", init)
    depths = settings.pop("max_depth") if has_many_limits else None
    options = options.with_settings(None if has_many_tols else tol, settings, start)
    columns = {"eps": eps, "a": a, "b": b, "init": init, "tol": tol if has_many_tols else None, "chain": chain}
    columns |= {"rho": rho, "max_depth": depths}
    if isinstance(x, Tap):
        raise ProblemError("a Feed has no end that solve could wait for; pass it to stream")
    with collector_paused():
        waiting = as_problems(x, y, cost=cost, batch=batch, **columns)
        waiting = waiting if isinstance(waiting, (list, ProblemStack)) else list(waiting)
    from_arrays = y is not None or x is None
    if from_arrays and waiting:
        check_arguments(eps=None, tol=None, cost=waiting[0].cost, init=options.init, x=None, y=None, a=None, b=None)
    same_shape = from_arrays and batch is None and not any(isinstance(side, (list, tuple)) for side in (x, y, cost))
    session = Session(waiting, len(waiting), backend, options, observe, journal, progress=progress)
    run, outcomes = LocalRun(session, waiting, solve, same_shape=same_shape), Outcomes()
    with np.errstate(all="ignore"):
        try:
            for ended in run.drain():
                outcomes.extend(ended)
        except KeyboardInterrupt:
            unrescued = run.unrescued
            raise Interrupted(run.results(outcomes), len(waiting), session.ledger, unrescued) from None
        except ContractError as error:
            error.results = run.results(outcomes)
            raise
        except MemoryError as error:
            raise run.out_of_memory(error, outcomes) from error
    solution = Solution(outcomes, session.result, session.ledger)
    session.warn(solution.counts, solution)
    return solution
