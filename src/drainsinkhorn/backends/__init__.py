"""The backends by name, loaded when asked for."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import Any

from drainsinkhorn.core.errors import BackendUnavailable, OptionsError
from drainsinkhorn.core.protocol import Backend


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
    "reference": Entry("drainsinkhorn.backends.reference", "ReferenceBackend", "dense NumPy float64, the ground truth"),
}


def load(name: str) -> Backend[Any]:
    """The backend of that name with its default settings; BackendUnavailable says what to install."""
    if name not in REGISTRY:
        raise OptionsError(f"backend {name!r} is unknown; use one of {['auto', *REGISTRY]} or a Backend object")
    entry = REGISTRY[name]
    try:
        return getattr(importlib.import_module(entry.module), entry.cls)()
    except ImportError as error:
        extra = f"; pip install 'drainsinkhorn[{entry.extra}]'" if entry.extra else ""
        raise BackendUnavailable(f"backend {name!r} cannot be loaded: {error}{extra}") from error


def choose(first: Any = None) -> tuple[Backend[Any], str]:
    """What backend="auto" takes for problems like the first one, and why."""
    given: Any = getattr(first, "x", None)
    points = given if given is not None else getattr(first, "cost", None)
    if getattr(points, "is_cuda", False) and importlib.util.find_spec("triton") is not None:
        return load("triton"), "the points lie on a CUDA device"
    if importlib.util.find_spec("numba") is None:
        return load("reference"), "Numba is not installed, so the compiled CPU backend cannot run"
    return load("cpu"), "the compiled backend for the CPU"
