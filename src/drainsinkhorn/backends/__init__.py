"""The backends by name, loaded when asked for."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.numerics.arrays import library
from drainsinkhorn.numerics.costs import Adapters, as_cost


@dataclass(frozen=True, slots=True)
class Entry:
    """A backend of the registry.

    Attributes:
        backend_class: Imports the backend's module and returns its class.
        about: One line that describes the backend.
        extra: The extra of this package that installs what the backend needs; "" if it needs none.
    """

    backend_class: Callable[[], type[Any]]
    about: str
    extra: str = ""


def _cpu() -> type[Any]:
    from drainsinkhorn.backends.cpu import CpuBackend

    return CpuBackend


def _triton() -> type[Any]:
    from drainsinkhorn.backends.triton import TritonBackend

    return TritonBackend


def _ott() -> type[Any]:
    from drainsinkhorn.backends.ottjax import OttBackend

    return OttBackend


def _keops() -> type[Any]:
    from drainsinkhorn.backends.keops import KeopsBackend

    return KeopsBackend


def _reference() -> type[Any]:
    from drainsinkhorn.backends.reference import ReferenceBackend

    return ReferenceBackend


REGISTRY: dict[str, Entry] = {
    "cpu": Entry(_cpu, "compiled kernels on the CPU (Numba), truly ragged"),
    "triton": Entry(_triton, "Triton kernels on a CUDA device", "triton"),
    "ott": Entry(_ott, "OTT-JAX by phases, on any device of JAX", "ott"),
    "keops": Entry(_keops, "PyKeOps formulas on the CPU or CUDA", "keops"),
    "reference": Entry(_reference, "dense NumPy float64, the ground truth"),
}


def load(name: str) -> Backend[Any]:
    """The backend of that name with its default settings; BackendUnavailable says what to install."""
    if name not in REGISTRY:
        raise OptionsError(f"backend {name!r} is unknown; use one of {['auto', *REGISTRY]} or a Backend object")
    entry = REGISTRY[name]
    try:
        return _without_warnings(entry.backend_class)()
    except BackendUnavailable:
        # It is installed and says itself what it lacks.
        raise
    except ImportError as error:
        extra = f"; pip install 'drainsinkhorn[{entry.extra}]'" if entry.extra else ""
        raise BackendUnavailable(f"backend {name!r} cannot be loaded: {error}{extra}") from error


@cache
def _without_warnings(imports: Callable[[], Any]) -> Any:
    """Return what a function imports, with warnings ignored: under `-W error` a library's warning would disable it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return imports()


def choose(first: Any = None) -> tuple[Backend[Any], str]:
    """What backend="auto" takes for problems like the first one, and why."""
    cost = as_cost(getattr(first, "cost", None))
    if isinstance(cost, Cost) and getattr(cost.kind, "backend", ""):
        return load(cost.kind.backend), f"it computes costs of the caller's own ({cost.kind})"
    given: Any = getattr(first, "x", None)
    points = given if given is not None else cost
    if getattr(points, "is_cuda", False) and importlib.util.find_spec("triton") is not None:
        return load("triton"), "the points lie on a CUDA device"
    platform = _jax_platform(points)
    if platform not in ("", "cpu"):
        if platform == "gpu" and _torch_sees_cuda():
            return load("triton"), "the points lie on a CUDA device"
        if importlib.util.find_spec("ott") is not None:
            return load("ott"), f"the points are JAX arrays on a {platform.upper()}"
    if importlib.util.find_spec("numba") is not None:
        return load("cpu"), "the compiled backend for the CPU"
    if platform and importlib.util.find_spec("ott") is not None:
        return load("ott"), "the points are JAX arrays, and Numba is not installed"
    return load("reference"), "Numba is not installed, so the compiled CPU backend cannot run"


def _jax_platform(points: Any) -> str:
    """The kind of device a JAX array lies on; "" for other arrays, and for tracers, which the door refuses."""
    if library(points) != "jax":
        return ""
    try:
        return next(iter(points.devices())).platform
    except TypeError:
        return ""


def _torch_sees_cuda() -> bool:
    """Whether Triton's kernels can take over JAX's arrays."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "triton")):
        return False
    import torch

    return torch.cuda.is_available()


def _formula_matrix() -> Any:
    from drainsinkhorn.backends.keops.reduction import formula_matrix

    return formula_matrix


def _from_ott() -> Any:
    from drainsinkhorn.backends.ottjax.costs import OttCost

    return OttCost.of


Adapters.evaluators["formula"] = lambda: _without_warnings(_formula_matrix)
Adapters.foreign["ott.geometry.costs.CostFn"] = lambda: _without_warnings(_from_ott)
