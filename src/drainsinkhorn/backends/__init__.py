"""The backends by name. A backend and the library that it needs are imported when it is first loaded."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.numerics.arrays import library
from drainsinkhorn.numerics.costs import Adapters, as_cost


def _quiet() -> AbstractContextManager[Any]:
    """A context that ignores warnings: under `-W error` a library's warning would disable its backend."""
    return warnings.catch_warnings(action="ignore")


def _import_cpu() -> Any:
    from drainsinkhorn.backends.cpu import CpuBackend

    return CpuBackend


def _import_triton() -> Any:
    from drainsinkhorn.backends.triton import TritonBackend

    return TritonBackend


def _import_ott() -> Any:
    from drainsinkhorn.backends.ottjax import OttBackend

    return OttBackend


def _import_keops() -> Any:
    from drainsinkhorn.backends.keops import KeopsBackend

    return KeopsBackend


def _import_reference() -> Any:
    from drainsinkhorn.backends.reference import ReferenceBackend

    return ReferenceBackend


@dataclass(frozen=True, slots=True)
class Registration:
    """A backend that can be loaded by name.

    Attributes:
        import_class: Imports the backend and returns its class.
        about: What the backend is, in one line.
        extra: The extra of this package that installs its libraries; "": none is needed.
    """

    import_class: Callable[[], Any]
    about: str
    extra: str = ""


REGISTRY: dict[str, Registration] = {
    "cpu": Registration(_import_cpu, "compiled kernels on the CPU (Numba), truly ragged"),
    "triton": Registration(_import_triton, "Triton kernels on a CUDA device", "triton"),
    "ott": Registration(_import_ott, "OTT-JAX by phases, on any device of JAX", "ott"),
    "keops": Registration(_import_keops, "PyKeOps formulas on the CPU or CUDA", "keops"),
    "reference": Registration(_import_reference, "dense NumPy float64, the ground truth"),
}


def load(name: str) -> Backend[Any]:
    """The backend of that name with its default settings; BackendUnavailable says what to install."""
    if name not in REGISTRY:
        raise OptionsError(f"backend {name!r} is unknown; use one of {['auto', *REGISTRY]} or a Backend object")
    try:
        return _backend_class(name)()
    except BackendUnavailable:
        # It is installed and says itself what it lacks.
        raise
    except ImportError as error:
        extra = REGISTRY[name].extra
        hint = f"; pip install 'drainsinkhorn[{extra}]'" if extra else ""
        raise BackendUnavailable(f"backend {name!r} cannot be loaded: {error}{hint}") from error


@cache
def _backend_class(name: str) -> Any:
    with _quiet():
        return REGISTRY[name].import_class()


def choose(first: Any = None) -> tuple[Backend[Any], str]:
    """What backend="auto" takes for problems like the first one, and why."""
    cost = as_cost(getattr(first, "cost", None))
    if isinstance(cost, Cost) and getattr(cost.kind, "backend", ""):
        return load(cost.kind.backend), f"it computes costs of the caller's own ({cost.kind})"
    # OTT solves hard marginals alone.
    is_soft = _is_soft(getattr(first, "rho", None))
    x: Any = getattr(first, "x", None)
    points = x if x is not None else cost
    if getattr(points, "is_cuda", False) and importlib.util.find_spec("triton") is not None:
        return load("triton"), "the points lie on a CUDA device"
    platform = _jax_platform(points)
    if platform not in ("", "cpu"):
        if platform == "gpu" and _torch_sees_cuda():
            return load("triton"), "the points lie on a CUDA device"
        if not is_soft and importlib.util.find_spec("ott") is not None:
            return load("ott"), f"the points are JAX arrays on a {platform.upper()}"
    if importlib.util.find_spec("numba") is not None:
        return load("cpu"), "the compiled backend for the CPU"
    if not is_soft and platform and importlib.util.find_spec("ott") is not None:
        return load("ott"), "the points are JAX arrays, and Numba is not installed"
    return load("reference"), "Numba is not installed, so the compiled CPU backend cannot run"


def _is_soft(rho: Any) -> bool:
    """Whether a marginal is soft, of a rho that need not be valid."""
    prices = rho if isinstance(rho, (tuple, list)) else [rho]
    return any(isinstance(price, (int, float)) and price != math.inf for price in prices)


def _jax_platform(points: Any) -> str:
    """The kind of device a JAX array lies on; "" for other arrays, and for tracers, which validation rejects."""
    if library(points) != "jax":
        return ""
    try:
        return next(iter(points.devices())).platform
    except TypeError:
        return ""


def _torch_sees_cuda() -> bool:
    """Whether torch sees a CUDA device, so that Triton's kernels can read the memory of JAX arrays."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        return False
    import torch

    return torch.cuda.is_available()


@cache
def _import_formula_matrix() -> Any:
    with _quiet():
        from drainsinkhorn.backends.keops.reduction import formula_matrix
    return formula_matrix


@cache
def _import_ott_cost() -> Any:
    with _quiet():
        from drainsinkhorn.backends.ottjax.costs import OttCost
    return OttCost.of


Adapters.evaluators["formula"] = _import_formula_matrix
Adapters.foreign["ott.geometry.costs.CostFn"] = _import_ott_cost
