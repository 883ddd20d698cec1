"""The backends by name, loaded when asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from dataclasses import dataclass
from typing import Any

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import BackendUnavailable, OptionsError
from drainsinkhorn.numerics.arrays import library
from drainsinkhorn.numerics.costs import Adapters, as_cost


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a backend lives and what it is for."""

    module: str
    cls: str
    about: str
    extra: str = ""


REGISTRY: dict[str, Entry] = {
    "cpu": Entry("drainsinkhorn.backends.cpu", "CpuBackend", "compiled kernels on the CPU (Numba), truly ragged"),
    "triton": Entry("drainsinkhorn.backends.triton", "TritonBackend", "Triton kernels on a CUDA device", "triton"),
    "ott": Entry("drainsinkhorn.backends.ottjax", "OttBackend", "OTT-JAX by phases, on any device of JAX", "ott"),
    "keops": Entry("drainsinkhorn.backends.keops", "KeopsBackend", "PyKeOps formulas on the CPU or CUDA", "keops"),
    "reference": Entry("drainsinkhorn.backends.reference", "ReferenceBackend", "dense NumPy float64, the ground truth"),
}


def load(name: str) -> Backend[Any]:
    """The backend of that name with its default settings; BackendUnavailable says what to install."""
    if name not in REGISTRY:
        raise OptionsError(f"backend {name!r} is unknown; use one of {['auto', *REGISTRY]} or a Backend object")
    entry = REGISTRY[name]
    try:
        return getattr(_imported(entry.module), entry.cls)()
    except BackendUnavailable:
        # It is installed and says itself what it lacks.
        raise
    except ImportError as error:
        extra = f"; pip install 'drainsinkhorn[{entry.extra}]'" if entry.extra else ""
        raise BackendUnavailable(f"backend {name!r} cannot be loaded: {error}{extra}") from error


def _imported(module: str) -> Any:
    """Import a module with warnings ignored: under `-W error` a library's warning would disable its backend."""
    if module in sys.modules:
        return sys.modules[module]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


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
    return importlib.import_module("torch").cuda.is_available()


def _formula_matrix() -> Any:
    return _imported("drainsinkhorn.backends.keops.reduction").formula_matrix


def _from_ott() -> Any:
    return _imported("drainsinkhorn.backends.ottjax.costs").OttCost.of


Adapters.evaluators["formula"] = _formula_matrix
Adapters.foreign["ott.geometry.costs.CostFn"] = _from_ott
