"""`sinkhorn` and `sinkhorn2` with POT's signatures."""

from __future__ import annotations

from typing import Any

from drainsinkhorn.apps.pot.arguments import (
    as_matrix,
    check_choice,
    refuse_other_problems,
    start_of,
    strength,
    weights_or_none,
)
from drainsinkhorn.apps.pot.result import OTResult, exponential
from drainsinkhorn.apps.pot.running import Arrays, Call, run
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.errors import ProblemError

METHODS = ("sinkhorn", "sinkhorn_log", "sinkhorn_stabilized", "sinkhorn_epsilon_scaling", "greenkhorn")
"""Methods of POT's `sinkhorn`: five algorithms for one problem, which this library solves by its own."""
WITHOUT_EFFECT = ("tau", "epsilon0", "numInnerItermax", "print_period")
"""Keywords of some of these methods."""


def sinkhorn(
    a: Any,
    b: Any,
    M: Any,
    reg: Any,
    method: str = "sinkhorn",
    numItermax: int = 1000,
    stopThr: float = 1e-9,
    verbose: bool = False,
    log: bool = False,
    warn: bool = True,
    warmstart: Any = None,
    *,
    backend: str | Backend[Any] = "auto",
    **settings: Any,
) -> Any:
    """Return the entropic plan of a cost matrix, as `ot.sinkhorn` does; of many targets, the transport costs.

    torch can differentiate what is returned, implicitly, as `plan` of `solve`.

    Args:
        a: Source weights, (n,). Empty or None: uniform.
        b: Target weights, (m,); or (m, k), a column for each of k problems, which are solved as one batch.
        M: Costs, (n, m).
        reg: Entropic strength in units of the cost, positive.
        method: A name that POT's `sinkhorn` knows; the algorithm is that of this library.
        numItermax: Largest number of cycles.
        stopThr: Bound on the larger of both L1 residuals. 0: run `numItermax` cycles.
        verbose: No effect.
        log: Whether to return a dict too, with "niter", "err" (a list with the verified residual), "log_u", "log_v",
            "u" and "v".
        warn: Whether to issue a ConvergenceWarning if a problem does not converge.
        warmstart: Where to start: `(log u, log v)`.
        backend: Backend of `drainsinkhorn.solve`.
        **settings: Keywords of `drainsinkhorn.solve`; keywords of POT's methods, such as `tau`, have no effect.

    Returns:
        The plan, (n, m); or the transport costs, (k,), if b has k columns. With `log`, a pair of it and a dict.

    Examples:
        >>> import numpy as np
        >>> sinkhorn([0.5, 0.5], [0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]], 1).round(4)
        array([[0.3655, 0.1345],
               [0.1345, 0.3655]])
    """
    options = {"method": method, "max_iter": numItermax, "tol": stopThr, "warn": warn, "warmstart": warmstart}
    result = _solve(a, b, M, reg, backend=backend, **options, **settings)
    answer = result.value_linear if result.is_batch else result.plan
    return (answer, _log(result)) if log else answer


def sinkhorn2(
    a: Any,
    b: Any,
    M: Any,
    reg: Any,
    method: str = "sinkhorn",
    numItermax: int = 1000,
    stopThr: float = 1e-9,
    verbose: bool = False,
    log: bool = False,
    warn: bool = False,
    warmstart: Any = None,
    *,
    backend: str | Backend[Any] = "auto",
    **settings: Any,
) -> Any:
    """Return the transport cost `sum P C` of the entropic plan, as `ot.sinkhorn2` does; arguments as for `sinkhorn`.

    Args:
        a: Source weights, (n,). Empty or None: uniform.
        b: Target weights, (m,); or (m, k), a column for each of k problems.
        M: Costs, (n, m).
        reg: Entropic strength in units of the cost, positive.
        method: A name that POT's `sinkhorn` knows.
        numItermax: Largest number of cycles.
        stopThr: Bound on the larger of both L1 residuals.
        verbose: No effect.
        log: Whether to return a dict too.
        warn: Whether to issue a ConvergenceWarning if a problem does not converge.
        warmstart: Where to start: `(log u, log v)`.
        backend: Backend of `drainsinkhorn.solve`.
        **settings: Keywords of `drainsinkhorn.solve`.

    Returns:
        A number, or the costs (k,) if b has k columns. With `log`, a pair of it and a dict.

    Examples:
        >>> import numpy as np
        >>> round(float(sinkhorn2([0.5, 0.5], [0.5, 0.5], [[0.0, 1.0], [1.0, 0.0]], 1)), 4)
        0.2689
    """
    options = {"method": method, "max_iter": numItermax, "tol": stopThr, "warn": warn, "warmstart": warmstart}
    result = _solve(a, b, M, reg, backend=backend, **options, **settings)
    return (result.value_linear, _log(result)) if log else result.value_linear


def _solve(
    a: Any,
    b: Any,
    M: Any,
    reg: Any,
    *,
    method: str,
    max_iter: int,
    tol: float,
    warn: bool,
    warmstart: Any,
    backend: str | Backend[Any],
    **settings: Any,
) -> OTResult:
    """Solve the problem, or one problem for each column of b."""
    check_choice("method", str(method).lower(), METHODS)
    refuse_other_problems("emd(a, b, M)", reg, "entropy")
    options: Any = {"warn": warn} | {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
    call = Call(strength(reg), "entropy", "autodiff", max_iter, tol, backend, options)
    sources, targets = weights_or_none(a), weights_or_none(b)
    many = targets is not None and targets.ndim == 2
    if many and warmstart is not None:
        raise ProblemError("a warmstart goes with one target; call sinkhorn for each column of b")
    arrays = Arrays(as_matrix("M", M, 2), None, None, sources, targets.T if targets is not None and many else targets)
    init = start_of(warmstart, sources, targets, call.eps)
    return run(arrays, None, call, init=init, stacked=many)


def _log(result: OTResult) -> dict[str, Any]:
    """The dict that POT returns beside its plan; scaling vectors of k problems are columns, (n, k)."""
    log_u, log_v = (side.T if side.ndim == 2 else side for side in result.potentials)
    errors = result.log["err"]
    return {
        "niter": result.log["niter"],
        "err": errors if isinstance(errors, list) else [errors],
        "log_u": log_u,
        "log_v": log_v,
        "u": exponential(log_u),
        "v": exponential(log_v),
    }
