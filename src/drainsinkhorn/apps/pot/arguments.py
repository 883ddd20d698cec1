"""Arguments of POT's functions in this library's terms, and refusals of problems that it does not solve."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import OptionsError, ProblemError, warn_of_constants
from drainsinkhorn.model.problem import Potentials
from drainsinkhorn.numerics.arrays import float_dtype, is_array, library, to_caller, to_numpy
from drainsinkhorn.numerics.costs import as_cost

Vector = NDArray[np.float64]

METRICS = ("sqeuclidean", "euclidean", "cosine")
"""Metrics of POT that are costs of this library, under the same names."""
METHODS = ("sinkhorn", "sinkhorn_log", "mm", "lbfgsb")
"""Methods of `ot.solve`. POT, too, ignores them for balanced entropic problems."""
OTHER_METHODS = (
    "1d",
    "gaussian",
    "gaussian_hd",
    "lowrank",
    "nystroem",
    "factored",
    "geomloss",
    "geomloss_auto",
    "geomloss_tensorized",
    "geomloss_online",
    "geomloss_multiscale",
    "sliced",
    "max_sliced",
    "bsp",
)
"""Methods of `ot.solve_sample` that name another solver."""
GRADS = ("autodiff", "envelope", "last_step", "detach")
SMALLEST_TOL = sys.float_info.min
"""Stands for a tol of 0, with which POT runs all its iterations."""


def refuse_other_problems(call: str, reg: Any, reg_type: Any) -> str:
    """Return the regulariser in lower case; raise NotImplementedError unless the problem is entropic.

    Args:
        call: POT's call, for messages.
        reg: Strength of the regulariser.
        reg_type: Its name, or a pair of functions.
    """
    if reg is None or reg == 0:
        raise NotImplementedError(
            f"without reg this is exact transport, which drainsinkhorn does not solve; call ot.{call} of POT, or pass "
            "reg > 0"
        )
    if not isinstance(reg_type, str) or reg_type.lower() not in ("kl", "entropy"):
        raise NotImplementedError(
            f'reg_type {reg_type!r} is no entropy; drainsinkhorn has "KL" and "entropy". Call '
            f"ot.{call[:-1]}, reg=..., reg_type=...) of POT for others"
        )
    return reg_type.lower()


def prices_of(
    call: str, unbalanced: Any, regulariser: str, unbalanced_type: Any, reference: Any, arrays: tuple[Any, ...]
) -> tuple[float, float] | None:
    """Return the prices of soft marginals; None if both are hard.

    Raises NotImplementedError for a problem that is none of this library, or whose derivatives are wanted.

    Args:
        call: POT's call, for messages.
        unbalanced: POT's strengths of the marginal penalties: a number, or one or two in any sequence; None: hard.
        regulariser: "kl" or "entropy".
        unbalanced_type: Name of the penalty.
        reference: POT's reference measure of the entropic term; None: the product of the weights.
        arrays: The caller's arrays; empty where no derivatives are wanted.
    """
    if unbalanced is None or np.isinf(to_numpy(unbalanced)).all():
        return None
    prices = np.atleast_1d(to_numpy(unbalanced)).astype(np.float64)
    if prices.shape not in ((1,), (2,)):
        raise ProblemError(f"unbalanced must be one number or two, got shape {prices.shape}")
    others = {
        f"unbalanced_type={unbalanced_type!r}": str(unbalanced_type).lower() != "kl",
        "reg_type='entropy' with unbalanced": regulariser != "kl",
        "c, another reference measure,": reference is not None,
        "a derivative of an unbalanced problem": asks_gradient(arrays),
    }
    for what, is_other in others.items():
        if is_other:
            raise NotImplementedError(
                f"{what} is only in POT: call ot.{call[:-1]}, reg=..., unbalanced=...) of POT; here soft "
                'marginals have the penalty KL and the reference a b\', and results are constants (grad="detach")'
            )
    return float(prices[0]), float(prices[-1])


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise OptionsError unless the value is one of the choices."""
    if value not in choices:
        raise OptionsError(f"{name} {value!r} is unknown; use one of {list(choices)}")


def check_method_of_samples(method: Any) -> None:
    """Raise OptionsError for an unknown method, NotImplementedError for one that names another solver of POT."""
    if method is None:
        return
    if str(method).lower() in OTHER_METHODS:
        raise NotImplementedError(
            f"method {method!r} names another solver: call ot.solve_sample(X_a, X_b, method={method!r}) of POT, or "
            "leave method out to solve the entropic problem here"
        )
    check_choice("method", method, METHODS)


def check_gradient(grad: Any, max_iter: int | None) -> None:
    """Raise OptionsError for an unknown `grad`, or one that cannot be computed."""
    check_choice("grad", grad, GRADS)
    if grad == "last_step" and max_iter == 0:
        raise OptionsError("grad='last_step' needs max_iter of at least 1, got 0")


