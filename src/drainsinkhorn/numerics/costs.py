"""Costs between points: formulas in float64, bounds on size and rounding, and the forms in which backends run them.

A cost states its forms, of which a backend takes one that it has kernels for:

- "distances": a factor times distances or squared distances (`PointCost.distances`); kernels compute them from the
  points, by products or by differences.
- "products": a factor times dot products (`DotProduct`); backends that compute distances solve such problems as squared
  distances (`numerics.products`).
- "matrix": `pairwise` gives all costs, and a backend keeps them.
- "formula": the text of a KeOps formula.
- "cost_fn": a CostFn of OTT.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from drainsinkhorn.model.cost import Cost, Distances
from drainsinkhorn.model.errors import ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.numerics.arrays import to_numpy

Matrix = NDArray[np.float64]

UNIT = 2.0**-53
"""Unit roundoff of float64."""

SMALLEST = 2.0**-1022
"""Smallest normal float64: what underflow can cost at most."""

_PLAIN = re.compile(r"(?:[A-Za-z][A-Za-z0-9]*|[0-9]+|[-+*/|(),\s])+")


def sqeuclidean(x: Matrix, y: Matrix) -> Matrix:
    """`|x_i - y_j|^2`, summed one coordinate at a time so that no (n, m, d) array is built."""
    total = np.zeros((len(x), len(y)))
    for k in range(x.shape[1]):
        difference = x[:, k, None] - y[None, :, k]
        total += difference * difference
    return total


def euclidean(x: Matrix, y: Matrix) -> Matrix:
    """`|x_i - y_j|`, with coordinates scaled by a power of two so that squares neither overflow nor vanish."""
    extent = max(float(np.ptp(np.concatenate([x[:, k], y[:, k]]))) for k in range(x.shape[1]))
    scale = 2.0 ** math.frexp(extent)[1] if 0 < extent < math.inf else 1.0
    return scale * np.sqrt(sqeuclidean(x / scale, y / scale))


def unit_rows(x: Matrix) -> Matrix:
    """Rows scaled to length one; first by their largest entry, so that squares neither overflow nor vanish."""
    x = x / np.abs(x).max(axis=-1, keepdims=True)
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True))


class PointCost:
    """A cost between points, up to its scale. Subclass it for a cost of your own.

    A subclass defines `pairwise` or `distances`. With `pairwise` alone, only backends that keep cost matrices can run
    it. With `distances` every backend can, and `pairwise` and the bounds follow from it.

    Equal costs must compare equal and have equal hashes, so that problems share packs. Different costs must have
    different `repr`s, by which journals identify them. A frozen dataclass has all three.

    Attributes:
        backend: Name of the backend that "auto" chooses for this cost; "": "auto" chooses by the points.

    Examples:
        >>> @dataclass(frozen=True)
        ... class Manhattan(PointCost):
        ...     def pairwise(self, x, y):
        ...         return np.abs(x[:, None, :] - y[None, :, :]).sum(axis=-1)
        >>> Manhattan().pairwise(np.zeros((1, 2)), np.ones((3, 2)))
        array([[2., 2., 2.]])
        >>> @dataclass(frozen=True)
        ... class HalfSquare(PointCost):
        ...     distances = Distances(0.5)
        >>> HalfSquare().pairwise(np.zeros((1, 2)), np.ones((3, 2)))
        array([[1., 1., 1.]])
    """

    backend: ClassVar[str] = ""

    @property
    def distances(self) -> Distances | None:
        """The cost as a factor times distances or their squares; None if it does not have this form."""
        return None

    @property
    def forms(self) -> tuple[str, ...]:
        """Forms in which backends can compute the cost; the docstring of the module lists them."""
        return ("matrix",) if self.distances is None else ("distances",)

    def pairwise(self, x: Matrix, y: Matrix) -> Matrix:
        """All costs, (n, m), in float64, from points (n, d) and (m, d) in float64; distances by direct differences."""
        form = self.distances
        if form is None:
            raise NotImplementedError(f"{type(self).__name__} must define pairwise(x, y)")
        if form.directions:
            # 1 - cos is half the squared distance of unit vectors, which is exact near zero.
            x, y = unit_rows(x), unit_rows(y)
        costs = euclidean(x, y) if form.root else sqeuclidean(x, y)
        return costs if form.factor == 1.0 else form.factor * costs

    def largest(self, far: Any) -> Any:
        """The cost of points (or of their directions) whose distance is `far`, a number or an array."""
        form = self.distances
        if form is None:
            raise NotImplementedError(f"{type(self).__name__} has no form of distances")
        return form.factor * (far if form.root else far * far)

    def rounding(self, dim: int, largest: Any) -> Any:
        """A bound on the absolute error of a cost whose absolute value is at most `largest`, underflow included.

        For a cost without the form "distances" the default is the bound for a sum of `dim` squares.
        """
        form, error = self.distances, (dim + 3) * UNIT
        if form is not None and form.root:
            # Unit vectors are off by `error` each, and so is their distance by twice as much.
            return error * largest + (2 * form.factor * error if form.directions else 0.0)
        if form is None or not form.directions:
            # A sum of d squares of rounded differences has relative error below (d + 3) u; each square may underflow.
            return error * largest + dim * SMALLEST
        # With C = c r^2, a distance r = sqrt(C / c) that is off by 2 e moves C by c (4 e r + 4 e^2).
        return 4 * form.factor * error * (largest / form.factor) ** 0.5 + error * largest + 4 * form.factor * error**2

    def magnitude(self, x: Matrix, y: Matrix, costs: Matrix) -> float:
        """What `rounding` takes as `largest` for these costs: their largest absolute value."""
        # A caller's own costs may be negative.
        return max(float(costs.max()), -float(costs.min()))

    def check(self, name: str, points: Any) -> None:
        """Raise ProblemError if the cost is undefined at a point, as the cosine is at 0; `name` is "x" or "y"."""
        form = self.distances
        if form is not None and form.directions:
            zero = np.flatnonzero(~to_numpy(points).any(axis=1))
            if zero.size:
                raise ProblemError(f"{name}[{zero[0]}] is the zero vector, which has no direction for the {self} cost")

    def __str__(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


@dataclass(frozen=True, slots=True)
class DistanceCost(PointCost):
    """A cost by name, of a form of distances."""

    name: str
    form: Distances = Distances()  # noqa: RUF009  frozen

    @property
    def distances(self) -> Distances:
        """Its form."""
        return self.form

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DotProduct(PointCost):
    """`sign <x, y>`, a cost by name that may be negative.

    Attributes:
        name: Its name.
        sign: 1 or -1.
    """

    name: str
    sign: float

    @property
    def forms(self) -> tuple[str, ...]:
        """As products, which few backends have kernels for, or as a matrix."""
        return ("products", "matrix")

    def pairwise(self, x: Matrix, y: Matrix) -> Matrix:
        """All costs, (n, m), in float64."""
        return self.sign * (x @ y.T)

    def magnitude(self, x: Matrix, y: Matrix, costs: Matrix) -> float:
        """A bound on `|x_i| |y_j|`, on which the rounding error of a product depends however small the product is."""
        # Not by squares, which overflow and vanish sooner.
        return math.prod(float(np.hypot.reduce(points, axis=1).max()) for points in (x, y))

    def rounding(self, dim: int, largest: Any) -> Any:
        """A bound on the error of a sum of `dim` products: `(d + 2) u |x| |y|`, with `largest` a bound on `|x| |y|`."""
        return (dim + 2) * UNIT * largest + dim * SMALLEST

    def __str__(self) -> str:
        return self.name


COSTS: dict[str, PointCost] = {
    "sqeuclidean": DistanceCost("sqeuclidean"),
    "euclidean": DistanceCost("euclidean", Distances(root=True)),
    "cosine": DistanceCost("cosine", Distances(0.5, directions=True)),
    "dot": DotProduct("dot", 1.0),
    "negdot": DotProduct("negdot", -1.0),
}
"""Costs by name."""


@dataclass(frozen=True, slots=True)
class Formula(PointCost):
    """A cost of your own as a KeOps formula in x and y, for example `Formula("Sqrt(SqDist(x, y) + IntCst(1))")`.

    The backend "keops" runs it; the reference evaluates it in float64 first. KeOps reads a formula as Python, so only
    names, whole numbers, brackets, commas and `+ - * / |` are let through.
    """

    text: str
    backend: ClassVar[str] = "keops"

    @property
    def forms(self) -> tuple[str, ...]:
        """The text of a formula."""
        return ("formula",)

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.text), str) or not _PLAIN.fullmatch(self.text):
            raise ProblemError(
                f"a formula is made of names, whole numbers, brackets, commas and + - * / |, got {self.text!r}; "
                'for example Formula("Sqrt(SqDist(x, y) + IntCst(1))")'
            )

    def __str__(self) -> str:
        return self.text

    def pairwise(self, x: Matrix, y: Matrix) -> Matrix:
        """All costs in float64, by KeOps."""
        return Adapters.evaluators["formula"]()(self, x, y)


class Adapters:
    """Functions that need the library of a backend; the package `backends` registers them. Each is loaded on first use.

    Attributes:
        evaluators: Under "formula", a loader of the function that computes all costs of a Formula between two clouds.
        foreign: By the qualified name of a base class of another library, a loader of the function that converts its
            objects to a PointCost.
    """

    evaluators: ClassVar[dict[str, Callable[[], Callable[[Formula, Matrix, Matrix], Matrix]]]] = {}
    foreign: ClassVar[dict[str, Callable[[], Callable[[Any], PointCost]]]] = {}


def as_cost(given: Any) -> Any:
    """Return a cost between points as a Cost; anything else, which must then be a matrix, is returned as it is."""
    if isinstance(given, Cost):
        kind = given.kind
        return given if isinstance(kind, (str, PointCost)) else replace(given, kind=_adapt(kind))
    if isinstance(given, (str, PointCost)):
        return Cost(given)
    adapted = _adapt(given)
    return given if adapted is given else Cost(adapted)


def _adapt(kind: Any) -> Any:
    """A cost of another library as a PointCost; any other object as it is."""
    base = _foreign_base(type(kind))
    return Adapters.foreign[base]()(kind) if base else kind


@lru_cache(maxsize=256)
def _foreign_base(kind: type) -> str:
    """Return the name by which `Adapters.foreign` knows a base class of `kind`; "" if it knows none."""
    # Classes are compared by name, so that no other library is imported.
    names = [f"{base.__module__}.{base.__name__}" for base in kind.__mro__]
    return next((name for name in names if name in Adapters.foreign), "")


def resolve_cost(cost: Cost) -> Cost:
    """The same cost with a PointCost as its kind; ProblemError for a name that is not in COSTS."""
    kind = cost.kind
    if isinstance(kind, str) and kind in COSTS:
        return _by_name(kind, cost.scale)
    if not isinstance(kind, PointCost):
        raise ProblemError(
            f"cost {kind!r} is unknown; use one of {sorted(COSTS)} or a dense (n, m) matrix, "
            "or for a cost of your own a PointCost, a Formula or a CostFn of OTT"
        )
    try:
        hash(kind)
    except TypeError:
        raise ProblemError(
            f"the cost {kind} has no hash, by which problems with equal costs share packs; make its class a "
            "dataclass(frozen=True) whose fields have hashes"
        ) from None
    return cost


@lru_cache(maxsize=256)
def _by_name(name: str, scale: float) -> Cost:
    return Cost(COSTS[name], scale)


def has_squares(instance: Instance[Any]) -> bool:
    """True if costs are squared distances of the points themselves, for which Gaussians have closed forms."""
    return not instance.is_dense and is_squares(instance.cost)


def is_squares(cost: Cost) -> bool:
    """True if a cost between points is squared distances of the points themselves."""
    form = cost.kind.distances
    return form is not None and not form.root and not form.directions


def require_form(instance: Instance[Any], backend: str, forms: Collection[str]) -> None:
    """Raise ProblemError unless the cost has one of the forms that a backend has kernels for."""
    if instance.matrix is None and type(instance.cost.kind) is DistanceCost and "distances" in forms:
        return
    if instance.is_dense:
        if "matrix" not in forms:
            raise ProblemError(
                f"backend {backend!r} computes costs from points; for a dense matrix use another backend"
            )
        return
    kind = instance.cost.kind
    if not any(form in forms for form in kind.forms):
        other = f'"{kind.backend}" or "auto"' if kind.backend else '"auto"'
        raise ProblemError(f"backend {backend!r} cannot compute the cost {kind}; use backend={other}")


def with_matrix(instance: Instance[Any], forms: Collection[str]) -> Instance[Any]:
    """Replace the points of an instance by its cost matrix, unless its cost has another form that is in `forms`."""
    if instance.is_dense or any(form in forms for form in instance.cost.kind.forms if form != "matrix"):
        return instance
    return replace(instance, matrix=cost_matrix(instance)[0], x=None, y=None)


def evaluate(kind: PointCost, x: Matrix, y: Matrix) -> Matrix:
    """All costs, (n, m), in float64; ProblemError if a caller's own `pairwise` gives another shape."""
    costs = np.asarray(kind.pairwise(x, y), dtype=np.float64)
    if costs.shape != (len(x), len(y)):
        raise ProblemError(
            f"pairwise of the cost {kind} gives shape {costs.shape} for {len(x)} points x and {len(y)} points y; "
            f"it must give one cost for each pair, {(len(x), len(y))}"
        )
    return costs


def cost_matrix(instance: Instance[Any]) -> tuple[Matrix, float]:
    """Costs of an instance in float64 by direct differences, and a bound on their absolute error."""
    if instance.is_dense:
        return np.ascontiguousarray(to_numpy(instance.matrix), dtype=np.float64), 0.0
    x, y = (to_numpy(points).astype(np.float64, copy=False) for points in instance.points)
    kind, scale = instance.cost.kind, instance.cost.scale
    with np.errstate(over="ignore", invalid="ignore"):
        cost = evaluate(kind, x, y)
        return scale * cost, scale * kind.rounding(x.shape[1], kind.magnitude(x, y, cost))


def coordinate_factor(cost: Cost, eps: float) -> float:
    """Factor of coordinates after which squared distances, or distances, are costs over eps."""
    ratio = cost.scale / eps * cost.kind.distances.factor
    return ratio if cost.kind.distances.root else math.sqrt(ratio)
