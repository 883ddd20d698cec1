"""Problems and settings that `same_bits.py` solves, drawn from a seed through the public surface of the library alone.

A draw depends on the seed, the name of the case and an index, never on what was drawn before, so a single case can be
run again. Choices go round: of k options each occurs once in k consecutive draws, in an order that changes each time.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

import drainsinkhorn as ds

T = TypeVar("T")
BROKEN = 9
"""One problem in so many cannot be solved, or not as it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a backend is given, so that it compiles and runs in reasonable time.

    Attributes:
        sizes: Numbers of points.
        dims: Numbers of coordinates.
        costs: Costs by name, "dense", or objects that a Problem takes.
        arrays: Array library and dtype of the points.
        depths: Depth limits.
        batch: Problems of one solve.
        eps: The smallest eps of problems that are not drawn.
        few: Most problems of a case that solves them several times.
        device: Where torch tensors lie.
    """

    sizes: tuple[int, ...] = (1, 2, 7, 16, 33, 64, 100, 130)
    dims: tuple[int, ...] = (1, 2, 3, 5, 8, 17, 40, 70)
    costs: tuple[Any, ...] = ("sqeuclidean", "euclidean", "cosine", ds.Cost("sqeuclidean", 0.3), "dense")
    arrays: tuple[str, ...] = ("numpy float32", "numpy float64", "torch float32", "numpy float16", "torch float64")
    depths: tuple[int, ...] = (3, 60, 300)
    batch: int = 6
    eps: float = 0.4
    few: int = 9
    device: str = "cpu"


SCOPES: dict[str, Scope] = {
    "reference": Scope(arrays=(*Scope().arrays, "jax float32"), depths=(3, 60, 150)),
    "cpu": Scope(
        arrays=(*Scope().arrays, "jax float32"),
        costs=(*Scope().costs, ds.Cost("euclidean", 7.0), ds.Cost("cosine", 2.0)),
    ),
    # Triton's interpreter takes milliseconds for a tile.
    "triton": Scope(sizes=(1, 5, 12, 20), dims=(1, 3, 5, 20, 40, 70), depths=(2, 6, 12), batch=4, eps=3.0, few=2),
    "triton on cuda": Scope(depths=(3, 60, 300)),
    # JAX compiles for every size, KeOps for every number of coordinates.
    "ott": Scope(sizes=(7, 16), dims=(3,), depths=(20, 60), arrays=("numpy float32", "jax float32", "numpy float64")),
    "keops": Scope(dims=(3,), costs=("sqeuclidean", "euclidean", "cosine", ds.Cost("sqeuclidean", 0.3))),
}


def scope_of(backend: str, device: str) -> Scope:
    """What the backend is given on this device."""
    name = "triton on cuda" if (backend, device) == ("triton", "cuda") else backend
    return replace(SCOPES[name], device=device)


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws of one case.

    Attributes:
        seed: That of the command.
        name: What is drawn for; draws of equal names are equal.
        index: Which of many draws this is.
    """

    seed: int
    name: str
    index: int

    @property
    def rng(self) -> np.random.Generator:
        """A new generator, always at its beginning."""
        return np.random.default_rng([self.seed, zlib.crc32(self.name.encode()), self.index])

    def pick(self, what: str, options: Sequence[T]) -> T:
        """One of the options; each occurs once in as many consecutive indices."""
        lap, place = divmod(self.index, len(options))
        order = np.random.default_rng([self.seed, zlib.crc32(what.encode()), lap]).permutation(len(options))
        return options[int(order[place])]


def as_array(values: Any, kind: str, device: str = "cpu") -> Any:
    """The values in a library and dtype, for example "torch float32"."""
    library, dtype = kind.split()
    if library == "torch":
        import torch

        return torch.as_tensor(np.asarray(values), device=device).to(getattr(torch, dtype))
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(values, dtype=dtype)
    return np.asarray(values).astype(dtype)