def cost_of_metric(metric: Any, p: float = 2) -> Any:
    """Return the cost of a metric of POT, or a cost of this library as it is.

    Args:
        metric: A name, or a Cost, PointCost, Formula or CostFn.
        p: Exponent of the metric "minkowski".
    """
    name = metric.lower() if isinstance(metric, str) else None
    if name == "minkowski" and p == 2:
        return "euclidean"
    if name in METRICS:
        return name
    if name is None and isinstance(as_cost(metric), Cost):
        return metric
    raise NotImplementedError(
        f"metric {metric!r} is no cost of drainsinkhorn, which has {list(METRICS)}; call drainsinkhorn.pot.solve with "
        "M = ot.dist(X_a, X_b, metric=...) of POT, or pass a PointCost of your own as metric"
    )


def weights_or_none(weights: Any) -> Any:
    """Return weights as an array; None, which stands for uniform ones, if they are None or empty."""
    if weights is None:
        return None
    array = weights if is_array(weights) else np.asarray(weights)
    return None if 0 in tuple(array.shape) else array


def strength(reg: Any) -> float:
    """Return the entropic strength as a number; the solve says what is wrong with one that is not positive."""
    if is_array(reg) and reg.ndim > 0:
        raise ProblemError(f"reg must be one number, got shape {tuple(reg.shape)}; drainsinkhorn.solve takes many eps")
    warn_of_constants("results as functions of reg", "drainsinkhorn.grad.torch.value", [reg])
    return float(without_gradient(reg))


def tol_of(tol: float | None, default: float) -> float:
    """Return the tol of a run: the default for None, the smallest positive number for 0."""
    return default if tol is None else tol or SMALLEST_TOL


def normalise(weights: Any, size: int) -> tuple[Vector, float]:
    """Return weights divided by their sum, in float64, and the sum; None stands for uniform weights of sum 1."""
    if weights is None:
        return np.full(size, 1 / size), 1.0
    values = to_numpy(weights).astype(np.float64)
    total = float(values.sum())
    return values / total, total


def start_of(potentials: Any, a: Any, b: Any, eps: float, *, soft: bool = False) -> Potentials[Any] | None:
    """Return the start for logarithms of POT's scaling vectors: `f = eps (log u - log a)`; `eps log u` if soft.

    Args:
        potentials: `(log u, log v)`, each (n,) or (W, n); None: no start is given.
        a: Weights of x, (n,) or (W, n); None: uniform.
        b: Weights of y.
        eps: Entropic strength.
        soft: Whether a marginal is soft; POT's kernel then contains the weights.
    """
    if potentials is None:
        return None
    if not isinstance(potentials, (tuple, list)) or len(potentials) != 2:
        raise ProblemError(f"expected a pair (log u, log v) of potentials, got {type(potentials).__name__}")

    def convert(log_scaling: Any, weights: Any) -> Vector:
        logs = to_numpy(log_scaling).astype(np.float64)
        own = np.full(logs.shape[-1], 1 / logs.shape[-1]) if weights is None else to_numpy(weights).astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = eps * (logs if soft else logs - np.log(own / own.sum(-1, keepdims=True)))
        # A point without weight has log u = log a = -inf.
        return np.where(np.isneginf(logs), 0.0, values)

    return Potentials(convert(potentials[0], a), convert(potentials[1], b))


def as_matrix(name: str, value: Any, ndim: int) -> Any:
    """Return an array of this number of dimensions; nested lists become NumPy arrays, ProblemError for all else."""
    array = value if is_array(value) else np.asarray(value)
    if array.ndim != ndim:
        advice = (
            "; pass one array for each problem of a batch to solve_batch or solve_sample_batch" if ndim == 2 else ""
        )
        raise ProblemError(f"{name} must have {ndim} dimensions, got shape {tuple(array.shape)}{advice}")
    return array


def result_dtype(like: Any) -> np.dtype[Any]:
    """The dtype of results: that of the caller's floats, float32 for shorter ones, float64 for integers."""
    floats = "float" in str(getattr(like, "dtype", ""))
    return float_dtype(like) or np.dtype(np.float32) if floats else np.dtype(np.float64)


def export(array: Any, like: Any) -> Any:
    """Return an array of any library in the library and on the device of `like`, and in the dtype of results."""
    dtype = result_dtype(like)
    if library(array) == library(like) == "torch":
        # What lies on a device stays there.
        return array.to(getattr(sys.modules["torch"], dtype.name))
    values = to_numpy(array).astype(dtype)
    return values[()] if library(like) == "numpy" else to_caller(values, like)


def without_gradient(value: Any) -> Any:
    """Return a tensor that carries no derivatives; any other value as it is."""
    return value.detach() if library(value) == "torch" else value


def asks_gradient(values: tuple[Any, ...]) -> bool:
    """Whether torch records derivatives with respect to any of these values."""
    if not any(library(value) == "torch" and value.requires_grad for value in values):
        return False
    return bool(sys.modules["torch"].is_grad_enabled())
