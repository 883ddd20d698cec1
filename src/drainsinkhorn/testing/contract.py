"""The pack's promises as a suite that anyone can run on a new backend.

Every promise is a function of a `Bench`; `check_backend` runs them all, and PROMISES lets pytest run them one by one.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drainsinkhorn.backends.reference import ReferenceBackend
from drainsinkhorn.core.protocol import Backend, Pack, Progress
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ContractError, ProblemError
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.model.result import MAX_PAIRS, Residual
from drainsinkhorn.numerics.arrays import float_name, library, to_numpy
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import marginal_errors

NEVER, ALWAYS = -math.inf, math.inf
"""Stops that hold no lane, and every lane."""

CLOSE = 1e-5
"""How far a backend that is not bitwise may miss, as part of the largest of the numbers compared (1 at least)."""

Promise = Callable[["Bench"], None]
PROMISES: dict[str, Promise] = {}


def check_backend(
    backend: Backend[Any], *, like: Callable[[Any], Any] = np.asarray, shape: tuple[int, int, int] = (13, 17, 3)
) -> None:
    """Run every promise on a backend; raises ContractError with the name of the first that is broken.

    Args:
        backend: The backend.
        like: Turns a float64 NumPy array into the caller's array type, dtype included.
        shape: (n, m, d) of the problems used; choose one larger than a tile of your kernel too.
    """
    for name, promise in PROMISES.items():
        try:
            promise(Bench(backend, like, shape))
        except AssertionError as error:
            raise ContractError(f"backend {backend.name!r} breaks the promise {name!r}: {error}") from error


def _promise(function: Promise) -> Promise:
    PROMISES[function.__name__.removeprefix("_").replace("_", " ")] = function
    return function


class Bench:
    """A backend with problems to try it on."""

    def __init__(self, backend: Backend[Any], like: Callable[[Any], Any], shape: tuple[int, int, int]) -> None:
        self.backend = backend
        self.like = like
        self.shape = shape

    def problem(self, seed: int, *, spread: float = 1.0, eps: float = 0.5, tol: float = 1e-3) -> Instance[Any]:
        """An admitted problem that may share a pack with the bench's others; spread and eps decide how deep it is."""
        found = self._made(seed, spread, eps, tol)
        first = self.backend.signature(self._made(1, 1.0, 0.5, tol))
        # A larger eps asks for less precision, on which a signature may depend.
        while self.backend.signature(found) != first and eps < 100:
            eps *= 1.5
            found = self._made(seed, spread, eps, tol)
        return found

    def _made(self, seed: int, spread: float, eps: float, tol: float) -> Instance[Any]:
        n, m, d = self.shape
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(n, d)), spread * rng.normal(size=(m, d)) + 0.5
        a, b = rng.uniform(0.5, 1.5, size=n), rng.uniform(0.5, 1.5, size=m)
        if min(n, m) > 1:
            a[0] = b[-1] = 0.0
        given = Problem(
            x=self.like(x), y=self.like(y), a=self.like(a / a.sum()), b=self.like(b / b.sum()), eps=eps, tol=tol
        )
        return validate(given, tol)

    def problems(self) -> list[Instance[Any]]:
        """Three problems of unequal depth that may share a pack."""
        return [self.problem(1), self.problem(2, spread=2.0, eps=0.3), self.problem(3, spread=0.5, eps=1.0)]

    def poisoned(self) -> Instance[Any]:
        """A problem whose costs overflow."""
        problem = self.problem(4)
        n, _, d = self.shape
        return validate(Problem(x=self.like(np.full((n, d), 1e30)), y=problem.y, eps=1e-300, tol=1e-3), 1e-3)

    def same(self, ours: Sequence[Any], theirs: Sequence[Any], what: str) -> None:
        """Equal to the bit where the backend says so, else close: potentials are in units of about eps here."""
        for one, other in zip(ours, theirs, strict=True):
            one, other = to_numpy(one), to_numpy(other)
            if self.backend.bitwise:
                assert np.array_equal(one, other, equal_nan=True), f"{what} differ: {one} and {other}"
            else:
                slack = CLOSE * max(1.0, float(np.nan_to_num(np.abs(other)).max()))
                assert np.allclose(one, other, rtol=0, atol=slack, equal_nan=True), f"{what} differ: {one}, {other}"

    def open(self, problems: Sequence[Instance[Any]]) -> Ride:
        """A pack of these problems."""
        return Ride(self.backend, self.backend.pack(problems), len(problems))

    def alone(self, problem: Instance[Any], strides: int) -> list[Any]:
        """What a problem's lane holds after that many strides in a pack of its own."""
        ride = self.open([problem])
        ride.go(strides)
        return ride.state(0)