def problem(draw: Draw, scope: Scope) -> ds.Problem[Any]:
    """One problem; some cannot be solved."""
    rng = draw.rng
    n, m, d = draw.pick("n", scope.sizes), draw.pick("m", scope.sizes), draw.pick("d", scope.dims)
    cost, kind = draw.pick("cost", scope.costs), draw.pick("array", scope.arrays)
    x, y = points(draw, rng, n, m, d)
    dense = cost_matrix(x, y, cost)
    eps = max(float(np.median(dense)), 1e-6) * draw.pick("eps", (0.03, 0.1, 0.5, 2.0, 20.0))
    a, b = (weights(draw, rng, side, size, kind, scope) for side, size in (("a", n), ("b", m)))
    columns: dict[str, Any] = {"eps": eps, "a": a, "b": b, "tol": draw.pick("tol", (None, 1e-2, 1e-4, 1e-6, 1e-9))}
    columns["init"] = start(draw, rng, dense, eps, cost)
    if isinstance(cost, str) and cost == "dense":
        columns["cost"] = as_array(dense, kind, scope.device)
    else:
        columns |= {"cost": cost, "x": as_array(x, kind, scope.device), "y": as_array(y, kind, scope.device)}
    broken = draw.index % BROKEN == BROKEN - 1
    return ds.Problem(**(columns | (fault(draw, rng, n) if broken else {})))


