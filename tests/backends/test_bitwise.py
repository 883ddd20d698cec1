"""A problem's potentials, depth and residual are the same to the bit in every mode, order, width and company."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.cpu import CpuBackend
from drainsinkhorn.backends.cpu.pack import CpuPack
from drainsinkhorn.backends.cpu.streaming import StreamingPack
from drainsinkhorn.backends.reference import ReferenceBackend, ReferencePack
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.run.validate import validate

REJECTED_TOL = 1.234e-3
"""Problems with this tol have their first two verifies turned down."""

MAX_DEPTH = 60

SEEDS = 100 if os.environ.get("DRAIN_SOAK") else 25
"""Random batches for each backend and acceleration; make soak runs all of them."""


class Picky:
    """Rejects twice whatever has REJECTED_TOL."""

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        said = super().verify(lanes, exact=exact).rows()  # type: ignore[misc]
        counts = self.__dict__.setdefault("counts", {})
        own = self._lanes  # type: ignore[attr-defined]
        instances = getattr(own, "instances", None) or [lane.instance for lane in own]
        for k, instance in enumerate(instances[i] for i in lanes):
            if instance.tol == REJECTED_TOL and counts.setdefault(instance, 0) < 2:
                counts[instance] += 1
                said[k] = said[k]._replace(col=1.0)
        return Residuals.from_rows(said)


class PickyReferencePack(Picky, ReferencePack):
    pass


class PickyCpuPack(Picky, CpuPack):
    pass


class PickyStreamingPack(Picky, StreamingPack):
    pass


@dataclass(frozen=True, slots=True)
class PickyReference(ReferenceBackend):
    def pack(self, problems: Sequence[ds.Problem[Any]]) -> PickyReferencePack:
        return PickyReferencePack(problems, momentum=self.acceleration == "momentum")


@dataclass(frozen=True, slots=True)
class PickyCpu(CpuBackend):
    def pack(self, problems: Sequence[ds.Problem[Any]]) -> Any:
        momentum = self.acceleration == "momentum"
        if self.representation == "streaming":
            return PickyStreamingPack(problems, self.arithmetic(problems[0]), self.threads or 2, momentum=momentum)
        return PickyCpuPack(problems, self.arithmetic(problems[0]).dtype, self.threads or 2, momentum=momentum)


BACKENDS: dict[str, Any] = {
    "reference": PickyReference(),
    "cpu": PickyCpu(),
    "cpu float64": PickyCpu(precision="float64", threads=1),
    "cpu streaming": PickyCpu(representation="streaming"),
}


def random_batch(rng: np.random.Generator) -> list[ds.Problem[Any]]:
    batch: list[ds.Problem[Any]] = []
    for _ in range(rng.integers(3, 9)):
        n, m, d = rng.integers(1, 30), rng.integers(1, 30), rng.integers(1, 6)
        dtype = rng.choice(["float32", "float64"])
        x, y = rng.normal(size=(n, d)).astype(dtype), (1 + rng.normal(size=(m, d))).astype(dtype)
        a = rng.exponential(size=n) + 1e-3 if rng.random() < 0.5 else None
        kind = rng.choice(["sqeuclidean", "euclidean", "cosine"])
        tol = rng.choice([None, 1e-2, 1e-4])
        rho = [None, None, 0.5, 20.0, (1.0, np.inf), (np.inf, 3.0)][rng.integers(6)]
        fields = {"eps": float(rng.uniform(0.2, 2)), "tol": tol, "cost": ds.Cost(str(kind), 0.7), "rho": rho}
        batch.append(ds.Problem(x=x, y=y, a=a, **fields))
    x, y = rng.normal(size=(20, 2)), rng.normal(size=(25, 2))
    rejected = ds.Problem(x=x, y=y, eps=1.0, tol=REJECTED_TOL)
    deep = ds.Problem(x=6 * x, y=6 * y, eps=0.001)
    poisoned = ds.Problem(x=1e200 * x, y=y, eps=1.0)
    invalid = ds.Problem(x=x, y=np.full((4, 2), np.nan), eps=1.0)
    batch += [rejected, deep, poisoned, invalid]
    return [batch[i] for i in rng.permutation(len(batch))]


def fingerprint(result: ds.Result[Any]) -> tuple[Any, ...]:
    potentials = () if result.emitted is None else tuple((p.dtype.str, p.tobytes()) for p in result.emitted)
    return (
        *potentials,
        result.depth,
        *(repr(r) for r in result.residual),
        result.status,
        result.rescued,
        result.widened,
    )


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("accelerate", ["momentum", "none"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_bitwise(seed: int, accelerate: str, backend: Any) -> None:
    def solve(batch: list[ds.Problem[Any]], **settings: Any) -> list[tuple[Any, ...]]:
        settings |= {"backend": backend, "accelerate": accelerate, "max_depth": MAX_DEPTH}
        return [fingerprint(r) for r in ds.solve(batch, **settings)]

    rng = np.random.default_rng([7, seed])
    batch = random_batch(rng)
    alone = solve(batch, mode="width-one", audit=ds.Audit(every=1))
    for mode in ("mask", "compact", "stream", "width-one"):
        width, every = int(rng.integers(1, 13)), int(rng.choice([1, 2, 5, 8, 100]))
        order = rng.permutation(len(batch))
        found = solve([batch[i] for i in order], mode=mode, width=width, audit=ds.Audit(every=every))
        assert found == [alone[i] for i in order], f"{mode}, width {width}, every {every}"
    few = rng.permutation(len(batch))[: len(batch) // 2]
    geometric = ds.Audit(every=ds.Geometric(2, 1.7), screen="row", batched=False)
    assert solve([batch[i] for i in few], mode="compact", audit=geometric) == [alone[i] for i in few]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("screen", ["free", "row", "none"])
def test_no_screen_lets_audit_times_change_a_float32_result(screen: Any, backend: str) -> None:
    for seed in range(20, 26):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(12, 2)).astype("f4"), (rng.normal(size=(12, 2)) + 8).astype("f4")
        audits = [ds.Audit(every=every, screen=screen) for every in (1, 2, 3, 8, 100)]
        depths = [ds.solve(x, y, eps=0.2, backend=backend, audit=audit)[0].depth for audit in audits]
        assert len(set(depths)) == 1, depths


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_the_company_was_as_bad_as_promised(backend: Any) -> None:
    rng = np.random.default_rng([7, 0])
    results = ds.solve(random_batch(rng), backend=backend, max_depth=MAX_DEPTH, accelerate="none")
    # Deadlines and workers have no part in it.
    assert {r.status for r in results} == set(ds.Status) - {ds.Status.EXPIRED, ds.Status.QUARANTINED}
    assert results.ledger.rejected == 2
    picky = [r for r in results if r.problem.tol == REJECTED_TOL]
    plain = ReferenceBackend() if backend.name == "reference" else CpuBackend(representation=backend.representation)
    honest = ds.solve([picky[0].problem], backend=plain, accelerate="none")
    assert picky[0].depth == honest[0].depth + 2


def test_one_lane_of_a_static_batch_is_what_it_would_be_alone_at_that_depth() -> None:
    rng = np.random.default_rng(3)
    batch = [ds.Problem(x=rng.normal(size=(9, 2)), y=rng.normal(size=(8, 2)), eps=e) for e in (0.3, 1.0, 3.0)]
    together = ds.solve(batch, backend="reference", mode="static", accelerate="none", audit=ds.Audit(every=4))
    depths = {r.depth for r in together}
    assert len(depths) == 1
    boundary = depths.pop()
    assert boundary % 4 == 0
    for problem, result in zip(batch, together, strict=True):
        pack = ReferenceBackend().pack([validate(problem, 1.0)])
        pack.advance(boundary, [-np.inf])
        assert np.array_equal(pack.emit([0]).f[0], result.potentials.f)


def test_threads_change_nothing() -> None:
    rng = np.random.default_rng(5)
    shapes = [(1100, 1000), (300, 700), (2000, 600), (40, 30)]
    batch = [ds.Problem(x=rng.normal(size=(n, 3)), y=rng.normal(size=(m, 3)), eps=0.3) for n, m in shapes]
    found = [
        [fingerprint(r) for r in ds.solve(batch, backend=CpuBackend(threads=t), width=w)]
        for t, w in ((1, 4), (2, 4), (3, 1))
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("points", [True, False])
def test_sharing_a_kernel_changes_nothing(points: bool) -> None:
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(200, 2)), 3 * rng.normal(size=(150, 2)) + 1
    cost = ((x[:, None] - y) ** 2).sum(-1)
    a = rng.dirichlet(np.ones(200) * 0.3, size=12)
    support = {"x": x, "y": y} if points else {"cost": cost}
    # The smaller eps drives scalings out of range, so that lanes leave the kernel they share.
    for eps in (0.5, 0.03):
        batch = ds.problems(**support, a=a, eps=eps)
        together = [fingerprint(r) for r in ds.solve(batch, backend="cpu", max_depth=400, width=12)]
        alone = [fingerprint(r) for r in ds.solve(batch, backend="cpu", max_depth=400, mode="width-one")]
        copies = [ds.Problem(**{k: v.copy() for k, v in support.items()}, a=row, eps=eps, init="zero") for row in a]
        apart = [fingerprint(r) for r in ds.solve(copies, backend="cpu", max_depth=400, width=5)]
        assert together == alone == apart


@pytest.mark.parametrize("size", [7, 14, 49])
def test_a_stack_and_a_list_of_its_problems_agree(size: int) -> None:
    rng = np.random.default_rng(size)
    x, y = rng.normal(size=(3, size, 2)), rng.normal(size=(3, size + 1, 2))
    stacked, listed = (
        ds.solve(x, y, eps=0.1),
        ds.solve([ds.Problem(x=p, y=q, eps=0.1) for p, q in zip(x, y, strict=True)]),
    )
    assert np.array_equal(stacked.potentials.f, listed.potentials.f)
