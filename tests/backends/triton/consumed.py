"""What tests of consumers on the device share: results solved on the host, and what is near to float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend
from tests.dense import array
from tests.device import DEVICE, torch

ACCURACY = 2e-5
"""1e-5, and what float32 callers lose when they get float32 back."""


def on_device(value: Any) -> Any:
    return torch.as_tensor(value).to(DEVICE) if isinstance(value, np.ndarray) else value


def moved(result: ds.Result[Any]) -> ds.Result[Any]:
    """A result of the host that is consumed on the device."""
    problem = replace(result.problem, **{name: on_device(getattr(result.problem, name)) for name in ("x", "y", "cost")})
    emitted = ds.Potentials(*(on_device(p) for p in result.potentials))
    return replace(result, problem=problem, backend=TritonBackend(), emitted=emitted)


def solved(batch: Sequence[ds.Problem[Any]]) -> list[ds.Result[Any]]:
    """Solved on the host, to be consumed on the device."""
    return [moved(result) for result in ds.solve(batch, backend="reference", tol=1e-3)]


def cloud_result(seed: int, n: int, d: int, *, scale: float = 1.0, eps: float = 1.0, a: Any = None) -> ds.Result[Any]:
    """A float32 cloud, solved on the host, to be consumed on the device."""
    rng = np.random.default_rng(seed)
    x, y = ((scale * rng.normal(size=(size, d)) + 3).astype(np.float32) for size in (n, n + 3))
    return solved([ds.Problem(x=x, y=y, a=a, eps=eps * scale**2 * d / 2)])[0]


def coupled(results: Sequence[ds.Result[Any]]) -> Any:
    return TritonBackend().couple([r.instance for r in results], [r.potentials for r in results])


def close(found: Any, truth: Any, scale: float = 0.0) -> None:
    found, truth = array(found), np.asarray(truth)
    assert found.shape == truth.shape
    assert np.abs(found - truth).max() <= ACCURACY * max(np.abs(truth).max(), scale, 1e-30)
