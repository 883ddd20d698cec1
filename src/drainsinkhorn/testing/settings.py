"""Scopes from which hostile problems are drawn, by backend, and the settings with which `soak` solves them."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.core.audit import Audit
from drainsinkhorn.core.options import MODES, ORDERS

COMPARED = 0.3
"""Part of the batches that are solved in a second mode, if they have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Ranges to draw problems from, by backend, so that compilation and runs take acceptable time.

    Attributes:
        largest: Most points on a side.
        dimensions: Dimensions of points to draw from.
        sizes: Sizes to draw from; empty: any, log-uniformly.
        dense: Part of the problems whose cost is a dense matrix.
        costs: Names of costs between points to draw from; a name that occurs twice is drawn twice as often.
        libraries: Array libraries of the arrays: "numpy", "torch".
        device: Where torch's tensors lie.
        depths: Depth limits to draw from.
        batch: Problems of one solve.
        accelerations: Names of accelerations to draw from.
        soft: Part of the problems that have a soft marginal.
        strict_floats: Some batches are solved under `np.errstate(all="raise")`.
    """

    largest: int = 160
    dimensions: tuple[int, ...] = (1, 2, 3, 4, 5, 8, 17, 33, 70)
    sizes: tuple[int, ...] = ()
    dense: float = 0.25
    costs: tuple[str, ...] = ("sqeuclidean", "sqeuclidean", "euclidean", "cosine", "dot", "negdot")
    libraries: tuple[str, ...] = ("numpy", "torch")
    device: str = "cpu"
    depths: tuple[int, ...] = (1, 3, 20, 60, 120)
    batch: int = 25
    accelerations: tuple[str, ...] = ("momentum", "none")
    soft: float = 0.0
    strict_floats: bool = True


SCOPES: dict[str, Scope] = {
    "cpu": Scope(soft=0.3),
    "reference": Scope(soft=0.3),
    # Triton's interpreter takes milliseconds for a tile, so problems are small.
    "interpreter": Scope(
        largest=20, dimensions=(1, 3, 5, 20), depths=(1, 3, 12), batch=10, soft=0.3, strict_floats=False
    ),
    "triton": Scope(device="cuda", batch=50, soft=0.3, strict_floats=False),
    # JAX compiles for every size, KeOps for every dimension.
    "ott": Scope(
        sizes=(1, 7, 16, 60), dimensions=(3,), depths=(20, 60), accelerations=("none",), soft=0.3, strict_floats=False
    ),
    "keops": Scope(dimensions=(3,), dense=0.0, depths=(1, 20, 60), soft=0.3, strict_floats=False),
}
"""What each backend is given; "interpreter" is Triton without a CUDA device."""


class Setting(NamedTuple):
    """How a batch is solved: keywords of `solve`, and whether NumPy raises where it would warn."""

    options: dict[str, Any]
    raises: bool = False


def pick(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    """Draw one of the choices."""
    return choices[int(rng.integers(len(choices)))]


def available(scope: Scope) -> Scope:
    """The scope without libraries that are not installed."""
    installed = tuple(name for name in scope.libraries if importlib.util.find_spec(name) is not None)
    return replace(scope, libraries=installed)


def setting(seed: int, batch: int, scope: Scope) -> Setting:
    """How batch number `batch` of a seed is solved."""
    rng = np.random.default_rng([seed, batch, 2])
    mode = pick(rng, tuple(MODES))
    audit = Audit(
        every=pick(rng, (None, None, 1, 3, 8)),
        first_passage=bool(rng.random() < 0.85),
        screen=pick(rng, ("free", "free", "free", "row", "none")),
        batched=bool(rng.random() < 0.8),
        margin=pick(rng, (1.0, 1.0, 1.0, 0.5)),
    )
    options = {
        "mode": mode,
        "width": pick(rng, (None, None, 2, 7, 16)),
        "max_depth": pick(rng, scope.depths),
        "audit": audit,
        "certify": pick(rng, ("auto", "auto", "always")),
        "accelerate": pick(rng, scope.accelerations),
        "rescue": bool(rng.random() < 0.7),
        "order": pick(rng, ORDERS),
    }
    return Setting(options, scope.strict_floats and bool(rng.random() < 0.2))


def other_mode(seed: int, batch: int, first: Setting) -> Setting | None:
    """Another way to solve a batch that must give the same bits on a bitwise backend, for a part of the batches.

    There is none for static, which runs lanes past their first passage, nor without first passage, where audit times
    decide where lanes leave.
    """
    rng = np.random.default_rng([seed, batch, 3])
    if rng.random() > COMPARED or first.options["mode"] == "static" or not first.options["audit"].first_passage:
        return None
    mode = pick(rng, tuple(name for name in MODES if name not in ("static", first.options["mode"])))
    audit = replace(first.options["audit"], every=pick(rng, (None, 1, 5)))
    return Setting({**first.options, "mode": mode, "width": pick(rng, (None, 3, 16)), "audit": audit})
