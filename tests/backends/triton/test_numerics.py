"""Each kernel computes the function of `numerics` that its docstring names."""

from __future__ import annotations

import ast
import importlib
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drainsinkhorn as ds
from drainsinkhorn.backends.triton import TritonBackend
from drainsinkhorn.backends.triton.kernels import columns as c
from drainsinkhorn.backends.triton.kernels import starts as start_kernels
from drainsinkhorn.backends.triton.kernels import update as kernels
from drainsinkhorn.backends.triton.kernels import verify
from drainsinkhorn.numerics.costs import cost_matrix
from drainsinkhorn.numerics.residual import residual
from drainsinkhorn.numerics.rounding import sampled_error
from drainsinkhorn.numerics.starts import between, worthwhile
from drainsinkhorn.numerics.transforms import conditionals, plan_costs
from drainsinkhorn.numerics.update import PLAIN, Stride, alignment, log_ratios, update
from drainsinkhorn.run.validate import validate
from tests.device import DEVICE, torch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

triton, tl = kernels.triton, kernels.tl
NAMED = re.compile(r"`numerics\.(\w+)\.([\w.]+)`")
COMPARED = {
    "update": {"update", "log_ratios", "alignment", "Momentum.stride"},
    "residual": {"residual"},
    "rounding": {"sampled_error", "streamed_rounding", "unsampled_size"},
    "starts": {"between", "start", "worthwhile"},
    "transforms": {"conditionals", "plan_costs"},
    "arrays": {"round_to"},
    "exponentials": {"compensated_power", "power"},
    "soft": {"log_deviations", "soft_residual", "translation"},
}
"""Functions that kernels name. tests/numerics compares `Momentum.stride`, other files here bounds and
rounding, and test_soft.py soft lanes with the reference, test_triple.py exponentials."""
LN2 = math.log(2)