def points(draw: Draw, rng: np.random.Generator, n: int, m: int, d: int) -> tuple[Any, Any]:
    """Two clouds of a geometry, (n, d) and (m, d), with entries that float16 holds."""
    geometry = draw.pick("geometry", ("clouds", "clusters", "far apart", "duplicates", "offset", "small", "outlier"))
    x, y = rng.normal(size=(n, d)), rng.normal(size=(m, d)) + 0.5
    if geometry == "clusters":
        centres = 2 * rng.normal(size=(4, d))
        x, y = (centres[rng.integers(4, size=len(p))] + 0.2 * p for p in (x, y))
    elif geometry == "far apart":
        y = y + 10
    elif geometry == "duplicates":
        x, y = (p[rng.integers(-(-len(p) // 2), size=len(p))] for p in (x, y))
    elif geometry == "offset":
        x, y = x + 300, y + 300
    elif geometry == "small":
        x, y = 1e-2 * x, 1e-2 * y
    elif geometry == "outlier":
        x[0] *= 50
    return x, y


def cost_matrix(x: Any, y: Any, cost: Any) -> Any:
    """Costs (n, m) by which eps and starts are drawn; squared distances for "dense" and costs of the caller's own."""
    kind, scale = (cost.kind, cost.scale) if isinstance(cost, ds.Cost) else (cost, 1.0)
    if kind == "cosine":
        x, y = (p / np.linalg.norm(p, axis=1, keepdims=True) for p in (x, y))
    squares = ((x[:, None] - y[None]) ** 2).sum(-1)
    return scale * (np.sqrt(squares) if kind == "euclidean" else squares / 2 if kind == "cosine" else squares)


def weights(draw: Draw, rng: np.random.Generator, side: str, size: int, kind: str, scope: Scope) -> Any:
    """Weights (size,) of mass 1, or None."""
    shape = draw.pick(f"weights {side}", ("none", "uniform", "random", "zeros", "decades", "like points"))
    if shape == "none":
        return None
    masses = np.ones(size) if shape == "uniform" else rng.random(size) + 1e-3
    if shape == "zeros" and size > 2:
        masses[rng.random(size) < 0.4] = 0.0
        masses[0] = 1.0
    elif shape == "decades":
        masses = 10.0 ** rng.uniform(-200, 0, size=size)
    masses = masses / masses.sum()
    wide = shape != "like points" or kind.endswith("float16")
    return masses if wide else as_array(masses, kind, scope.device)


def start(draw: Draw, rng: np.random.Generator, dense: Any, eps: float, cost: Any) -> Any:
    """A start by name, potentials, potentials shifted along the gauge (f + c, g - c), or None."""
    kind = draw.pick("start", ("none", "auto", "zero", "gaussian", "given", "shifted", "huge", "float32"))
    if kind in ("none", "auto", "zero", "gaussian"):
        squared = (cost.kind if isinstance(cost, ds.Cost) else cost) == "sqeuclidean"
        return None if kind in ("none", "auto") or (kind == "gaussian" and not squared) else kind
    f, g = (float(np.median(dense)) * rng.normal(size=size) for size in dense.shape)
    shift = {"shifted": 1e4 * eps, "huge": 1e150}.get(kind, 0.0)
    dtype = "float32" if kind == "float32" else "float64"
    return ds.Potentials((f + shift).astype(dtype), (g - shift).astype(dtype))


def fault(draw: Draw, rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Columns that make a problem INVALID, or NONFINITE."""
    bad = np.zeros((3, 2))
    clouds = {"x": bad, "y": bad + 1.0, "a": None, "b": None, "init": None, "cost": "sqeuclidean"}
    faults: tuple[dict[str, Any], ...] = (
        clouds | {"x": bad * 1e200 + 1e160, "y": -bad - 1e160, "eps": 1e-200},
        {"eps": 0.0},
        {"eps": "small"},
        {"tol": -1.0},
        {"a": -np.ones(n)},
        {"a": np.ones(n + 1)},
        clouds | {"x": np.full((3, 2), np.nan)},
        clouds | {"y": np.zeros((4, 1))},
        clouds | {"x": np.zeros((0, 2))},
        clouds | {"cost": "cosine"},
        clouds | {"cost": "unknown"},
        clouds | {"x": 1e150 * rng.normal(size=(3, 2)), "y": 1e150 * rng.normal(size=(3, 2)), "eps": 1e-100},
        {"init": ds.Potentials(np.zeros(n + 1), np.zeros(1))},
        {"init": "middle"},
        {"chain": []},
    )
    return draw.pick("fault", faults)


AUDITS: tuple[ds.Audit, ...] = (
    ds.Audit(),
    ds.Audit(every=1),
    ds.Audit(first_passage=False),
    ds.Audit(screen="row"),
    ds.Audit(screen="none"),
    ds.Audit(margin=0.95),
    ds.Audit(every=ds.Geometric(4, 1.5)),
    ds.Audit(shadow=True),
    ds.Audit(batched=False),
    ds.Audit(every=3, first_passage=False, shadow=True, screen="row"),
)
OWN_MODES = (ds.Mode(name="large repacks", min_shrink=3), ds.Mode(name="two vacancies", refill=2))


def settings(draw: Draw, scope: Scope) -> dict[str, Any]:
    """Keywords of `solve` but backend and acceleration."""
    audit = draw.pick("audit", AUDITS)
    mode: Any = draw.pick("mode", ("auto", *ds.MODES, *OWN_MODES))
    refills = mode == "stream" or (isinstance(mode, ds.Mode) and mode.refill is not None)
    if refills and isinstance(audit.every, ds.Geometric):
        # A geometric audit does not go with refill; the error is a case of its own.
        mode = "compact"
    return {
        "mode": mode,
        "audit": audit,
        "width": draw.pick("width", (None, 2, None, 5)),
        "max_depth": draw.pick("depth", scope.depths),
        "certify": draw.pick("certify", ("auto", "auto", "always")),
        "rescue": draw.pick("rescue", (True, True, False)),
        "order": draw.pick("order", ("given", "grouped", "mixed")),
        "recheck": draw.pick("recheck", ("sampled", "all", "none")),
        "init": draw.pick("init", ("auto", "zero", "auto")),
    }


def batch(draw: Draw, scope: Scope) -> list[ds.Problem[Any]]:
    """The problems of one solve; consecutive draws give consecutive problems."""
    first = draw.index * scope.batch
    return [problem(replace(draw, index=first + k), scope) for k in range(scope.batch)]
