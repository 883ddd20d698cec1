"""torch runs out of memory under the Triton backend: every verb raises MemoryError, and nothing finished is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend, couplings
from drainsinkhorn.backends.triton import pack as module
from drainsinkhorn.backends.triton.buffers import Arena
from drainsinkhorn.backends.triton.cycles import Cycles
from drainsinkhorn.backends.triton.lanes import LaneTable
from drainsinkhorn.backends.triton.launcher import Launcher
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import marginal_errors
from tests.device import DEVICE, torch

# The interpreter computes in NumPy, which warns of overflow where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PLACES: dict[str, tuple[Any, str]] = {
    "pack": (module, "load_group"),
    "repack": (module.TritonPack, "_set_lanes"),
    "advance": (Cycles, "run"),
    "screen": (module.TritonPack, "_prepare_screen"),
    "verify": (Launcher, "sample"),
    "emit": (module, "emit_lanes"),
}
"""Where torch runs out, by verb."""


def batch(count: int, n: int = 9, m: int = 8, dim: int = 2) -> list[ds.Problem[Any]]:
    rng = np.random.default_rng(5)
    clouds = [(rng.normal(size=(n, dim)), rng.normal(size=(m, dim))) for _ in range(count)]
    return [ds.Problem(x=torch.tensor(x, device=DEVICE), y=torch.tensor(y, device=DEVICE), eps=1.0) for x, y in clouds]


def striking(found: Callable[..., Any], calls: set[int], seen: list[int]) -> Callable[..., Any]:
    """The same function, which runs out of memory at these calls: half way, if it does something else before."""

    def strike(*args: Any, **keywords: Any) -> Any:
        seen.append(len(seen) + 1)
        outcome = None if found.__name__ == "_set_lanes" and seen[-1] in calls else found(*args, **keywords)
        if seen[-1] in calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much. GPU 0 has ...")
        return outcome

    return strike


@pytest.mark.parametrize("calls", [{2}])
@pytest.mark.parametrize("verb", list(PLACES))
def test_every_result_is_there_to_the_bit(verb: str, calls: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    problems = batch(3)
    how: dict[str, Any] = {"backend": "triton", "width": 2, "mode": "stream", "tol": 1e-1}
    how["audit"] = ds.Audit(every=2, screen="row" if verb == "screen" else "free")
    truth, seen = ds.solve(problems, **how), list[int]()
    owner, name = PLACES[verb]
    monkeypatch.setattr(owner, name, striking(getattr(owner, name), calls, seen))
    ours = ds.solve(problems, **how)
    assert calls < set(seen), "work goes on"
    for one, other in zip(ours, truth, strict=True):
        assert (one.status, one.depth, one.residual, one.streamed) == (other.status, other.depth, other.residual, False)
        assert torch.equal(one.potentials.f, other.potentials.f)
        assert torch.equal(one.potentials.g, other.potentials.g)
    assert ours.ledger.narrowed


def test_stored_lanes_stream_where_there_is_no_memory_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, take = batch(2, 30, 20, 70), Arena.take
    problems = [ds.Problem(x=p.x, y=p.y, eps=60.0) for p in problems]
    stored = ds.solve(problems, backend="triton")

    def short(self: Arena, count: int) -> int:
        # The matrix of stored scores is the only piece of its size in float32.
        if self.buffer.dtype == torch.float32 and count >= 128 * 64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much.")
        return take(self, count)

    monkeypatch.setattr(Arena, "take", short)
    ours = ds.solve(problems, backend="triton")
    for one, plain in zip(ours, stored, strict=True):
        assert (plain.streamed, one.streamed) == (False, True)
        assert one.converged
        assert max(marginal_errors(one.problem, one.potentials)) <= 1e-3
        assert "stored scores" in plain.arithmetic
        assert "streaming" in one.arithmetic
        assert one.backend.cached_bytes == 0  # type: ignore[attr-defined]
    refused = ds.solve(cost=torch.rand((200, 200), device=DEVICE), eps=0.1, backend="triton")[0]
    assert refused.status is ds.Status.INVALID
    assert "200 x 200 points" in refused.message


@pytest.mark.parametrize("admits", [True, False])
def test_a_repack_that_cannot_line_lanes_up_changes_nothing(admits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [validate(problem, 1e-4) for problem in batch(4)]
    packs = [TritonBackend(acceleration="momentum").pack(problems[:3]) for _ in range(2)]
    for pack in packs:
        pack.advance(3, [-np.inf] * 3)
    before = packs[0]._buffers.mark()
    select = LaneTable.select

    def late(self: Any, lanes: Any) -> Any:
        if len(lanes) == (3 if admits else 2):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much.")
        return select(self, lanes)

    with monkeypatch.context() as patch:
        patch.setattr(LaneTable, "select", late)
        with pytest.raises(MemoryError):
            packs[0].repack([2, 1], problems[3:] if admits else ())
    assert packs[0]._buffers.mark() == before
    assert packs[0].advance(3, [-np.inf] * 3) == packs[1].advance(3, [-np.inf] * 3)
    assert packs[0].verify([0, 1, 2]) == packs[1].verify([0, 1, 2])
    for pack in packs:
        pack.repack([2, 1], problems[3:])
    assert packs[0].verify([0, 1, 2]) == packs[1].verify([0, 1, 2])


def test_consumers_without_memory_raise_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = ds.solve(batch(1), backend="triton")[0]

    def full(*args: Any, **keywords: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much.")

    with monkeypatch.context() as patch:
        patch.setattr(couplings, "stack_lanes", full)
        with pytest.raises(MemoryError, match=r"CUDA out of memory$"):
            result.plan()
    plans = result.couplings
    monkeypatch.setattr(plans, "_each", full)
    with pytest.raises(MemoryError, match=r"CUDA out of memory$"):
        plans.log_ratios()