def docstrings() -> list[str]:
    folder = Path(kernels.__file__).parent
    trees = [ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [ast.get_docstring(node) or "" for node in functions]


def test_named_functions_exist_and_are_compared() -> None:
    named: dict[str, set[str]] = {}
    for text in docstrings():
        for module, name in NAMED.findall(text):
            named.setdefault(module, set()).add(name)
            found: Any = importlib.import_module(f"drainsinkhorn.numerics.{module}")
            for part in name.split("."):
                found = getattr(found, part)
    assert named == COMPARED


@triton.jit
def run_rule(potentials, ratios, before, out, step, beta, PLAIN: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.arange(0, ROWS)
    f, logs = tl.load(potentials + rows), tl.load(ratios + rows)
    f, x = kernels.update_rule(f, logs, tl.load(before + rows), step, beta, 1.0, PLAIN, False)
    tl.store(out + rows, f)
    tl.store(out + ROWS + rows, x)


@pytest.mark.parametrize("stride", [PLAIN, Stride(1.25, 0.375)])
def test_update_rule(stride: Stride) -> None:
    potentials, ratios, before = torch.randn((3, 16), dtype=torch.float64).to(DEVICE)
    out = torch.zeros((2, 16), dtype=torch.float64, device=DEVICE)
    # Numbers that are passed to a kernel are float32, which holds both strides exactly.
    run_rule[(1,)](potentials, ratios, before, out, *stride, PLAIN=stride == PLAIN, ROWS=16)
    truth = update(potentials.cpu().numpy(), ratios.cpu().numpy(), 1.0, stride, before.cpu().numpy())
    # A device may fuse a product and a sum: each of three operations rounds numbers of at most this size.
    largest = sum(np.abs(part.cpu().numpy()) for part in (potentials, stride.step * ratios, before))
    assert (np.abs(out.cpu().numpy() - truth) <= 3 * 2.0**-53 * (1 + stride.beta) * largest).all()


def problem(dim: int, cost: str = "sqeuclidean") -> ds.Problem[Any]:
    rng = np.random.default_rng(dim)
    x, y = (torch.as_tensor(rng.normal(size=(n, dim)).astype(np.float32)).to(DEVICE) for n in (23, 18))
    b = rng.uniform(0.5, 2.0, size=18)
    return ds.Problem(x=x, y=y + 0.3, b=b / b.sum(), eps=0.3 * dim if cost == "sqeuclidean" else 0.4, cost=cost)


class Measured:
    """A lane after some cycles, and what NumPy computes from its potentials."""

    def __init__(self, given: ds.Problem[Any], **settings: Any) -> None:
        instance = validate(given, 1e-3)
        self.eps = instance.eps
        pack = TritonBackend(acceleration="momentum", **settings).pack([instance])
        pack.advance(3, [-math.inf])
        self.place, self.pack = pack._lanes.places[0], pack
        self.f, self.g = (self.vector(c.POTENTIAL, side, LN2 * self.eps) for side in (0, 1))
        self.before = self.vector(c.BEFORE, 0, LN2 * self.eps)
        self.a, self.b = np.asarray(instance.a), np.asarray(instance.b)
        self.scaled_cost = cost_matrix(instance)[0] / self.eps
        self.ratios = log_ratios(self.f, self.g, np.log(self.b), self.scaled_cost, self.eps)

    def vector(self, column: Any, side: int = 0, unit: float = 1.0, name: str = "vectors64", size: int = 0) -> Any:
        start = int(self.pack._table.fields[self.place, column.value + side])
        found = self.pack._buffers[name][start : start + (size or self.pack._table.host["size"][self.place, side])]
        return found.cpu().numpy().astype(np.float64) * unit


@pytest.mark.parametrize(
    ("given", "settings", "accuracy"),
    [
        (problem(3), {}, 1e-5),
        (problem(10), {}, 1e-5),
        (problem(70), {}, 1e-5),
        (problem(3, "euclidean"), {}, 1e-5),
        (problem(3), {"precision": "float64"}, 1e-7),
    ],
    ids=["packed", "product", "stored", "root", "float64"],
)
def test_legs(given: ds.Problem[Any], settings: dict[str, Any], accuracy: float) -> None:
    """`leg` and `float64_leg`: log ratios are kept in float32; `finish_tile`: residual and alignment; `check`."""
    lane = Measured(given, **settings)
    assert np.abs(lane.vector(c.LOG_RATIOS, name="vectors32", unit=LN2) - lane.ratios).max() <= accuracy
    tiles = 2 if settings.get("precision") == "float64" else 1
    error = lane.vector(c.ERRORS, size=tiles).sum()
    assert error == pytest.approx(residual(lane.a, lane.ratios), abs=accuracy)
    direction = alignment(lane.a, lane.ratios / LN2, lane.f / (lane.eps * LN2), lane.before / (lane.eps * LN2))
    assert lane.vector(c.ALIGNMENT, size=tiles).sum() == pytest.approx(direction, rel=1e-3, abs=10 * accuracy)
    (said,), emitted = lane.pack.verify([0]).rows(), lane.pack.emit([0]).potentials(0)
    f, g = (part.cpu().numpy().astype(np.float64) for part in emitted)
    rows = log_ratios(f, g, np.log(lane.b), lane.scaled_cost, lane.eps)
    columns = log_ratios(g, f, np.log(lane.a), lane.scaled_cost.T, lane.eps)
    assert said.row == pytest.approx(residual(lane.a, rows), abs=said.band)
    assert said.col == pytest.approx(residual(lane.b, columns), abs=said.band)


def test_sampled_errors() -> None:
    """`check` of a lane of 20 rows and 20 columns, of which all are sampled."""
    rng = np.random.default_rng(3)
    fields = torch.zeros((1, c.FIELDS.value), dtype=torch.int64)
    fields[0, c.SIZE.value : c.SIZE.value + 2] = 20
    # Masses of both sides, then parts of both residuals; log ratios of both sides.
    for column, offsets in ((c.MASS, (0, 20)), (c.ERRORS, (40, 41)), (c.LOG_RATIOS, (0, 20))):
        fields[0, column.value : column.value + 2] = torch.tensor(offsets)
    masses, ratios = rng.dirichlet(np.ones(20), size=2), rng.normal(size=(2, 20)).astype(np.float32)
    truth = ratios + 1e-4 * rng.normal(size=(2, 20))
    samples = np.zeros((2, 1, 32))
    samples[:, 0, :20] = truth
    vectors64 = torch.as_tensor(np.r_[masses.ravel(), 0.25, 0.5])
    state, found = torch.zeros((1, c.NUMBERS.value)).double(), torch.zeros((1, c.FINDINGS.value)).double()
    lanes = torch.zeros(1, dtype=torch.int64)
    tensors = (fields, lanes, state, vectors64, vectors64, torch.as_tensor(ratios.ravel()), torch.as_tensor(samples))
    arguments, found = [tensor.to(DEVICE) for tensor in tensors], found.to(DEVICE)
    verify.check[(1,)](*arguments, found, 32, OPENS=False, SOFT=False, BM=32, BM64=16, BLOCK=16, COUNT=32)
    columns = c.Findings(*found.cpu().numpy().T.tolist())
    errors = sampled_error(np, masses, np.abs(np.exp2(ratios - truth) - 1))
    assert [*columns.row, *columns.col] == [0.25, 0.5]
    assert [*columns.row_error, *columns.col_error] == pytest.approx(errors.tolist(), rel=1e-9)


def test_an_update_of_a_pack_is_that_of_numpy() -> None:
    """`apply_leg`, and `finish_tile` for columns."""
    lane = Measured(problem(3), precision="float64")
    lane.pack.advance(1, [-math.inf])
    f, g, x = (lane.vector(k, s, LN2 * lane.eps) for k, s in ((c.POTENTIAL, 0), (c.POTENTIAL, 1), (c.BEFORE, 0)))
    numbers = lane.pack._table.state[lane.place].cpu()
    age = float(numbers[c.AGE.value])
    stride = Stride(1.25, age / (age + 2.0)) if age else PLAIN
    truth, truth_x = update(lane.f, lane.ratios, lane.eps, stride, lane.before)
    assert np.allclose(f, truth, atol=1e-6)
    assert np.allclose(x, truth_x, atol=1e-6)
    columns = log_ratios(lane.g, truth, np.log(lane.a), lane.scaled_cost.T, lane.eps)
    assert np.allclose(g, update(lane.g, columns, lane.eps)[0], atol=1e-6)


def test_gaussian_maps() -> None:
    """`gaussian_maps` for clouds of one mean; tests/backends/triton/test_layout.py compares whole starts."""
    rng = np.random.default_rng(0)
    covariances = [q @ q.T / 8 for q in rng.normal(size=(2, 3, 8))]
    padded = torch.zeros((2, 1, 17, 16), dtype=torch.float64)
    for side, covariance in enumerate(covariances):
        padded[side, 0, 1:4, :3] = torch.as_tensor(covariance)
    sums, others = padded.to(DEVICE)
    middles, factors = (torch.zeros((1, 3, 3), dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    scratch, matrix = torch.empty((1, 4 * 256), dtype=torch.float64), torch.empty((1, 3, 3), dtype=torch.float64)
    mean, slope = torch.empty((2, 1, 3), dtype=torch.float64).to(DEVICE)
    middles, factors, scratch, matrix = (t.to(DEVICE) for t in (middles, factors, scratch, matrix))
    start_kernels.gaussian_maps[(1,)](
        sums, others, middles, factors, scratch, mean, matrix, slope, 3, DP=16, FULL=True, DEPTH=16, num_warps=4
    )
    zero, (cov_x, cov_y) = np.zeros((1, 3)), (each[None] for each in covariances)
    truth = between(zero, cov_x, zero, cov_y, np.ones(1))
    assert np.allclose(matrix.cpu().numpy(), truth.matrix, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_keep_worthwhile(scale: float) -> None:
    starts = scale * np.random.default_rng(1).normal(size=(2, 40))
    weights = np.full((2, 40), 1 / 40)
    vectors = torch.as_tensor(np.concatenate([starts / LN2, weights])).to(DEVICE)
    fields = np.zeros((2, c.FIELDS.value), dtype=np.int64)
    fields[:, c.SIZE.value + 1] = 40
    fields[:, c.POTENTIAL.value + 1], fields[:, c.MASS.value + 1] = (0, 40), (80, 120)
    table = torch.as_tensor(fields).to(DEVICE)
    start_kernels.keep_worthwhile[(2,)](table, vectors, ALWAYS=False, BLOCK=64)
    truth = np.where(worthwhile(starts, weights)[:, None], starts, 0.0)
    assert np.allclose(vectors[:2].cpu().numpy() * LN2, truth, atol=1e-12)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_plans(precision: Any) -> None:
    """`average`, `total` and their float64 forms."""
    given = problem(3)
    given = ds.Problem(x=given.x.to(precision), y=given.y.to(precision), b=given.b, eps=given.eps)
    lane = Measured(given)
    f, g = (torch.as_tensor(p).to(DEVICE, precision) for p in (lane.f, lane.g))
    plans = TritonBackend().couple([validate(given, 1e-3)], [ds.Potentials(f, g)])
    values = np.random.default_rng(2).normal(size=(18, 4))
    own, other = lane.f / lane.eps, lane.g / lane.eps
    rows = conditionals(own, other, lane.b, lane.scaled_cost)
    (means,), (ratios,) = plans.average([values]), plans.log_ratios()
    assert np.allclose(means.cpu().numpy(), rows.distributions @ values, atol=1e-4)
    assert np.allclose(ratios.cpu().numpy(), rows.log_ratios, atol=1e-4)
    plan = lane.a[:, None] * lane.b * np.exp(own[:, None] + other - lane.scaled_cost)
    entropy = (plan * (own[:, None] + other - lane.scaled_cost)).sum()
    linear = lane.a @ own + lane.b @ other
    costs = plan_costs(lane.eps, plan.sum(), (plan * lane.scaled_cost).sum(), entropy, linear)
    (found,) = plans.transport_cost()
    assert [found.transport, found.kl, found.entropic, found.dual] == pytest.approx(
        [costs.transport, costs.kl, costs.entropic, costs.dual], rel=1e-4, abs=1e-4
    )