class Ride:
    """A pack with its number of occupied lanes, driven in strides."""

    def __init__(self, backend: Backend[Any], pack: Pack[Any], lanes: int) -> None:
        self.stride = backend.stride
        self.pack = pack
        self.lanes = lanes

    def go(self, strides: int, stop: float = NEVER) -> Progress:
        """Advance every lane with the same stop."""
        progress = self.pack.advance(strides * self.stride, [stop] * self.lanes)
        for column in progress:
            assert len(column) == self.lanes, f"progress has {len(column)} entries for {self.lanes} occupied lanes"
        return progress

    def strides(self, progress: Progress) -> list[int]:
        """Depths in strides."""
        return [depth // self.stride for depth in progress.depths]

    def repack(self, keep: Sequence[int], admit: Sequence[Instance[Any]] = ()) -> None:
        """Repack, and remember how many lanes there are."""
        self.pack.repack(keep, admit)
        self.lanes = len(keep) + len(admit)

    def state(self, lane: int) -> list[Any]:
        """What the lane would emit, and what verify says of it."""
        return [*self.potentials(lane), *self.residual(lane)]

    def potentials(self, lane: int) -> Potentials[Any]:
        """What the lane would emit."""
        return self.pack.emit([lane]).potentials(0)

    def residual(self, lane: int, *, exact: bool = False) -> Residual:
        """What verify says of the lane."""
        residuals = self.pack.verify([lane], exact=exact)
        for column in residuals:
            assert len(column) == 1, f"verify of one lane returned {len(column)} residuals"
        return residuals.rows()[0]


@_promise
def _settings_travel(bench: Bench) -> None:
    copy = pickle.loads(pickle.dumps(bench.backend))
    assert copy.name == bench.backend.name, "a backend must survive pickling"
    assert bench.backend.accelerations[-1] == "none", "accelerations must end with none"


@_promise
def _lanes_are_independent(bench: Bench) -> None:
    problems = bench.problems()
    alone = [bench.alone(problem, 5) for problem in problems]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        ride = bench.open([problems[i] for i in order])
        ride.go(5)
        for lane, i in enumerate(order):
            bench.same(ride.state(lane), alone[i], f"problem {i} alone and in lane {lane} of three")


@_promise
def _order_after_repack(bench: Bench) -> None:
    problems, fresh = bench.problems(), bench.problem(9)
    ride = bench.open(problems)
    ride.go(2)
    ride.repack([2, 0], [fresh])
    progress = ride.go(3)
    strides = ride.strides(progress)
    assert strides == [5, 5, 3], f"depths in strides after keeping [2, 0] and admitting one: {strides}, not [5, 5, 3]"
    for lane, (problem, count) in enumerate([(problems[2], 5), (problems[0], 5), (fresh, 3)]):
        bench.same(ride.state(lane), bench.alone(problem, count), f"lane {lane} after a repack and the problem alone")


@_promise
def _looking_changes_nothing(bench: Bench) -> None:
    problems = bench.problems()
    looked, left = bench.open(problems), bench.open(problems)
    for _ in range(4):
        looked.go(1)
        left.go(1)
        looked.pack.screen([0, 1, 2])
        looked.pack.verify([2, 0])
        looked.pack.verify([1], exact=True)
        looked.pack.emit([1])
    for lane in range(3):
        bench.same(looked.state(lane), left.state(lane), f"lane {lane} with and without screen, verify and emit")


@_promise
def _calls_add_up(bench: Bench) -> None:
    problems = bench.problems()
    once, often = bench.open(problems), bench.open(problems)
    together = once.go(6)
    apart = [often.go(1) for _ in range(6)][-1]
    assert list(together.depths) == list(apart.depths), "depths of one call and of six"
    for lane in range(3):
        bench.same(once.state(lane), often.state(lane), f"lane {lane} after one call and after six")


@_promise
def _a_held_lane_rests(bench: Bench) -> None:
    problems = bench.problems()
    ride = bench.open(problems)
    stops = [ALWAYS, NEVER, NEVER]
    progress = ride.pack.advance(4 * ride.stride, stops)
    assert ride.strides(progress) == [1, 4, 4], "a lane below its stop is held after one stride"
    bench.same(ride.state(0), bench.alone(problems[0], 1), "a held lane and its state when it was held")
    slots = (bench.backend.width_for(3) + 3 * bench.backend.width_for(2)) * ride.stride
    assert ride.pack.spent.slots == slots, "a held lane costs no slot: the kernel is as wide as what moves"


@_promise
def _lockstep_ends_with_the_first_hold(bench: Bench) -> None:
    problems = bench.problems()
    ride = bench.open(problems)
    ride.pack.freeze([2])
    progress = ride.pack.advance(4 * ride.stride, [NEVER, ALWAYS, NEVER], lockstep=True)
    assert ride.strides(progress) == [1, 1, 0], "in lockstep nobody runs while another is held"
    assert ride.pack.spent.slots == (3 + _padding(bench, 3)) * ride.stride, "in lockstep every lane costs every slot"
    progress = ride.pack.advance(4 * ride.stride, [NEVER] * 3, lockstep=True)
    assert ride.strides(progress) == [5, 5, 0], "in lockstep lanes that are not held run on"
    for lane in (0, 1):
        bench.same(ride.state(lane), bench.alone(problems[lane], 5), f"lane {lane} in lockstep, and alone")


@_promise
def _a_rejected_lane_moves(bench: Bench) -> None:
    problems = bench.problems()
    ride = bench.open(problems)
    for k in range(1, 4):
        progress = ride.go(5, ALWAYS)
        assert ride.strides(progress) == [k] * 3, "every call moves a held lane by one stride"
    for lane, problem in enumerate(problems):
        bench.same(
            ride.state(lane), bench.alone(problem, 3), f"lane {lane} held three times, and run for three strides"
        )


@_promise
def _first_passage_does_not_depend_on_the_calls(bench: Bench) -> None:
    problems = bench.problems()
    outcomes: list[list[Any]] = []
    for span in (1, 3, 50):
        ride, passed = bench.open(problems), dict[int, Any]()
        live = list(range(3))
        while live:
            progress = ride.go(span, 1e-2)
            for lane in [lane for lane in range(len(live)) if not progress.stale[lane] > 1e-2]:
                passed[live[lane]] = [progress.depths[lane], *ride.state(lane)]
            keep = [lane for lane in range(len(live)) if live[lane] not in passed]
            live = [live[lane] for lane in keep]
            if live:
                ride.repack(keep)
        outcomes.append([passed[i] for i in range(3)])
    for outcome in outcomes[1:]:
        for (depth, *state), (first_depth, *first) in zip(outcome, outcomes[0], strict=True):
            # Where sums change with the width, a residual at the very stop may fall on either side of it.
            late = 0 if bench.backend.bitwise else bench.backend.stride
            assert abs(depth - first_depth) <= late, f"first passages at {depth} and {first_depth} in other calls"
            if depth == first_depth:
                bench.same(state, first, "first passages with different call lengths")


@_promise
def _frozen_is_frozen(bench: Bench) -> None:
    problems = bench.problems()
    ride = bench.open(problems)
    ride.go(2)
    before, spent = ride.state(1), ride.pack.spent.slots
    ride.pack.freeze([1])
    progress = ride.go(3)
    bench.same(ride.state(1), before, "a frozen lane before and after")
    assert progress.depths[1] == 2 * ride.stride, "a frozen lane's depth stands still"
    executed = (3 + _padding(bench, 3)) * 3 * ride.stride
    assert ride.pack.spent.slots - spent == executed, "a frozen lane is executed, so it costs slots"
    for lane in (0, 2):
        bench.same(ride.state(lane), bench.alone(problems[lane], 5), f"lane {lane} beside a frozen lane, and alone")


@_promise
def _verify_tells_the_truth(bench: Bench) -> None:
    problems = bench.problems()
    ride = bench.open(problems)
    for _ in range(3):
        for lane, problem in enumerate(problems):
            row, col = marginal_errors(problem, ride.potentials(lane))
            for exact in (False, True):
                said = ride.residual(lane, exact=exact)
                # A plan far from convergence holds 1 + row of mass, and the band is relative to it.
                slack = (said.band + 1e-12) * (1 + row + col)
                assert abs(said.row - row) <= slack, f"row residual {said.row}, truth {row}, band {said.band}"
                assert abs(said.col - col) <= slack, f"column residual {said.col}, truth {col}, band {said.band}"
        ride.go(2)


@_promise
def _the_screen_is_outward(bench: Bench) -> None:
    problems = bench.problems()
    ride = bench.open(problems)
    for _ in range(3):
        progress = ride.go(1)
        separate = ride.pack.screen([0, 1, 2])
        for lane, problem in enumerate(problems):
            row, col = marginal_errors(problem, ride.potentials(lane))
            # Emission rounds to the caller's dtype; the screen sees the state before.
            f, g = (to_numpy(p) for p in ride.potentials(lane))
            rounding = float(np.finfo(f.dtype).eps * (np.abs(f).max() + np.abs(g).max()) / problem.eps)
            slack = 4 * ride.residual(lane).band + (1 + row) * rounding
            for value in (progress.stale[lane], separate[lane]):
                assert row - slack <= value <= row + slack, f"screen {value}, truth {row}"
                if f.dtype == np.float64:
                    assert value >= row, f"screen {value} is below the truth {row}: it leaves out its rounding"
            assert col <= slack, f"columns are current after a cycle, but their error is {col}"


@_promise
def _emit_copies(bench: Bench) -> None:
    problems = bench.problems()
    ride = bench.open(problems)
    ride.go(2)
    first = ride.potentials(0)
    kept = [to_numpy(p).copy() for p in first]
    assert library(first.f) == library(problems[0].x), "potentials come back in the caller's library"
    own, name, emitted = float_name(problems[0].x), float_name(first.f), ride.pack.emit([0])
    assert name in (own, "float32", "float64"), "in the caller's dtype, or wider"
    assert list(emitted.widened) == [name != own], "widened says whether they came back wider"
    ride.go(3)
    ride.pack.emit([0, 1])
    bench.same(first, kept, "an emission before and after more cycles and another emission")
    if library(first.f) != "jax":
        scribbled = ride.potentials(1)
        scribbled.f[...] = 7.0
    ride.repack([1, 2])
    bench.same(ride.state(0), bench.alone(problems[1], 5), "a lane whose emission was written to, and alone")
    bench.same(first, kept, "an emission before and after a repack")


@_promise
def _padding_is_invisible(bench: Bench) -> None:
    problems = [*bench.problems(), bench.problem(7), bench.problem(8)]
    ride = bench.open(problems)
    assert ride.pack.width == bench.backend.width_for(5) >= 5, "a pack is as wide as width_for says"
    ride.go(2)
    ride.repack([4, 1, 2])
    assert ride.pack.width == bench.backend.width_for(3) >= 3, "a repacked pack is as wide as width_for says"
    ride.go(2)
    for lane, i in enumerate([4, 1, 2]):
        bench.same(ride.state(lane), bench.alone(problems[i], 4), f"problem {i} in a narrowed pack, and alone")
    ride.repack([])
    ride.repack([], [problems[0]])
    ride.go(1)
    bench.same(ride.state(0), bench.alone(problems[0], 1), "a problem admitted to an empty pack, and alone")


@_promise
def _nan_speaks(bench: Bench) -> None:
    problems = bench.problems()
    ride = bench.open([problems[0], bench.poisoned(), problems[1]])
    progress = ride.pack.advance(3 * ride.stride, [NEVER, 1e-9, NEVER])
    assert math.isnan(progress.stale[1]), f"a poisoned lane reports NaN, not {progress.stale[1]}"
    assert math.isnan(ride.residual(1).worst), "verify of a poisoned lane is NaN"
    assert math.isnan(ride.pack.screen([1])[0]), "the row screen of a poisoned lane is NaN"
    assert all(np.isfinite(to_numpy(p)).all() for p in ride.potentials(1)), "the last finite potentials are emitted"
    for lane, problem in ((0, problems[0]), (2, problems[1])):
        bench.same(ride.state(lane), bench.alone(problem, 3), "a lane beside a poisoned one, and alone")


@_promise
def _a_start_is_where_a_lane_starts(bench: Bench) -> None:
    problem = bench.problem(1, tol=1e-4)
    cold = bench.open([problem])
    for _ in range(2000):
        if not cold.go(1, 5e-5).stale[0] > 5e-5:
            break
    warm = bench.open([replace(problem, init=cold.potentials(0))])
    before, after = cold.residual(0), warm.residual(0)
    slack = 2 * (before.band + after.band) + 1e-5
    assert abs(before.row - after.row) <= slack, (
        f"row residual {before.row} where it was left, {after.row} where it starts"
    )
    assert warm.go(1, 1e-4).stale[0] <= 1e-4, "a lane that starts at the answer is there after one stride"


@_promise
def _every_cost(bench: Bench) -> None:
    problem = bench.problem(1)
    dense = bench.like(np.abs(np.random.default_rng(0).normal(size=bench.shape[:2])))
    kinds: list[Any] = [Cost("sqeuclidean", 0.5), Cost("euclidean"), Cost("cosine", 2.0), dense]
    for cost in kinds:
        points = {} if isinstance(cost, Cost) else {"x": None, "y": None}
        given = validate(replace(problem.as_problem(), cost=cost, init=None, **points), 1e-3)
        try:
            bench.backend.signature(given)
        except ProblemError:
            continue
        ride = bench.open([given])
        ride.go(3)
        row, col = marginal_errors(given, ride.potentials(0))
        said = ride.residual(0)
        assert abs(said.row - row) <= said.band + 1e-12, f"{cost}: row residual {said.row}, truth {row}"
        assert abs(said.col - col) <= said.band + 1e-12, f"{cost}: column residual {said.col}, truth {col}"


@_promise
def _backends_say_how_they_run(bench: Bench) -> None:
    problem = bench.problem(1)
    hash(bench.backend.signature(problem))
    hints = bench.backend.hints(problem)
    assert hints.arithmetic, "hints name precision and representation"
    assert hints.width >= 1, f"hints recommend packs of {hints.width} lanes"
    assert bench.backend.using("none").name == bench.backend.name, "plain Sinkhorn is always offered"
    precise = bench.backend.precise()
    ride = Ride(precise, precise.pack([problem]), 1)
    ride.go(2)
    plan = to_numpy(precise.couple([problem], [ride.potentials(0)]).plan(MAX_PAIRS)[0])
    row = float(np.abs(plan.sum(axis=1) - to_numpy(problem.a)).sum())
    said = ride.residual(0)
    assert abs(said.row - row) <= said.band + 1e-5, f"the coupling's row error is {row}, verify said {said.row}"


@_promise
def _frugal_lanes_are_as_right_as_others(bench: Bench) -> None:
    problem, frugal = bench.problem(1), bench.backend.frugal()
    bench.backend.release()
    assert (frugal.name, frugal.bitwise) == (bench.backend.name, bench.backend.bitwise)
    assert frugal.frugal().hints(problem).arithmetic == frugal.hints(problem).arithmetic, (
        "there is nothing left to save"
    )
    ride = Ride(frugal, frugal.pack([problem]), 1)
    ride.go(3)
    said, (row, col) = ride.residual(0), marginal_errors(problem, ride.potentials(0))
    assert abs(said.row - row) <= said.band + 1e-5, f"row residual {said.row}, truth {row}"
    assert abs(said.col - col) <= said.band + 1e-5, f"column residual {said.col}, truth {col}"


@_promise
def _work_is_counted(bench: Bench) -> None:
    ride = bench.open(bench.problems())
    opened = ride.pack.spent
    assert opened.slots == 0, "packing runs no cycle"
    assert opened.legs >= 3, "packing measures the first leg of every lane"
    ride.go(4)
    ran = ride.pack.spent
    assert ran.slots == (3 + _padding(bench, 3)) * 4 * ride.stride, f"{ran.slots} slots for 3 lanes and 4 strides"
    assert ran.legs - opened.legs >= 2 * 3 * 4 * ride.stride, "a cycle is two legs"
    ride.pack.verify([0, 2])
    verified = ride.pack.spent
    assert verified.slots == ran.slots, "verify runs no cycle"
    assert verified.legs - ran.legs >= 4, "verify is two legs per lane"


@_promise
def _answers_agree_with_the_reference(bench: Bench) -> None:
    truth = ReferenceBackend()
    for seed in (1, 5):
        problem = bench.problem(seed, tol=1e-3)
        ours, theirs = bench.open([problem]), Ride(truth, truth.pack([problem]), 1)
        for _ in range(400):
            if not ours.go(1, 5e-4).stale[0] > 5e-4:
                break
        for _ in range(2000):
            if not theirs.go(1, 1e-6).stale[0] > 1e-6:
                break
        plans = [to_numpy(truth.couple([problem], [ride.potentials(0)]).plan(MAX_PAIRS)[0]) for ride in (ours, theirs)]
        gap = float(np.abs(plans[0] - plans[1]).sum())
        assert gap <= 0.1, f"plans at tol 5e-4 and 1e-6 differ by {gap} in L1"


def _padding(bench: Bench, lanes: int) -> int:
    return bench.backend.width_for(lanes) - lanes


@_promise
def _an_emission_names_its_problem(bench: Bench) -> None:
    problems, late = bench.problems(), bench.problem(7)
    ride = bench.open(problems)
    ride.go(2)
    ride.repack([2, 0], [late])
    ride.go(1)
    for owner, problem in zip(ride.pack.emit([2, 0, 1]).instances, (late, problems[2], problems[0]), strict=True):
        assert owner is problem, "an emission names the very problem whose state it is, after a repack too"
