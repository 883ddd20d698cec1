"""What to write instead of a keyword that this library does not have: names of other libraries, and misspelled ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EPS = "it is eps here, in units of the cost; eps=relative(0.05) takes 5 % of the mean cost"
DEPTH = "it is max_depth here, an option of solve and stream: the largest number of cycles"
STOP = "it is tol here, a bound on the L1 residuals of both marginals"
SOFT = "for soft marginals pass rho=, the price of KL(P 1 | a) in units of the cost: a number, or one per side"
TAU = f"{SOFT}; OTT's tau is rho = eps * tau / (1 - tau), and its reference measure counts points (docs/guides/soft.md)"
COST = "pass cost=: a name, a Cost with a scale, a cost of your own, or a dense matrix"
POINTS = "clouds are x and y here"
WEIGHTS = "weights are a and b here"
START = "it is init here: a name, or a pair (f, g) of potentials"
ANNEALED = "tol states the accuracy; eps=falling([...]) lowers eps in stages, and init says where to start"
ARRAYS = "results have the library, dtype and device of the arrays that are passed"

ADVICE = {
    **dict.fromkeys(("epsilon", "reg", "reg_e", "entropy", "regularization", "lambd", "ent_reg"), EPS),
    "blur": (
        "for GeomLoss's blur with p=2, whose cost is half the squared distance, pass eps=2 * blur**2 with the squared "
        'distance, or eps=blur**2 with cost=Cost("sqeuclidean", 0.5); with p=1 pass eps=blur and cost="euclidean"'
    ),
    "p": 'GeomLoss\'s p=2 is cost=Cost("sqeuclidean", 0.5), half the squared distance, and p=1 is cost="euclidean"',
    **dict.fromkeys(("scaling", "diameter"), ANNEALED),
    **dict.fromkeys(("tau", "tau_a", "tau_b"), TAU),
    "reach": f"{SOFT}; GeomLoss's reach is rho=reach**p, with p=2 for half the squared distance",
    "reg_m": f'{SOFT}; POT\'s reg_m is rho, with reg_type="kl"',
    **dict.fromkeys(("reg_m_kl", "unbalanced", "lambda_", "gamma", "growth_penalty"), SOFT),
    **dict.fromkeys(("max_iter", "max_iters", "max_iterations", "numItermax", "num_itermax", "niter", "nits"), DEPTH),
    **dict.fromkeys(("n_iter", "n_iters", "iters", "iterations", "num_iterations"), DEPTH),
    **dict.fromkeys(("threshold", "tolerance", "thresh", "precision", "delta"), STOP),
    **dict.fromkeys(
        ("stopThr", "stop_thr"), "it is tol here, a bound on L1 residuals; POT's stopThr bounds an L2 norm of one side"
    ),
    **dict.fromkeys(("M", "C", "cost_matrix", "metric", "cost_fn", "dist", "ground_cost", "kernel"), COST),
    **dict.fromkeys(
        ("scale_cost", "norm", "normalize_cost"),
        'eps=relative(0.05) is a share of the mean cost, and Cost("sqeuclidean", scale) multiplies costs',
    ),
    **dict.fromkeys(("xs", "xt", "Xs", "Xt", "X_s", "X_t", "X", "Y", "source", "target"), POINTS),
    **dict.fromkeys(("weights", "mu", "nu", "a_weights", "b_weights", "source_weights", "target_weights"), WEIGHTS),
    **dict.fromkeys(("initializer", "warmstart", "warm_start", "init_potentials", "init_dual"), START),
    "momentum": 'momentum is the default; accelerate="none" switches it off',
    "debias": "divergence(x, y) is debiased, and solve is not",
    "inner_iterations": "pass audit=Audit(every=k) to check lanes every k cycles",
    "batch_size": "width is the number of problems that run together; large problems store no n x m matrix",
    "verbose": "pass observe=, a function that is called with every event",
    "log": "pass observe=, a function that is called with every event; the ledger of a solution has the account",
    **dict.fromkeys(("device", "dtype"), ARRAYS),
    **dict.fromkeys(
        ("n_jobs", "num_threads", "numThreads"), "pass backend=drainsinkhorn.backends.cpu.CpuBackend(threads=k)"
    ),
}
"""Advice for keywords of POT, OTT-JAX, GeomLoss, moscot and torchcfm."""
FIELDS = ("eps", "x", "y", "a", "b", "cost", "chain", "rho")
"""Arguments that belong to a problem, and not to a run of many."""


def explain_keyword(name: str, known: Iterable[str]) -> str:
    """Return what to write instead of an unknown keyword, or which keywords there are.

    Args:
        name: The unknown keyword.
        known: Keywords that the function or class takes; where one of them is meant, it is named.
    """
    names = list(dict.fromkeys(known))
    if name in FIELDS:
        return f"it belongs to each Problem: Problem({name}=...)"
    if name in ADVICE:
        return ADVICE[name]
    near = difflib.get_close_matches(name, [*names, *FIELDS], 1, 0.7)
    if near:
        return f"did you mean {near[0]!r}?"
    near = difflib.get_close_matches(name.lower(), list(ADVICE), 1, 0.8)
    return ADVICE[near[0]] if near else f"known are {', '.join(names)}"
