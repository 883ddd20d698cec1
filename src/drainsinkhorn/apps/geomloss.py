"""GeomLoss's SamplesLoss, solved by this library to a verified residual.

Hard marginals: with weights of mass m, GeomLoss's potentials are this library's less `eps log(m) / 2`, and its value
without debiasing is `m (OT - eps log m)`, where OT is the entropic value for weights of mass 1. A divergence is m times
that of weights of mass 1.

Soft marginals (`reach`): weights keep their masses `m_a` and `m_b`, potentials are this library's. GeomLoss computes

    (rho + eps / 2) (sum_i a_i (1 - exp(-f_i / rho)) + sum_j b_j (1 - exp(-g_j / rho)))
        = OT + (eps / 2) (m_a + m_b) - eps m_a m_b

where OT is the minimum of the problem. That is its value without debiasing. In a divergence it is summed with the
signs 1, -1/2 and -1/2, which leaves `OT(a, b) - OT(a, a) / 2 - OT(b, b) / 2 + (eps / 2) (m_a - m_b)^2`, the divergence
of `drainsinkhorn.divergence`. Derivatives are those of the values. GeomLoss 0.3 returns them times
`(rho + eps / 2) / (rho + eps)`: its `UnbalancedWeight` is a module whose method `backward`, which has the right factor,
torch never calls.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from drainsinkhorn.core.options import check_settings
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.grad.torch import divergence, value
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import OptionsError, ProblemError, warn_of_constants
from drainsinkhorn.model.result import Result
from drainsinkhorn.numerics.soft import debiasing_mass
from drainsinkhorn.run.solve import solve
from drainsinkhorn.run.stack import problems

Tensor = torch.Tensor

OTHER_LOSSES = ("hausdorff", "energy", "gaussian", "laplacian")
"""Losses of GeomLoss that need no transport."""
BACKENDS = ("auto", "tensorized", "online", "multiscale")
"""Backends of GeomLoss; here all of them stand for "auto"."""
COSTS: dict[float, Cost] = {1: Cost("euclidean"), 2: Cost("sqeuclidean", 0.5)}
"""Costs `|x - y|^p / p` by p."""
FORMULAS = {"Norm2(X-Y)": COSTS[1], "(SqDist(X,Y)/IntCst(2))": COSTS[2]}
"""GeomLoss's formulas of these costs, without blanks."""
REPLACED = {"eps": "blur, where eps = blur**p", "rho": "reach, where rho = reach**p"}
"""Arguments of `solve` that GeomLoss's arguments stand for, and what to pass instead."""
UNEQUAL_MASS = 1e-3
"""Relative difference of the masses of both measures above which they are refused."""


class Measures(NamedTuple):
    """Both measures of W problems.

    Attributes:
        a: Source weights, (W, n); None: uniform, of mass 1.
        x: Source points, (W, n, d).
        b: Target weights, (W, m).
        y: Target points, (W, m, d).
    """

    a: Any
    x: Tensor
    b: Any
    y: Tensor


