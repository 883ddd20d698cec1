"""The decisions of `Momentum`, of the CPU's `decide` and of Triton's `decide` are equal on equal numbers.

Column residuals are finite here: Triton lets one that is not make the row residual NaN, and the lane is then held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest

from drainsinkhorn.backends.cpu.lane_table import new_lanes
from drainsinkhorn.backends.cpu.update_kernels import decide
from drainsinkhorn.numerics.update import GROWTH, MAX_BACKOFF, OFFSET, PLAIN, STEP, Momentum, Stride
from tests.conftest import needs

needs("triton")
needs("torch")
from drainsinkhorn.backends.triton.kernels import columns as t  # noqa: E402
from drainsinkhorn.backends.triton.kernels import update as kernels  # noqa: E402
from tests.device import DEVICE, torch  # noqa: E402

# Imported there after tests.device, which decides whether Triton interprets.
triton, tl = kernels.triton, kernels.tl
FIELDS, NUMBERS = t.FIELDS.value, t.NUMBERS.value
# Where the one partial sum of each measured number is stored.
ROW_SUM, COL_SUM, ALONG_SUM, SUMS = range(4)


class Leg(NamedTuple):
    """What a lane measures before a decision: both residuals, and how the leg lies to the last displacement."""

    columns: float
    error: float
    along: float


class Decision(NamedTuple):
    """A stride, and whether rows are exact after it."""

    stride: Stride
    rows_exact: bool


def in_python(legs: list[Leg]) -> Iterator[Decision]:
    momentum = Momentum()
    for place, leg in enumerate(legs):
        # Lanes measure columns from the first g-leg on, and report them where rows are exact.
        if place and momentum.rows_exact:
            momentum.measured_columns(leg.columns)
        stride = momentum.stride(leg.error, leg.along)
        yield Decision(stride, momentum.rows_exact)


def on_the_cpu(legs: list[Leg]) -> Iterator[Decision]:
    lane = new_lanes(1)[0]
    for leg in legs:
        # A lane's kernels set it in every cycle.
        lane["col_residual"] = leg.columns
        decide(lane, leg.error, leg.along)
        yield Decision(Stride(lane["step"], lane["beta"]), bool(lane["rows_exact"]))


@triton.jit
def decide_lanes(table, state, wide, stops, out, FIELDS: tl.constexpr, NUMBERS: tl.constexpr, SUMS: tl.constexpr):
    """One decision of each lane, by one program each."""
    lane = tl.program_id(0)
    numbers = state + lane * NUMBERS
    stop, stopped = tl.load(stops + lane), tl.load(numbers + t.FROZEN) > 0
    _, _, step, beta, _, _, after = kernels.decide(
        table + lane * FIELDS, numbers, wide + lane * SUMS, stop, stopped, 1, True, False, 16, 16, 16
    )
    tl.store(numbers + tl.arange(0, NUMBERS), after)
    tl.store(out + 2 * lane, step)
    tl.store(out + 2 * lane + 1, beta)


class TritonLanes:
    """The table and the state of lanes of one row and one column, so that each sum has one part."""

    def __init__(self, lanes: int) -> None:
        table = torch.zeros((lanes, FIELDS), dtype=torch.int64)
        table[:, t.SIZE.value : t.SIZE.value + 2] = 1
        table[:, t.ERRORS.value], table[:, t.ERRORS.value + 1], table[:, t.ALIGNMENT.value] = (
            ROW_SUM,
            COL_SUM,
            ALONG_SUM,
        )
        state = torch.zeros((lanes, NUMBERS), dtype=torch.float64)
        state[:, t.BEST.value] = math.inf
        self.table, self.state = table.to(DEVICE), state.to(DEVICE)
        self.stops = torch.full((lanes,), -math.inf, dtype=torch.float64, device=DEVICE)
        self.out = torch.zeros((lanes, 2), dtype=torch.float64, device=DEVICE)

    # Triton's interpreter computes with NumPy, which warns of overflow.
    @np.errstate(all="ignore")
    def decide(self, legs: Sequence[Leg]) -> list[Decision]:
        """The next decision of every lane."""
        sums = torch.tensor([[leg.error, leg.columns, leg.along] for leg in legs], dtype=torch.float64).to(DEVICE)
        decide_lanes[(len(legs),)](self.table, self.state, sums, self.stops, self.out, FIELDS, NUMBERS, SUMS)
        exact = self.state[:, t.ROWS_EXACT.value].tolist()
        strides = [Stride(step, beta) for step, beta in self.out.tolist()]
        return [Decision(*pair) for pair in zip(strides, map(bool, exact), strict=True)]


def by_triton(sequences: list[list[Leg]]) -> list[list[Decision]]:
    """Decisions of many lanes, whose sequences have one length."""
    lanes = TritonLanes(len(sequences))
    steps = [lanes.decide(legs) for legs in zip(*sequences, strict=True)]
    return [list(decisions) for decisions in zip(*steps, strict=True)]


def agreed(sequences: list[list[Leg]]) -> list[list[Decision]]:
    """The decisions in Python, after a check that the others are the same, all beta to the bit."""
    found = [list(in_python(legs)) for legs in sequences]
    assert [list(on_the_cpu(legs)) for legs in sequences] == found
    assert by_triton(sequences) == found
    return found


def run_like_a_lane(seed: int, length: int) -> list[Leg]:
    """Residuals that fall with noise, grow now and then, and are not numbers now and then."""
    rng = np.random.default_rng(seed)
    legs, error = list[Leg](), 1.0
    for _ in range(length):
        before, error = error, error * math.exp(rng.normal(-0.05, 0.3))
        shown = error * rng.choice([1.0, 3.0, 50.0], p=[0.9, 0.05, 0.05])
        shown = rng.choice([shown, math.nan, math.inf, 0.0], p=[0.97, 0.01, 0.01, 0.01])
        along = rng.choice([rng.normal(0.5, 1), 0.0, -0.0, math.nan], p=[0.94, 0.02, 0.02, 0.02])
        legs.append(Leg(float(before * rng.choice([1.0, 3.0])), float(shown), float(along)))
    return legs


def test_random_sequences() -> None:
    found = agreed([run_like_a_lane(seed, 60) for seed in range(8)])
    steps = [decision.stride for decisions in found for decision in decisions]
    # All rules took part: plain legs, and runs of three and more with momentum.
    assert steps.count(PLAIN) > 100
    assert sum(stride.beta >= 3 / (3 + OFFSET) for stride in steps) > 20


def test_numbers_at_the_edges_of_the_rules() -> None:
    edge = GROWTH * 1e-3
    rng = np.random.default_rng(7)
    errors = [1e-3, edge, math.nextafter(edge, 1), math.nextafter(edge, 0), 0.0, 5e-324, 1e-300, 1e300, math.nan]
    columns = [1e-3, math.nextafter(1e-3 / math.sqrt(0.3), 1), 1e-3 / math.sqrt(0.3), 0.0, 1e300, 5e-324]
    along = [0.0, -0.0, 5e-324, -5e-324, math.inf, -math.inf, math.nan]
    found = agreed(
        [[Leg(*(float(rng.choice(some)) for some in (columns, errors, along))) for _ in range(40)] for _ in range(8)]
    )
    assert {decision.stride.step for decisions in found for decision in decisions} == {1.0, STEP}


@pytest.mark.parametrize("bad", [5.0, math.nan])
def test_each_growth_doubles_the_plain_legs_after_it(bad: float) -> None:
    fine = Leg(1.0, 1.0, 1.0)
    legs = [fine, fine]
    for growth in range(6):
        legs += [Leg(1.0, bad, 1.0)] + [fine] * (2**growth + 1)
    (decisions,) = agreed([legs])
    runs = [0]
    for decision in decisions[1:]:
        if decision.stride == PLAIN:
            runs[-1] += 1
        elif runs[-1]:
            runs.append(0)
    assert runs[:-1] == [1 + 2**growth for growth in range(6)]
    assert decisions[-1].stride == Stride(STEP, 1 / (1 + OFFSET))


def test_the_pause_has_the_same_bound() -> None:
    """The residual grows after the longest pause; the state of compiled rules says how long the next one is."""
    lane = new_lanes(1)[0]
    for field in ("started", "age", "best", "col_residual"):
        lane[field] = 1.0
    lane["backoff"] = MAX_BACKOFF
    decide(lane, 5.0, 1.0)
    assert (lane["cooldown"], lane["backoff"]) == (2.0**MAX_BACKOFF, MAX_BACKOFF)
    lanes = TritonLanes(1)
    lanes.state[0, [t.STARTED.value, t.AGE.value, t.BEST.value]] = 1.0
    lanes.state[0, t.BACKOFF.value] = MAX_BACKOFF
    lanes.decide([Leg(1.0, 5.0, 1.0)])
    assert lanes.state[0, [t.COOLDOWN.value, t.BACKOFF.value]].tolist() == [2.0**MAX_BACKOFF, MAX_BACKOFF]
