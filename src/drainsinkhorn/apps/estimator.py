"""The entropic map between two clouds as a transformer of scikit-learn."""

# pyright: basic
# Types of scikit-learn are narrower than what it takes.

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.couplings import Couplings
from drainsinkhorn.model.errors import BackendUnavailable, ProblemError
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import MAX_PAIRS
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.costs import as_cost, evaluate, resolve_cost
from drainsinkhorn.run.solve import solve
from drainsinkhorn.run.validate import validate

try:
    from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
    from sklearn.utils.validation import check_array, check_is_fitted, validate_data
except ImportError as error:
    raise BackendUnavailable(
        f"drainsinkhorn.sklearn needs scikit-learn 1.6 or later ({error}); pip install 'drainsinkhorn[sklearn]'"
    ) from error

Array = NDArray[Any]

FLOATS = (np.float64, np.float32)
SHARE = 0.05
"""The default eps as a share of the mean cost between both clouds."""
BLOCK_PAIRS = 2**18
"""Costs that are computed at a time for their mean."""


class EntropicTransport(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Moves points from a source cloud to a target cloud by the entropic map, as POT's `ot.da.SinkhornTransport`.

    `fit` couples the clouds. `transform` moves a point x, of the source cloud or new, to the mean of the target points
    under the conditional distribution that the coupling gives it,

        T(x) = sum_j b_j exp((g_j - C(x, y_j)) / eps) y_j / sum_j b_j exp((g_j - C(x, y_j)) / eps)

    `inverse_transform` does the same in the other direction. Neither stores an n x m matrix.

    Args:
        eps: Strength of the entropic term, in units of the cost. None: 0.05 times the mean cost between both clouds.
        cost: "sqeuclidean", "euclidean", "cosine", or a cost of this library.
        tol: Bound on the larger L1 marginal residual.
        max_depth: Largest number of cycles.
        backend: "auto", a name, or a Backend.

    Attributes:
        xs_: Source points, (n, d).
        xt_: Target points, (m, d).
        potentials_: f, (n,), and g, (m,).
        eps_: The eps of the coupling.
        status_: "CONVERGED", or the name of another status.
        n_iter_: Cycles until both marginals were within tol.
        n_features_in_: Number of features d of the points it was fitted to.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> source, target = rng.normal(size=(40, 2)), rng.normal(size=(50, 2)) + 5
        >>> model = EntropicTransport().fit(source, target)
        >>> moved = model.transform(rng.normal(size=(3, 2)))
        >>> moved.shape, bool((moved > 2).all())
        ((3, 2), True)
    """

    xs_: Array
    xt_: Array
    potentials_: Potentials[Array]
    eps_: float
    status_: str
    n_iter_: int

    def __init__(
        self,
        eps: float | None = None,
        *,
        cost: Any = "sqeuclidean",
        tol: float = 1e-3,
        max_depth: int = 10_000,
        backend: str | Backend[Any] = "auto",
    ) -> None:
        self.eps = eps
        self.cost = cost
        self.tol = tol
        self.max_depth = max_depth
        self.backend = backend

    def fit(
        self, X: Any, y: Any = None, Xt: Any = None, *, sample_weight: Any = None, target_weight: Any = None
    ) -> EntropicTransport:
        """Couple the source cloud to the target cloud, and return self.

        Args:
            X: Source points, (n, d).
            y: Target points, (m, d), if `Xt` is None. With `Xt`, it may hold labels, which are ignored, so that the
                transformer can be a step of a pipeline.
            Xt: Target points, (m, d).
            sample_weight: Weights of the source points, (n,). None: uniform.
            target_weight: Weights of the target points, (m,). None: uniform.
        """
        xs: Any = validate_data(self, X, dtype=FLOATS)
        if Xt is None and np.asarray(y).ndim != 2:
            raise ProblemError("the target points are missing; call fit(X, Xt) or fit(X, labels, Xt=Xt) with Xt (m, d)")
        xt: Any = check_array(y if Xt is None else Xt, dtype=xs.dtype, input_name="Xt")
        if xt.shape[1] != xs.shape[1]:
            raise ProblemError(f"Xt has {xt.shape[1]} features and X has {xs.shape[1]}; both need the same")
        a, b = (None if w is None else np.asarray(w, dtype=np.float64) for w in (sample_weight, target_weight))
        eps = self.eps if self.eps is not None else SHARE * _mean_cost(self.cost, xs, xt) or 1.0
        problem = Problem(x=xs, y=xt, a=a, b=b, eps=eps, cost=self.cost)
        (result,) = solve([problem], tol=self.tol, max_depth=self.max_depth, backend=self.backend)
        if result.status is Status.INVALID:
            raise ProblemError(result.detail)
        self.xs_, self.xt_, self._weights = xs, xt, (a, b)
        self.potentials_, self.eps_ = result.potentials, float(eps)
        self.status_, self.n_iter_, self._coupler = result.status.name, result.depth, result.backend
        return self

    def transform(self, X: Any) -> Array:
        """Return where the entropic map moves points of the source space, (k, d) to (k, d)."""
        check_is_fitted(self)
        points: Any = validate_data(self, X, dtype=FLOATS, reset=False)
        plans = self._couple(x=points, b=self._weights[1], g=self.potentials_.g)
        return np.asarray(plans.average([self.xt_], "row")[0], dtype=points.dtype)

    def inverse_transform(self, X: Any) -> Array:
        """Return where the reverse map moves points of the target space, (k, d) to (k, d)."""
        check_is_fitted(self)
        points: Any = validate_data(self, X, dtype=FLOATS, reset=False)
        plans = self._couple(y=points, a=self._weights[0], f=self.potentials_.f)
        return np.asarray(plans.average([self.xs_], "col")[0], dtype=points.dtype)

    @property
    def coupling_(self) -> Array:
        """The dense plan, (n, m), computed when it is read; refused above 2^26 entries."""
        check_is_fitted(self)
        a, b = self._weights
        f, g = self.potentials_
        return self._couple(a=a, b=b, f=f, g=g).plan(MAX_PAIRS)[0]

    def _couple(
        self, *, x: Any = None, y: Any = None, a: Any = None, b: Any = None, f: Any = None, g: Any = None
    ) -> Couplings[Any]:
        """Return the plan between the fitted clouds, one of which may be replaced by new points with potentials 0.

        A conditional mean does not depend on the potential of its own point.
        """
        x, y = self.xs_ if x is None else x, self.xt_ if y is None else y
        problem = Problem(x=x, y=y, a=a, b=b, eps=self.eps_, cost=self.cost)
        f, g = (np.zeros(len(p)) if side is None else side for p, side in ((x, f), (y, g)))
        return self._coupler.couple([validate(problem, tol=1.0)], [Potentials(f, g)])

    def __sklearn_tags__(self) -> Any:
        """Tags: the dtype of float32 and float64 points is kept."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _mean_cost(given: Any, x: Array, y: Array) -> float:
    """The mean cost of all pairs of points, a block of rows at a time; 0 if it is not finite."""
    cost = resolve_cost(as_cost(given))
    step = max(1, BLOCK_PAIRS // len(y))
    wide = y.astype(np.float64)
    rows = (x[k : k + step].astype(np.float64) for k in range(0, len(x), step))
    total = sum(float(evaluate(cost.kind, block, wide).sum()) for block in rows)
    mean = cost.scale * total / (len(x) * len(y))
    return mean if np.isfinite(mean) else 0.0
