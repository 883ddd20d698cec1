"""A pack certifies its lanes from the caller's own tensors, all of a call together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import certificate
from drainsinkhorn.backends.certificate import batch, certify
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.run.validate import validate
from tests.device import DEVICE, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def packed(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[ds.Instance[Any]]]:
    """A pack of lanes of two shapes, one of which has a point without weight, after two cycles."""
    monkeypatch.setattr(certificate, "on_cuda", torch.is_tensor)
    rng = np.random.default_rng(0)
    problems = list[ds.Instance[Any]]()
    for n, m in ((9, 8), (7, 7), (9, 8)):
        x, y = (torch.tensor(rng.normal(size=(size, 2)), device=DEVICE) for size in (n, m))
        weights = np.arange(n) + (len(problems) != 0)
        problems.append(validate(ds.Problem(x=x, y=y, a=weights / weights.sum(), eps=1.0, tol=1e-6), 1e-6))
    pack = TritonBackend(device=DEVICE).pack(problems)
    pack.advance(2, [-1.0] * 3)
    return pack, problems


def test_lanes_of_a_pack_are_certified_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pack, problems = packed(monkeypatch)
    residuals, emitted = pack.verify([2, 0, 1], exact=True).rows(), pack.emit([2, 0, 1])
    for place, (lane, residual) in enumerate(zip((2, 0, 1), residuals, strict=True)):
        on_host = replace(problems[lane], x=problems[lane].x.cpu().numpy(), y=problems[lane].y.cpu().numpy())
        expected = certify(on_host, ds.Potentials(*(part.cpu().numpy() for part in emitted.potentials(place))))
        assert residual.band == pytest.approx(expected.band, rel=1e-6, abs=0.0)
        assert abs(residual.row - expected.row) <= residual.band + expected.band
        assert abs(residual.col - expected.col) <= residual.band + expected.band


def test_a_certificate_without_memory_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pack, _ = packed(monkeypatch)

    def strike(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much. GPU 0 has ...")

    monkeypatch.setattr(batch, "sweep_plans", strike)
    with pytest.raises(MemoryError, match="CUDA out of memory"):
        pack.verify([0, 1, 2], exact=True)