class SamplesLoss(torch.nn.Module):
    """A loss between weighted point clouds: the Sinkhorn divergence, as GeomLoss's `SamplesLoss(loss="sinkhorn")`.

    Call it with `(x, y)`, `(a, x, b, y)` or `(labels_x, a, x, labels_y, b, y)`, with points (n, d) and (m, d) and
    weights (n,) and (m,); or with batches, (W, n, d), (W, m, d), (W, n) and (W, m). Both measures need the same mass,
    unless `reach` is given. It returns a number, or (W,) for a batch: values at convergence, where GeomLoss ends after
    a fixed schedule. An invalid problem, for example one with NaN among its points, has the value NaN. torch can
    differentiate values in points and weights, in points also twice.

    Args:
        loss: "sinkhorn".
        p: 2 for the cost `|x - y|^2 / 2`, 1 for `|x - y|`.
        blur: Entropic scale: eps is `blur**p`.
        reach: Scale up to which mass is transported: marginals are soft, with the price `rho = reach**p` (see
            docs/guides/soft.md). None: they are hard.
        diameter: No effect: nothing is annealed.
        scaling: No effect; `tol` decides how accurate a value is.
        truncate: No effect: no term of a sum is left out.
        cost: None: the cost of p. A function of points (W, n, d) and (W, m, d) that returns costs (W, n, m), a cost of
            this library, or GeomLoss's formula of the cost of p = 1 or p = 2.
        kernel: No effect.
        cluster_scale: No effect; labels of clusters have none either.
        debias: True: the divergence `OT(a, b) - OT(a, a) / 2 - OT(b, b) / 2`. False: `OT(a, b)`.
        potentials: True: return potentials f, (W, n), and g, (W, m), instead, without derivatives; if `debias`, less
            those of each measure with itself. Like GeomLoss 0.3, it returns (1, n) and (1, m) for single measures.
            Without `reach`, of all pairs (f + t, g - t) it is the one with equal means of f under a and g under b.
        verbose: No effect.
        backend: A backend of `drainsinkhorn.solve`; GeomLoss's names all stand for "auto".
        tol: Bound on the larger L1 marginal residual of each problem; with `reach`, relative to the transported mass.
        **settings: Keywords of `drainsinkhorn.solve`.

    Raises:
        NotImplementedError: If `loss` or `cost` needs GeomLoss itself.

    Examples:
        >>> loss = SamplesLoss("sinkhorn", p=2, blur=0.5)
        >>> x = torch.randn(4, 30, 3, requires_grad=True)
        >>> loss(x, torch.randn(4, 40, 3)).sum().backward()
        >>> tuple(x.grad.shape)
        (4, 30, 3)
    """

    def __init__(
        self,
        loss: str = "sinkhorn",
        p: float = 2,
        blur: float = 0.05,
        reach: float | None = None,
        diameter: float | None = None,
        scaling: float = 0.5,
        truncate: float | None = 5,
        cost: Any = None,
        kernel: Any = None,
        cluster_scale: float | None = None,
        debias: bool = True,
        potentials: bool = False,
        verbose: bool = False,
        backend: str | Backend[Any] = "auto",
        *,
        tol: float = 1e-3,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.loss, self.p, self.blur, self.reach = loss, p, blur, reach
        self.diameter, self.scaling, self.truncate = diameter, scaling, truncate
        self.cost, self.kernel, self.cluster_scale = cost, kernel, cluster_scale
        self.debias, self.potentials, self.verbose, self.backend = debias, potentials, verbose, backend
        self.tol, self.settings = tol, settings
        self._check()

    def forward(self, *args: Any) -> Any:
        """Return the loss, or the potentials, of both measures."""
        self._check()
        measures, single = _measures(args)
        by_price = "drainsinkhorn.grad.torch.divergence with rho=reach**p"
        warn_of_constants("losses of SamplesLoss as functions of reach", by_price, [self.reach])
        if self.potentials:
            warn_of_constants("potentials of SamplesLoss", "drainsinkhorn.grad.torch.potentials", measures)
            parts: list[Any] = [None if part is None else part.detach() for part in measures]
            return self._potentials(Measures(*parts))
        values = self._hard_values(measures) if self._rho is None else self._soft_values(measures, self._rho)
        return values[0] if single else values

    def _check(self) -> None:
        """Raise NotImplementedError for what only GeomLoss has, and OptionsError for wrong options.

        Attributes may have changed since the last call.
        """
        if self.loss in OTHER_LOSSES:
            raise NotImplementedError(
                f"loss {self.loss!r} is no transport; use geomloss.SamplesLoss({self.loss!r}, ...) of GeomLoss"
            )
        if self.loss != "sinkhorn":
            raise OptionsError(f"loss {self.loss!r} is unknown; use 'sinkhorn'")
        _price_of(self.reach, self.p)
        for name, own in REPLACED.items():
            if name in self.settings:
                raise OptionsError(f"SamplesLoss has no option {name!r}; pass {own}")
        check_settings(self.settings, SamplesLoss)
        if self._point_cost is None and not callable(self.cost):
            raise NotImplementedError(
                f"cost {self.cost!r} with p={self.p} is no cost of drainsinkhorn; pass p=1, p=2, a Cost, or a function "
                "of x and y that returns costs (W, n, m), or use GeomLoss"
            )

    @property
    def _point_cost(self) -> Cost | None:
        """The cost between points; None if the caller gave a function, or what is no cost here."""
        if self.cost is None:
            return COSTS.get(self.p)
        if isinstance(self.cost, str):
            return FORMULAS.get(self.cost.replace(" ", ""))
        return self.cost if isinstance(self.cost, Cost) else None

    @property
    def _options(self) -> dict[str, Any]:
        """Keywords of `drainsinkhorn.solve`."""
        backend = "auto" if self.backend in BACKENDS else self.backend
        return {"tol": self.tol, "backend": backend, **self.settings}

    @property
    def _rho(self) -> float | None:
        """The price of soft marginals; None if they are hard."""
        return _price_of(self.reach, self.p)

    def _hard_values(self, measures: Measures) -> Tensor:
        """Losses between hard marginals, (W,), with derivatives in points and weights."""
        mass = _common_mass(measures)
        values = self._values(_with_unit_mass(measures))
        if mass is None:
            return values
        # GeomLoss's derivative in a weight is the potential itself: its formula has no derivative of the logarithm.
        return mass * (values if self.debias else values - self.blur**self.p * mass.detach().log())

    def _soft_values(self, measures: Measures, rho: float) -> Tensor:
        """Losses between soft marginals, (W,), with derivatives in points and weights."""
        values = self._values(measures, rho)
        if self.debias and self._point_cost is not None:
            return values
        first, second = (values.new_ones(()) if w is None else w.sum(-1) for w in (measures.a, measures.b))
        eps = self.blur**self.p
        if self.debias:
            return values + debiasing_mass(eps, (first, second))
        return values + eps * ((first + second) / 2 - first * second)

    def _values(self, measures: Measures, rho: float | None = None) -> Tensor:
        """Entropic values or divergences, (W,); those of a cost function without the term of unequal masses."""
        a, x, b, y = measures
        options: dict[str, Any] = {"eps": self.blur**self.p, "rho": rho, **self._options}
        if self._point_cost is not None:
            compute = divergence if self.debias else value
            return compute(x, y, a=a, b=b, cost=self._point_cost, **options)
        values = value(cost=self.cost(x, y), a=a, b=b, **options)
        if not self.debias:
            return values
        first, second = (value(cost=self.cost(z, z), a=w, b=w, **options) for z, w in ((x, a), (y, b)))
        return values - (first + second) / 2

    def _potentials(self, measures: Measures) -> tuple[Tensor, Tensor]:
        """Potentials of the source points, (W, n), and of the target points, (W, m)."""
        mass = _common_mass(measures) if self._rho is None else None
        a, x, b, y = _with_unit_mass(measures) if self._rho is None else measures
        eps, cost, width = self.blur**self.p, self._point_cost, len(x)

        def lanes(x: Any, y: Any, a: Any, b: Any) -> list[Any]:
            arrays = {"cost": self.cost(x, y).detach()} if cost is None else {"x": x, "y": y, "cost": cost}
            return problems(**arrays, eps=eps, a=a, b=b, rho=self._rho)

        batch = lanes(x, y, a, b)
        if self.debias:
            batch += lanes(x, x, a, a) + lanes(y, y, b, b)
        results = solve(batch, **self._options)
        pairs = [_with_equal_means(result) if self._rho is None else result.potentials for result in results]
        f, g = (torch.stack([pair[side] for pair in pairs[:width]]) for side in (0, 1))
        if self.debias:
            # A measure and itself have one potential, the mean of both sides.
            f = f - torch.stack([(p + q) / 2 for p, q in pairs[width : 2 * width]])
            g = g - torch.stack([(p + q) / 2 for p, q in pairs[2 * width :]])
        elif mass is not None:
            f, g = (side - eps * mass.log()[:, None] / 2 for side in (f, g))
        return f.to(x.dtype), g.to(x.dtype)


def _price_of(reach: Any, p: float) -> float | None:
    """Return the price of soft marginals, `reach**p`; None for hard ones. OptionsError for a reach without a price."""
    if reach is None:
        return None
    if isinstance(reach, Tensor):
        reach = reach.detach()
    try:
        number, rho = float(reach), math.pow(reach, p)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = rho = math.nan
    if not (number > 0 and rho > 0):
        raise OptionsError(
            f"reach must be a positive number, or None for hard marginals, got {reach!r}; reach**p must be a float64"
        )
    return None if math.isinf(rho) else rho


def _with_equal_means(result: Result[Any]) -> tuple[Tensor, Tensor]:
    """Potentials with equal means under their weights; ProblemError for an INVALID problem."""
    f, g = result.potentials
    a, b = (torch.as_tensor(w, dtype=f.dtype, device=f.device) for w in (result.instance.a, result.instance.b))
    shift = ((b * g).sum() - (a * f).sum()) / 2
    return f + shift, g - shift


def _measures(args: tuple[Any, ...]) -> tuple[Measures, bool]:
    """Return both measures as a batch, and whether the caller gave single ones."""
    if len(args) == 6:
        args = args[1:3] + args[4:]
    if len(args) not in (2, 4):
        raise ProblemError(
            f"SamplesLoss takes (x, y), (a, x, b, y) or (labels_x, a, x, labels_y, b, y), got {len(args)} arguments"
        )
    a, x, b, y = args if len(args) == 4 else (None, args[0], None, args[1])
    for name, points in (("x", x), ("y", y)):
        if not isinstance(points, Tensor) or points.ndim not in (2, 3):
            shape = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
            raise ProblemError(f"{name} must be a tensor of shape (n, d) or (W, n, d), got {shape}")
    single = x.ndim == 2
    if x.ndim != y.ndim or x.shape[-1] != y.shape[-1] or (not single and len(x) != len(y)):
        raise ProblemError(
            f"x and y must have as many dimensions, coordinates and problems, got {tuple(x.shape)} and {tuple(y.shape)}"
        )
    parts = _weights("a", a, x), x, _weights("b", b, y), y
    if single:
        parts = (None if part is None else part[None] for part in parts)
    return Measures(*parts), single


def _weights(name: str, weights: Any, points: Tensor) -> Any:
    """Return weights with the shape of the points less their coordinates; a last axis of length 1 is dropped."""
    if weights is None:
        return None
    shape = tuple(points.shape[:-1])
    if not isinstance(weights, Tensor) or tuple(weights.shape) not in (shape, (*shape, 1)):
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ProblemError(f"{name} must be a tensor of shape {shape}, a weight for each point, got {got}")
    return weights.reshape(shape)


def _with_unit_mass(measures: Measures) -> Measures:
    """Return the measures with weights of mass 1."""
    a, b = (None if w is None else w / w.sum(-1, keepdim=True) for w in (measures.a, measures.b))
    return Measures(a, measures.x, b, measures.y)


def _common_mass(measures: Measures) -> Tensor | None:
    """The mean of the sums of both weights, (W,), None if it is 1; ProblemError if they differ or are not positive."""
    if measures.a is None and measures.b is None:
        return None
    masses = [1.0 if weights is None else weights.sum(-1) for weights in (measures.a, measures.b)]
    mean = torch.as_tensor((masses[0] + masses[1]) / 2)
    gap = torch.as_tensor(masses[0] - masses[1]).detach().abs() > UNEQUAL_MASS * mean.detach()
    if bool(gap.any()) or not bool((mean > 0).all()):
        listing = [torch.as_tensor(mass).detach().flatten()[:3].tolist() for mass in masses]
        raise ProblemError(
            f"hard marginals need positive and equal masses, those of a and b begin with {listing[0]} and "
            f"{listing[1]}: normalise both, or pass reach="
        )
    return mean
