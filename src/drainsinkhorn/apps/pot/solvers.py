"""`solve`, `solve_sample` and their batched forms with POT's signatures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

from drainsinkhorn.apps.pot.arguments import (
    METHODS,
    as_matrix,
    check_choice,
    check_gradient,
    check_method_of_samples,
    cost_of_metric,
    prices_of,
    refuse_other_problems,
    start_of,
    strength,
    weights_or_none,
)
from drainsinkhorn.apps.pot.result import OTResult
from drainsinkhorn.apps.pot.running import Arrays, Call, run, run_each
from drainsinkhorn.core.options import Settings
from drainsinkhorn.core.protocol import Backend

BATCH_METHODS = ("auto", "sinkhorn", "log_sinkhorn", "proximal")
BATCH_TOL = 1e-5


def solve(
    M: Any,
    a: Any = None,
    b: Any = None,
    reg: Any = None,
    c: Any = None,
    reg_type: Any = "KL",
    unbalanced: Any = None,
    unbalanced_type: str = "KL",
    method: str | None = None,
    n_threads: int = 1,
    max_iter: int | None = None,
    plan_init: Any = None,
    potentials_init: Any = None,
    tol: float | None = None,
    verbose: bool = False,
    grad: str = "autodiff",
    *,
    backend: str | Backend[Any] = "auto",
    **settings: Unpack[Settings],
) -> OTResult:
    """Solve the entropic problem of a cost matrix; arguments and result fields are those of `ot.solve`.

    `n_threads`, `plan_init` and `verbose` have no effect, and `method` is only checked.

    Args:
        M: Costs, (n, m), in NumPy, torch or JAX.
        a: Source weights, (n,). None: uniform.
        b: Target weights, (m,). None: uniform.
        reg: Entropic strength in units of the cost, positive.
        c: None: the reference of unbalanced problems is the product of the weights.
        reg_type: "KL" or "entropy". Both have the same plan; `value` differs. Unbalanced problems have "KL".
        unbalanced: The prices of both marginals, a number or a pair, in units of the cost; None or infinity: hard. The
            residual is then relative to the transported mass, and results carry no derivatives.
        unbalanced_type: "KL".
        method: None, or a name that `ot.solve` knows.
        n_threads: Threads of POT's exact solver.
        max_iter: Largest number of cycles. None: 1000.
        plan_init: Start of POT's other solvers.
        potentials_init: Where to start: `(log u, log v)`, as in `potentials` of an earlier result.
        tol: Bound on the larger of both L1 residuals. None: 1e-9; 0: run `max_iter` cycles. POT bounds the L2 residual
            of one side, which is never above the L1 residual.
        verbose: Whether POT prints residuals.
        grad: What torch can differentiate, to the first order: "envelope": `value`; "autodiff" and "last_step": also
            `plan`, `potentials` and `value_linear`, implicitly; "detach": nothing.
        backend: Backend of `drainsinkhorn.solve`.
        **settings: Keywords of `drainsinkhorn.solve`.

    Raises:
        NotImplementedError: If the problem is exact, or has another regulariser or marginal penalty; the text names
            POT's call.
        ProblemError: If the problem is invalid.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> result = solve(rng.random((20, 30)), reg=0.1)
        >>> result.plan.shape, result.status
        ((20, 30), 'CONVERGED')
    """
    regulariser = refuse_other_problems("solve(M, a, b)", reg, reg_type)
    watched = () if grad == "detach" else (M, a, b)
    rho = prices_of("solve(M, a, b)", unbalanced, regulariser, unbalanced_type, c, watched)
    if method is not None:
        check_choice("method", method, METHODS)
    check_gradient(grad, max_iter)
    arrays = Arrays(as_matrix("M", M, 2), None, None, weights_or_none(a), weights_or_none(b))
    call = Call(strength(reg), regulariser, grad, max_iter, tol, backend, settings, rho=rho)
    return run(arrays, None, call, init=start_of(potentials_init, arrays.a, arrays.b, call.eps, soft=rho is not None))


def solve_sample(
    X_a: Any,
    X_b: Any,
    a: Any = None,
    b: Any = None,
    metric: Any = "sqeuclidean",
    reg: Any = None,
    c: Any = None,
    reg_type: Any = "KL",
    unbalanced: Any = None,
    unbalanced_type: str = "KL",
    lazy: bool = False,
    batch_size: int | None = None,
    method: str | None = None,
    n_threads: int = 1,
    max_iter: int | None = None,
    plan_init: Any = None,
    rank: int = 100,
    scaling: float = 0.95,
    potentials_init: Any = None,
    X_init: Any = None,
    tol: float | None = None,
    verbose: bool = False,
    grad: str = "autodiff",
    random_state: Any = None,
    debias: bool | str = False,
    n_projections: int = 50,
    projections: Any = None,
    scaler: Any = None,
    *,
    backend: str | Backend[Any] = "auto",
    **settings: Unpack[Settings],
) -> OTResult:
    """Solve the entropic problem between points; arguments and result fields are those of `ot.solve_sample`.

    No n x m matrix is stored for large problems, whatever `lazy` says. Arguments that only POT's other methods read
    have no effect, nor have those without effect in `solve`.

    Args:
        X_a: Source points, (n, d), in NumPy, torch or JAX.
        X_b: Target points, (m, d).
        a: Source weights, (n,). None: uniform.
        b: Target weights, (m,). None: uniform.
        metric: "sqeuclidean", "euclidean", "cosine", or a cost of this library.
        reg: Entropic strength in units of the cost, positive.
        c: See `solve`.
        reg_type: "KL" or "entropy": see `solve`.
        unbalanced: See `solve`.
        unbalanced_type: See `solve`.
        lazy: No effect: `lazy_plan` is always there, and `plan` is computed when it is read.
        batch_size: Rows that POT's lazy solver computes at a time.
        method: None, or a name that `ot.solve` knows; others name solvers that only POT has.
        n_threads: See `solve`.
        max_iter: Largest number of cycles. None: 1000.
        plan_init: See `solve`.
        rank: For POT's other methods.
        scaling: For POT's other methods.
        potentials_init: Where to start: `(log u, log v)`.
        X_init: For POT's other methods.
        tol: Bound on the larger of both L1 residuals; see `solve`.
        verbose: See `solve`.
        grad: What torch can differentiate: see `solve`.
        random_state: For POT's other methods.
        debias: True: `value` and `value_linear` are debiased, and `log` has the results "res_aa", "res_bb" and
            "res_ab", which are solved as one batch. Plan and potentials are those between `X_a` and `X_b`.
        n_projections: For POT's other methods.
        projections: For POT's other methods.
        scaler: None; scale points before the call.
        backend: Backend of `drainsinkhorn.solve`.
        **settings: Keywords of `drainsinkhorn.solve`.

    Raises:
        NotImplementedError: If the problem is exact, or for another solver; the text names POT's call.
        ProblemError: If the problem is invalid.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> result = solve_sample(rng.random((20, 2)), rng.random((30, 2)), reg=0.1)
        >>> result.lazy_plan[:5].shape, abs(float(result.marginal_a.sum()) - 1) < 1e-8
        ((5, 30), True)
    """
    check_method_of_samples(method)
    call_of_pot = "solve_sample(X_a, X_b, a, b)"
    regulariser = refuse_other_problems(call_of_pot, reg, reg_type)
    watched = () if grad == "detach" else (X_a, X_b, a, b)
    rho = prices_of(call_of_pot, unbalanced, regulariser, unbalanced_type, c, watched)
    if scaler is not None or isinstance(debias, str) or (debias and rho is not None):
        name = "scaler" if scaler is not None else f"debias={debias!r}"
        raise NotImplementedError(f"{name} is only in POT: call ot.solve_sample of POT, or leave it out")
    check_gradient(grad, max_iter)
    cost = cost_of_metric(metric)
    points = as_matrix("X_a", X_a, 2), as_matrix("X_b", X_b, 2)
    arrays = Arrays(None, *points, weights_or_none(a), weights_or_none(b))
    call = Call(strength(reg), regulariser, grad, max_iter, tol, backend, settings, rho=rho)
    if debias:
        return _solve_debiased(arrays, cost, call)
    return run(arrays, cost, call, init=start_of(potentials_init, arrays.a, arrays.b, call.eps, soft=rho is not None))


def _solve_debiased(arrays: Arrays, cost: Any, call: Call) -> OTResult:
    """The result between two clouds with debiased values; its log has the results within the clouds."""
    _, x, y, a, b = arrays
    rows = [arrays, Arrays(None, x, x, a, a), Arrays(None, y, y, b, b)]
    between, first, second = run_each(rows, cost, call)
    return between.less(first, second)


def solve_batch(
    M: Any,
    reg: Any = None,
    a: Any = None,
    b: Any = None,
    max_iter: int = 1000,
    tol: float = BATCH_TOL,
    method: str = "auto",
    inner_iter: int = 1,
    inner_reg: float = 1e-3,
    reg_type: str = "entropy",
    grad: str = "envelope",
    *,
    backend: str | Backend[Any] = "auto",
    **settings: Unpack[Settings],
) -> OTResult:
    """Solve a batch of entropic problems of one shape; arguments and fields are those of `ot.batch`.

    Each problem stops when both of its own residuals are within `tol`. `inner_iter` and `inner_reg` have no effect.

    Args:
        M: Costs, (W, n, m).
        reg: Entropic strength in units of the cost, positive.
        a: Source weights, (W, n), or (n,) for all. None: uniform.
        b: Target weights, (W, m), or (m,) for all. None: uniform.
        max_iter: Largest number of cycles.
        tol: Bound on the larger of both L1 residuals; POT bounds the largest L2 residual of the batch, of one side.
        method: "auto", "log_sinkhorn" or "sinkhorn": one method here; `potentials` of "sinkhorn" are u and v.
        inner_iter: For POT's proximal method.
        inner_reg: For POT's proximal method.
        reg_type: "entropy" or "kl".
        grad: See `solve`; under "envelope" `value_linear` has the derivative at a fixed plan too, as in POT.
        backend: Backend of `drainsinkhorn.solve`.
        **settings: Keywords of `drainsinkhorn.solve`.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> result = solve_batch(rng.random((5, 20, 30)), reg=0.1)
        >>> result.value.shape, set(result.status)
        ((5,), {'CONVERGED'})
    """
    arrays = Arrays(as_matrix("M", M, 3), None, None, weights_or_none(a), weights_or_none(b))
    return _batch(arrays, None, reg, method, reg_type, grad, max_iter, tol, backend, settings)


def solve_sample_batch(
    X_a: Any,
    X_b: Any,
    reg: Any = None,
    a: Any = None,
    b: Any = None,
    metric: Any = "sqeuclidean",
    p: float = 2,
    max_iter: int = 1000,
    tol: float = BATCH_TOL,
    method: str = "auto",
    inner_iter: int = 1,
    inner_reg: float = 1e-3,
    reg_type: str = "entropy",
    grad: str = "envelope",
    *,
    backend: str | Backend[Any] = "auto",
    **settings: Unpack[Settings],
) -> OTResult:
    """Solve a batch of entropic problems between clouds of one size each; see `solve_batch`.

    Args:
        X_a: Source points, (W, n, d).
        X_b: Target points, (W, m, d).
        reg: Entropic strength in units of the cost, positive.
        a: Source weights, (W, n), or (n,) for all. None: uniform.
        b: Target weights, (W, m), or (m,) for all. None: uniform.
        metric: "sqeuclidean", "euclidean", "cosine", "minkowski" with p = 2, or a cost of this library.
        p: Exponent of "minkowski".
        max_iter: Largest number of cycles.
        tol: Bound on the larger of both L1 residuals.
        method: See `solve_batch`.
        inner_iter: For POT's proximal method.
        inner_reg: For POT's proximal method.
        reg_type: "entropy" or "kl".
        grad: See `solve_batch`.
        backend: Backend of `drainsinkhorn.solve`.
        **settings: Keywords of `drainsinkhorn.solve`.

    Examples:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> result = solve_sample_batch(rng.random((5, 20, 2)), rng.random((5, 30, 2)), reg=0.1)
        >>> result.plan.shape
        (5, 20, 30)
    """
    cost = cost_of_metric(metric, p)
    points = as_matrix("X_a", X_a, 3), as_matrix("X_b", X_b, 3)
    arrays = Arrays(None, *points, weights_or_none(a), weights_or_none(b))
    return _batch(arrays, cost, reg, method, reg_type, grad, max_iter, tol, backend, settings)


def _batch(
    arrays: Arrays,
    cost: Any,
    reg: Any,
    method: str,
    reg_type: str,
    grad: str,
    max_iter: int,
    tol: float,
    backend: str | Backend[Any],
    settings: Settings,
) -> OTResult:
    """Solve a batch; the arguments are those of `solve_batch`."""
    call_of_pot = "batch.solve_batch(M, a=a, b=b)" if cost is None else "batch.solve_sample_batch(X_a, X_b, a=a, b=b)"
    check_choice("method", method, BATCH_METHODS)
    if method == "proximal":
        raise NotImplementedError(f"the proximal method is only in POT: call ot.{call_of_pot[:-1]}, method='proximal')")
    regulariser = refuse_other_problems(call_of_pot, reg, reg_type)
    check_gradient(grad, max_iter)
    call = Call(strength(reg), regulariser, grad, max_iter, tol, backend, settings, BATCH_TOL, grad == "envelope")
    result = run(arrays, cost, replace(call, scalings=method == "sinkhorn"), stacked=True)
    result.log["n_iter"] = max(result.log["niter"])
    return result
