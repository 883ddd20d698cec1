"""Certificates of many lanes in one call: torch certifies what NumPy does, and its bound holds.

The batched code runs on CPU tensors here, which `on_device` is patched to take for a device's.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends import certificate
from drainsinkhorn.backends.certificate import batch, blocks, certificates, certify
from drainsinkhorn.backends.reference import ReferenceLane
from drainsinkhorn.core.protocol import Emission
from drainsinkhorn.model.result import Residual
from drainsinkhorn.numerics.products import has_products, shifts
from drainsinkhorn.run.validate import validate
from tests.backends.certificate.test_certificate import KINDS, Long, extended_residuals, hostile
from tests.conftest import needs

torch = needs("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certify tensors of the CPU by the code for a device, with products where NumPy has them."""
    monkeypatch.setattr(certificate, "on_cuda", torch.is_tensor)
    monkeypatch.setitem(blocks.PRODUCT_DIM, "numpy", blocks.PRODUCT_DIM["torch"])


def in_torch(problem: ds.Instance[Any]) -> ds.Instance[Any]:
    """The same validated problem with tensors of its own."""
    if problem.is_dense:
        return replace(problem, matrix=torch.tensor(problem.matrix))
    return replace(problem, x=torch.tensor(problem.x), y=torch.tensor(problem.y))


def emission(problem: ds.Instance[Any], potentials: ds.Potentials[Any]) -> Emission:
    f, g = map(torch.tensor, potentials)
    return Emission([f], [g], [False], [in_torch(problem)])


def batched(lanes: list[tuple[ds.Instance[Any], ds.Potentials[Any]]]) -> list[Residual]:
    return certificates(Emission.join(emission(*lane) for lane in lanes), [False] * len(lanes)).rows()


@dataclass(frozen=True)
class Manhattan(ds.PointCost):
    """A cost of the caller's own."""

    def pairwise(self, x: Any, y: Any) -> Any:
        return np.abs(x[:, None] - y[None]).sum(-1)


FORMS: dict[str, Any] = {
    "sqeuclidean": "sqeuclidean",
    "euclidean": "euclidean",
    "cosine": "cosine",
    "scaled sqeuclidean": ds.Cost("sqeuclidean", 0.3),
    "scaled euclidean": ds.Cost("euclidean", 7.0),
    "scaled cosine": ds.Cost("cosine", 2.5),
    "dot": "dot",
    "scaled negdot": ds.Cost("negdot", 1.7),
    "own": ds.Cost(Manhattan(), 1.5),
    "dense": None,
}


def lane(
    rng: np.random.Generator,
    cost: Any,
    n: int,
    m: int,
    d: int,
    *,
    absent: int = 0,
    dtype: str = "float64",
    rho: Any = None,
) -> tuple[ds.Instance[Any], ds.Potentials[Any]]:
    """A problem, `absent` points of either side of which have no weight, and potentials of about the size of eps."""
    a, b = rng.random(n), rng.random(m)
    for weights in (a, b):
        weights[rng.permutation(len(weights))[:absent]] = 0.0
    points = {"x": (3 + rng.normal(size=(n, d))).astype(dtype), "y": (3 + rng.normal(size=(m, d))).astype(dtype)}
    arrays = {"cost": rng.normal(size=(n, m)).astype(dtype)} if cost is None else {**points, "cost": cost}
    problem = validate(ds.Problem(a=a / a.sum(), b=b / b.sum(), eps=0.5 + rng.random(), rho=rho, **arrays), 1e-6)
    potentials = [rng.normal(size=size) for size in (n, m)]
    if has_products(problem):
        # Those of the squared distances are of the size of eps.
        potentials = [side - shift for side, shift in zip(potentials, shifts(problem), strict=True)]
    return problem, ds.Potentials(*(side.astype(dtype) for side in potentials))


def assert_alike(found: Residual, expected: Residual) -> None:
    """Both bounds are the same up to rounding, and cover the difference of both residuals."""
    assert found.band == pytest.approx(expected.band, rel=1e-6, abs=0.0)
    assert 0 < found.band < 1e-8
    assert abs(found.row - expected.row) <= found.band + expected.band
    assert abs(found.col - expected.col) <= found.band + expected.band


@pytest.mark.usefixtures("device")
class TestAgainstNumpy:
    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    @pytest.mark.parametrize("dim", [3, 20])
    @pytest.mark.parametrize("form", FORMS)
    def test_lanes_of_one_shape(self, form: str, dim: int, dtype: str) -> None:
        rng = np.random.default_rng(5)
        lanes = [lane(rng, FORMS[form], 30, 40, dim, dtype=dtype) for _ in range(5)]
        for found, one in zip(batched(lanes), lanes, strict=True):
            assert_alike(found, certify(*one))

    @pytest.mark.parametrize("dim", [3, 20])
    @pytest.mark.parametrize("form", FORMS)
    def test_points_without_weight(self, form: str, dim: int) -> None:
        rng = np.random.default_rng(6)
        lanes = [lane(rng, FORMS[form], 30, 25, dim, absent=absent) for absent in (0, 1, 9, 24)]
        for problem, potentials in lanes:
            # What has no weight must not reach any number, however wild.
            idle = problem.a == 0
            potentials.f[idle] = math.inf
            if problem.x is None:
                problem.matrix[idle] = 1e300  # type: ignore[index]
            elif form != "own":
                problem.x[idle] = 1e200  # type: ignore[index]
        for found, one in zip(batched(lanes), lanes, strict=True):
            assert_alike(found, certify(*one))

    def test_lanes_of_unequal_shapes_come_back_in_order(self) -> None:
        rng = np.random.default_rng(7)
        shapes = [(30, 40, 3), (1, 9, 3), (30, 40, 20), (30, 40, 3), (12, 1, 1), (1, 1, 2), (40, 30, 3)]
        lanes = [lane(rng, cost, *shape) for shape in shapes for cost in FORMS.values()]
        lanes = [lanes[k] for k in rng.permutation(len(lanes))]
        broken = [k % 5 == 2 for k in range(len(lanes))]
        found = certificates(Emission.join(emission(*one) for one in lanes), broken).rows()
        for residual, one, is_broken in zip(found, lanes, broken, strict=True):
            if is_broken:
                assert all(map(math.isnan, residual))
            else:
                assert_alike(residual, certify(*one))

    def test_lanes_of_the_host_and_of_a_device_share_a_call(self) -> None:
        rng = np.random.default_rng(8)
        lanes = [lane(rng, "sqeuclidean", 20, 20, 3) for _ in range(4)]
        mixed = Emission.join(
            emission(*one) if k % 2 else Emission([one[1].f], [one[1].g], [False], [one[0]])
            for k, one in enumerate(lanes)
        )
        found = certificates(mixed, [False] * 4).rows()
        for k, one in enumerate(lanes):
            assert_alike(found[k], certify(*one))
            assert k % 2 == 1 or found[k] == certify(*one)

    @pytest.mark.parametrize("pairs", [1, 50, 700, 4000])
    @pytest.mark.parametrize("dim", [3, 20])
    @pytest.mark.parametrize("form", FORMS)
    def test_blocks(self, form: str, dim: int, pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(blocks.BLOCK_PAIRS, "torch", pairs)
        rng = np.random.default_rng(9)
        lanes = [lane(rng, FORMS[form], 13, 17, dim, absent=k % 2) for k in range(7)]
        for found, one in zip(batched(lanes), lanes, strict=True):
            assert_alike(found, certify(*one))

    @pytest.mark.parametrize("size", [(30, 40), (64, 64), (300, 200)])
    @pytest.mark.parametrize("dim", [3, 20])
    @pytest.mark.parametrize("form", FORMS)
    def test_neighbours_do_not_change_a_bit(self, form: str, dim: int, size: tuple[int, int]) -> None:
        rng = np.random.default_rng(12)
        lanes = [lane(rng, FORMS[form], *size, dim, absent=k % 3) for k in range(11)]
        assert batched(lanes) == [batched([one])[0] for one in lanes]

    def test_points_of_dtypes_that_no_common_dtype_holds(self) -> None:
        rng = np.random.default_rng(10)
        x, y = rng.integers(2**24, 2**24 + 9, size=(20, 3)), 2.0**24 + rng.integers(0, 5, size=(20, 3)) * 2
        problem, potentials = lane(rng, "sqeuclidean", 20, 20, 3)
        problem = replace(problem, x=x, y=y.astype(np.float32), eps=20.0)
        assert_alike(batched([(problem, potentials)])[0], certify(problem, potentials))

    @pytest.mark.parametrize("size", [1e-200, 1e-160, 1e160, 1e200])
    def test_distances_whose_squares_leave_the_range(self, size: float) -> None:
        rng = np.random.default_rng(11)
        problem, (f, g) = lane(rng, "euclidean", 20, 30, 3)
        problem = replace(problem, x=size * problem.x, y=size * problem.y, eps=size * problem.eps)
        potentials = ds.Potentials(size * f, size * g)
        assert_alike(batched([(problem, potentials)])[0], certify(problem, potentials))

    @pytest.mark.parametrize("kind", ["sqeuclidean", "euclidean", "cosine"])
    def test_points_that_are_all_the_same(self, kind: str) -> None:
        problem = validate(ds.Problem(x=np.full((3, 2), 7.5), y=np.full((4, 2), 7.5), eps=0.5, cost=kind), 1e-6)
        potentials = ds.Potentials(np.full(3, 0.1), np.full(4, -0.2))
        assert_alike(batched([(problem, potentials)])[0], certify(problem, potentials))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("device")
def test_the_bound_holds_in_extended_precision(kind: str) -> None:
    if np.finfo(Long).eps > 1e-18:
        pytest.skip("long double is no wider than double on this machine")
    rng = np.random.default_rng(7)
    lanes = list[tuple[ds.Instance[Any], ds.Potentials[Any]]]()
    for _ in range(60):
        problem = hostile(rng, kind)
        with np.errstate(all="ignore"):
            reference = ReferenceLane(problem)
            for _ in range(int(rng.integers(0, 20))):
                reference.cycle()
        for _ in range(2):
            # Two lanes of one shape, so that batches have more than one.
            shift = problem.eps * 10.0 ** rng.uniform(-3, 15) if rng.random() < 0.5 else 0.0
            lanes.append((problem, ds.Potentials(reference.f + shift, reference.g - shift)))
    finite = infinite = 0
    for found, (problem, (f, g)) in zip(batched(lanes), lanes, strict=True):
        row, col = extended_residuals(problem, f, g)
        infinite += found.band == math.inf
        # Plans of enormous mass are beyond any tolerance.
        if found.band < math.inf and row < 1e6:
            finite += 1
            assert abs(found.row - row) <= found.band
            assert abs(found.col - col) <= found.band
    assert finite >= 40
    assert infinite >= 1


@pytest.mark.usefixtures("device")
class TestStatesThatSayNothing:
    def test_potentials_that_are_not_finite(self) -> None:
        rng = np.random.default_rng(1)
        lanes = [lane(rng, "sqeuclidean", 10, 12, 3) for _ in range(3)]
        lanes[0][1].f[3] = math.nan
        lanes[1][1].g[0] = math.inf
        by_nan, by_inf, fine = batched(lanes)
        assert all(map(math.isnan, by_nan))
        assert not by_inf.worst < math.inf
        assert_alike(fine, certify(*lanes[2]))

    @pytest.mark.parametrize("form", FORMS)
    def test_huge_potentials_have_an_infinite_bound(self, form: str) -> None:
        rng = np.random.default_rng(2)
        lanes = [lane(rng, FORMS[form], 10, 12, 3) for _ in range(2)]
        problem, (f, g) = lanes[0]
        lanes[0] = problem, ds.Potentials(f + 1e16, g - 1e16)
        hidden, fine = batched(lanes)
        assert hidden.band == math.inf
        assert_alike(fine, certify(*lanes[1]))

    def test_products_of_points_far_from_each_other(self) -> None:
        rng = np.random.default_rng(3)
        problem, potentials = lane(rng, "sqeuclidean", 10, 12, 20)
        problem = replace(problem, y=problem.y + 1e7)
        assert batched([(problem, potentials)])[0].band == math.inf


@pytest.mark.usefixtures("device")
def test_arrays_of_the_caller_are_not_written_to() -> None:
    rng = np.random.default_rng(4)
    for form, cost in FORMS.items():
        for absent in (0, 2):
            found = emission(*lane(rng, cost, 9, 9, 3, absent=absent))
            problem = found.instances[0]
            arrays = [problem.matrix] if form == "dense" else [problem.x, problem.y]
            arrays = [torch.as_tensor(array) for array in (*arrays, *found.potentials(0), problem.a, problem.b)]
            before = [array.clone() for array in arrays]
            certificates(found, [False])
            assert all(torch.equal(array, copy) for array, copy in zip(arrays, before, strict=True))


@pytest.mark.usefixtures("device")
def test_points_that_require_gradients_are_certified() -> None:
    one = lane(np.random.default_rng(4), "sqeuclidean", 9, 9, 3)
    found = emission(*one)
    found.instances[0].x.requires_grad_()
    assert_alike(certificates(found, [False]).rows()[0], certify(*one))


class Operators(TorchDispatchMode):
    """Counts operators that compute or copy, and numbers of the largest tensor among their results."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.largest = Counter[str](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.name() and "detach" not in func.name():
            self.names[func.name()] += 1
            tensors = [value for value in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(value)]
            self.largest = max([self.largest, *(value.numel() for value in tensors)])
        return result


@pytest.fixture
def waits(device: None, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts what waits for a device, and copies to it."""
    counts = Counter[str]()

    def counted(owner: Any, name: str, key: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[key] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for name in ("tolist", "item", "cpu", "numpy", "__float__", "__bool__", "__int__"):
        counted(torch.Tensor, name, "wait")
    counted(batch, "to_device", "upload")
    return counts


class TestLaunches:
    @pytest.mark.parametrize("lanes", [1, 16])
    @pytest.mark.parametrize(
        ("form", "dim", "most", "products"),
        [
            ("sqeuclidean", 2, 27, 0),
            ("sqeuclidean", 3, 29, 0),
            ("sqeuclidean", 50, 33, 1),
            ("dense", 0, 22, 0),
            ("euclidean", 3, 36, 0),
            ("cosine", 3, 33, 0),
            ("cosine", 50, 37, 1),
        ],
    )
    def test_a_batch_takes_few_operators_and_waits_once(
        self, form: str, dim: int, most: int, products: int, lanes: int, waits: Counter[str]
    ) -> None:
        rng = np.random.default_rng(0)
        emitted = Emission.join(emission(*lane(rng, FORMS[form], 32, 32, dim)) for _ in range(lanes))
        waits.clear()
        with Operators() as operators:
            certificates(emitted, [False] * lanes)
        # Products are taken one lane at a time; everything else is the same for one lane and for many.
        assert operators.names["aten::addmm_"] == products * lanes
        assert operators.names.total() - products * lanes <= most
        assert waits == {"wait": 1, "upload": 1}

    def test_all_shapes_of_a_call_are_read_back_together(self, waits: Counter[str]) -> None:
        rng = np.random.default_rng(0)
        shapes = [(8, 9, 3), (9, 8, 3), (9, 9, 20)]
        costs = [FORMS[form] for form in ("sqeuclidean", "euclidean", "cosine", "dense")]
        each = (lane(rng, cost, *shape) for shape in shapes for cost in costs for _ in range(2))
        emitted = Emission.join(emission(*one) for one in each)
        waits.clear()
        certificates(emitted, [False] * len(emitted.f))
        # Dense lanes of (9, 9) have no coordinates.
        assert waits == {"wait": 1, "upload": len(shapes) * len(costs)}

    @pytest.mark.parametrize("dim", [3, 20])
    @pytest.mark.parametrize("form", ["sqeuclidean", "euclidean", "dense"])
    def test_memory_does_not_grow_with_lanes(
        self, form: str, dim: int, device: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(blocks.BLOCK_PAIRS, "torch", 5000)
        rng = np.random.default_rng(0)
        emitted = Emission.join(emission(*lane(rng, FORMS[form], 24, 30, dim)) for _ in range(40))
        with Operators() as operators:
            certificates(emitted, [False] * 40)
        assert operators.largest <= 5000
