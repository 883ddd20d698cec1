"""The pack's promises as a suite that anyone can run on a new backend.

Every promise is a function of a `Bench`; `check_backend` runs them all, and PROMISES lets pytest run them one by one.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from drainsinkhorn.backends.reference import ReferenceBackend
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.cost import Cost
from drainsinkhorn.model.errors import ContractError, ProblemError
from drainsinkhorn.model.result import MAX_PAIRS, Residual
from drainsinkhorn.numerics.arrays import float_name, library, to_numpy
from drainsinkhorn.run.validate import validate
from drainsinkhorn.testing.auditor import marginal_errors
from drainsinkhorn.testing.bench import ALWAYS, NEVER, SOFT_PRICES, Bench, DrivenPack

Promise = Callable[[Bench], None]
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


def _check_residual(stated: Residual, truth: tuple[float, float], slack: float, where: str = "") -> None:
    """Compare a residual with the true errors of rows and columns."""
    for side, value, true in zip(("row", "column"), (stated.row, stated.col), truth, strict=True):
        assert abs(value - true) <= slack, f"{where}{side} residual {value}, truth {true}, band {stated.band}"


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
        driven = bench.open([problems[i] for i in order])
        driven.go(5)
        for lane, i in enumerate(order):
            bench.same(driven.state(lane), alone[i], f"problem {i} alone and in lane {lane} of three")


@_promise
def _order_after_repack(bench: Bench) -> None:
    problems, fresh = bench.problems(), bench.problem(9)
    driven = bench.open(problems)
    driven.go(2)
    driven.repack([2, 0], [fresh])
    progress = driven.go(3)
    strides = driven.strides(progress)
    assert strides == [5, 5, 3], f"depths in strides after keeping [2, 0] and admitting one: {strides}, not [5, 5, 3]"
    for lane, (problem, count) in enumerate([(problems[2], 5), (problems[0], 5), (fresh, 3)]):
        bench.same(driven.state(lane), bench.alone(problem, count), f"lane {lane} after a repack and the problem alone")


@_promise
def _looking_changes_nothing(bench: Bench) -> None:
    problems = bench.problems()
    read, unread = bench.open(problems), bench.open(problems)
    for _ in range(4):
        read.go(1)
        unread.go(1)
        read.pack.screen([0, 1, 2])
        read.pack.verify([2, 0])
        read.pack.verify([1], exact=True)
        read.pack.emit([1])
    for lane in range(3):
        bench.same(read.state(lane), unread.state(lane), f"lane {lane} with and without screen, verify and emit")


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
    driven = bench.open(problems)
    stops = [ALWAYS, NEVER, NEVER]
    progress = driven.pack.advance(4 * driven.stride, stops)
    assert driven.strides(progress) == [1, 4, 4], "a lane below its stop is held after one stride"
    bench.same(driven.state(0), bench.alone(problems[0], 1), "a held lane and its state when it was held")
    slots = (bench.backend.width_for(3) + 3 * bench.backend.width_for(2)) * driven.stride
    assert driven.pack.spent.slots == slots, "a held lane costs no slot: the kernel is as wide as what moves"


@_promise
def _lockstep_ends_with_the_first_hold(bench: Bench) -> None:
    problems = bench.problems()
    driven = bench.open(problems)
    driven.pack.freeze([2])
    progress = driven.pack.advance(4 * driven.stride, [NEVER, ALWAYS, NEVER], lockstep=True)
    assert driven.strides(progress) == [1, 1, 0], "in lockstep no lane runs while another is held"
    assert driven.pack.spent.slots == bench.backend.width_for(3) * driven.stride, (
        "in lockstep every lane costs every slot"
    )
    progress = driven.pack.advance(4 * driven.stride, [NEVER] * 3, lockstep=True)
    assert driven.strides(progress) == [5, 5, 0], "in lockstep lanes that are not held run on"
    for lane in (0, 1):
        bench.same(driven.state(lane), bench.alone(problems[lane], 5), f"lane {lane} in lockstep, and alone")


@_promise
def _a_rejected_lane_moves(bench: Bench) -> None:
    problems = bench.problems()
    driven = bench.open(problems)
    for k in range(1, 4):
        progress = driven.go(5, ALWAYS)
        assert driven.strides(progress) == [k] * 3, "every call moves a held lane by one stride"
    for lane, problem in enumerate(problems):
        bench.same(
            driven.state(lane), bench.alone(problem, 3), f"lane {lane} held three times, and run for three strides"
        )


@_promise
def _first_passage_does_not_depend_on_the_calls(bench: Bench) -> None:
    problems = bench.problems()
    outcomes: list[list[Any]] = []
    for span in (1, 3, 50):
        driven, passed = bench.open(problems), dict[int, Any]()
        live = list(range(3))
        while live:
            progress = driven.go(span, 1e-2)
            for lane in [lane for lane in range(len(live)) if not progress.stale[lane] > 1e-2]:
                passed[live[lane]] = [progress.depths[lane], *driven.state(lane)]
            keep = [lane for lane in range(len(live)) if live[lane] not in passed]
            live = [live[lane] for lane in keep]
            if live:
                driven.repack(keep)
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
    driven = bench.open(problems)
    driven.go(2)
    before, spent = driven.state(1), driven.pack.spent.slots
    driven.pack.freeze([1])
    progress = driven.go(3)
    bench.same(driven.state(1), before, "a frozen lane before and after")
    assert progress.depths[1] == 2 * driven.stride, "a frozen lane's depth stands still"
    executed = bench.backend.width_for(3) * 3 * driven.stride
    assert driven.pack.spent.slots - spent == executed, "a frozen lane is executed, so it costs slots"
    for lane in (0, 2):
        bench.same(driven.state(lane), bench.alone(problems[lane], 5), f"lane {lane} beside a frozen lane, and alone")


@_promise
def _verify_tells_the_truth(bench: Bench) -> None:
    problems = bench.problems()
    driven = bench.open(problems)
    for _ in range(3):
        for lane, problem in enumerate(problems):
            row, col = marginal_errors(problem, driven.potentials(lane))
            for exact in (False, True):
                stated = driven.residual(lane, exact=exact)
                # A plan far from convergence holds 1 + row of mass, and the band is relative to it.
                _check_residual(stated, (row, col), (stated.band + 1e-12) * (1 + row + col))
        driven.go(2)


@_promise
def _the_screen_is_outward(bench: Bench) -> None:
    problems = bench.problems()
    driven = bench.open(problems)
    for _ in range(3):
        progress = driven.go(1)
        separate = driven.pack.screen([0, 1, 2])
        for lane, problem in enumerate(problems):
            row, col = marginal_errors(problem, driven.potentials(lane))
            # Emission rounds to the caller's dtype; the screen sees the state before.
            f, g = (to_numpy(p) for p in driven.potentials(lane))
            rounding = float(np.finfo(f.dtype).eps * (np.abs(f).max() + np.abs(g).max()) / problem.eps)
            slack = 4 * driven.residual(lane).band + (1 + row) * rounding
            for value in (progress.stale[lane], separate[lane]):
                assert row - slack <= value <= row + slack, f"screen {value}, truth {row}"
                if f.dtype == np.float64:
                    assert value >= row, f"screen {value} is below the truth {row}: it leaves out its rounding"
            assert col <= slack, f"columns are current after a cycle, but their error is {col}"


@_promise
def _emit_copies(bench: Bench) -> None:
    problems = bench.problems()
    driven = bench.open(problems)
    driven.go(2)
    first = driven.potentials(0)
    copies = [to_numpy(p).copy() for p in first]
    assert library(first.f) == library(problems[0].x), "potentials come back in the caller's library"
    own, name, emitted = float_name(problems[0].x), float_name(first.f), driven.pack.emit([0])
    assert name in (own, "float32", "float64"), "in the caller's dtype, or wider"
    assert list(emitted.widened) == [name != own], "widened says whether they came back wider"
    driven.go(3)
    driven.pack.emit([0, 1])
    bench.same(first, copies, "an emission before and after more cycles and another emission")
    if library(first.f) != "jax":
        scribbled = driven.potentials(1)
        scribbled.f[...] = 7.0
    driven.repack([1, 2])
    bench.same(driven.state(0), bench.alone(problems[1], 5), "a lane whose emission was written to, and alone")
    bench.same(first, copies, "an emission before and after a repack")


@_promise
def _padding_is_invisible(bench: Bench) -> None:
    problems = [*bench.problems(), bench.problem(7), bench.problem(8)]
    driven = bench.open(problems)
    assert driven.pack.width == bench.backend.width_for(5) >= 5, "a pack is as wide as width_for says"
    driven.go(2)
    driven.repack([4, 1, 2])
    assert driven.pack.width == bench.backend.width_for(3) >= 3, "a repacked pack is as wide as width_for says"
    driven.go(2)
    for lane, i in enumerate([4, 1, 2]):
        bench.same(driven.state(lane), bench.alone(problems[i], 4), f"problem {i} in a narrowed pack, and alone")
    driven.repack([])
    driven.repack([], [problems[0]])
    driven.go(1)
    bench.same(driven.state(0), bench.alone(problems[0], 1), "a problem admitted to an empty pack, and alone")


@_promise
def _nan_speaks(bench: Bench) -> None:
    problems = bench.problems()
    driven = bench.open([problems[0], bench.overflowing_problem(), problems[1]])
    progress = driven.pack.advance(3 * driven.stride, [NEVER, 1e-9, NEVER])
    assert math.isnan(progress.stale[1]), f"a poisoned lane reports NaN, not {progress.stale[1]}"
    assert math.isnan(driven.residual(1).worst), "verify of a poisoned lane is NaN"
    assert math.isnan(driven.pack.screen([1])[0]), "the row screen of a poisoned lane is NaN"
    assert all(np.isfinite(to_numpy(p)).all() for p in driven.potentials(1)), "the last finite potentials are emitted"
    for lane, problem in ((0, problems[0]), (2, problems[1])):
        bench.same(driven.state(lane), bench.alone(problem, 3), "a lane beside a poisoned one, and alone")


@_promise
def _a_start_is_where_a_lane_starts(bench: Bench) -> None:
    problem = bench.problem(1, tol=1e-4)
    cold = bench.open([problem])
    cold.reach(5e-5, 2000)
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
    kinds += [Cost("dot"), Cost("negdot", 2.0)]
    for cost in kinds:
        points = {} if isinstance(cost, Cost) else {"x": None, "y": None}
        instance = validate(replace(problem.as_problem(), cost=cost, init=None, **points), 1e-3)
        try:
            bench.backend.signature(instance)
        except ProblemError:
            continue
        driven = bench.open([instance])
        driven.go(3)
        stated = driven.residual(0)
        _check_residual(stated, marginal_errors(instance, driven.potentials(0)), stated.band + 1e-12, f"{cost}: ")


@_promise
def _backends_say_how_they_run(bench: Bench) -> None:
    problem = bench.problem(1)
    hash(bench.backend.signature(problem))
    hints = bench.backend.hints(problem)
    assert hints.arithmetic, "hints name precision and representation"
    assert hints.width >= 1, f"hints recommend packs of {hints.width} lanes"
    assert bench.backend.using("none").name == bench.backend.name, "plain Sinkhorn is always offered"
    precise = bench.backend.precise()
    driven = DrivenPack(precise, precise.pack([problem]), 1)
    driven.go(2)
    plan = to_numpy(precise.couple([problem], [driven.potentials(0)]).plan(MAX_PAIRS)[0])
    row = float(np.abs(plan.sum(axis=1) - to_numpy(problem.a)).sum())
    stated = driven.residual(0)
    assert abs(stated.row - row) <= stated.band + 1e-5, f"the coupling's row error is {row}, verify's {stated.row}"


@_promise
def _frugal_lanes_are_as_right_as_others(bench: Bench) -> None:
    problem, frugal = bench.problem(1), bench.backend.frugal()
    bench.backend.release()
    assert (frugal.name, frugal.bitwise) == (bench.backend.name, bench.backend.bitwise)
    assert frugal.frugal().hints(problem).arithmetic == frugal.hints(problem).arithmetic, (
        "there is nothing left to save"
    )
    driven = DrivenPack(frugal, frugal.pack([problem]), 1)
    driven.go(3)
    stated = driven.residual(0)
    _check_residual(stated, marginal_errors(problem, driven.potentials(0)), stated.band + 1e-5)


@_promise
def _work_is_counted(bench: Bench) -> None:
    driven = bench.open(bench.problems())
    opened = driven.pack.spent
    assert opened.slots == 0, "packing runs no cycle"
    assert opened.legs >= 3, "packing measures the first leg of every lane"
    driven.go(4)
    ran = driven.pack.spent
    assert ran.slots == bench.backend.width_for(3) * 4 * driven.stride, f"{ran.slots} slots for 3 lanes and 4 strides"
    assert ran.legs - opened.legs >= 2 * 3 * 4 * driven.stride, "a cycle is two legs"
    driven.pack.verify([0, 2])
    verified = driven.pack.spent
    assert verified.slots == ran.slots, "verify runs no cycle"
    assert verified.legs - ran.legs >= 4, "verify is two legs per lane"


@_promise
def _answers_agree_with_the_reference(bench: Bench) -> None:
    truth = ReferenceBackend()
    for seed in (1, 5):
        problem = bench.problem(seed, tol=1e-3)
        ours, theirs = bench.open([problem]), DrivenPack(truth, truth.pack([problem]), 1)
        ours.reach(5e-4, 400)
        theirs.reach(1e-6, 2000)
        plans = [
            to_numpy(truth.couple([problem], [driven.potentials(0)]).plan(MAX_PAIRS)[0]) for driven in (ours, theirs)
        ]
        gap = float(np.abs(plans[0] - plans[1]).sum())
        assert gap <= 0.1, f"plans at tol 5e-4 and 1e-6 differ by {gap} in L1"


@_promise
def _soft_lanes_share_packs_with_hard_ones(bench: Bench) -> None:
    problems = [
        bench.problem(1),
        *map(bench.soften, (bench.problem(1), bench.problem(2), bench.problem(3)), SOFT_PRICES),
    ]
    if not bench.backend.soft_marginals:
        return
    shared = bench.backend.signature(problems[0])
    problems = [problem for problem in problems if bench.backend.signature(problem) == shared]
    driven = bench.open(problems)
    driven.go(3)
    for lane, problem in enumerate(problems):
        stated = driven.residual(lane)
        _check_residual(stated, marginal_errors(problem, driven.potentials(lane)), stated.band + 1e-5)
        bench.same(driven.state(lane), bench.alone(problem, 3), f"lane {lane} of a pack with soft lanes, and alone,")


@_promise
def _an_emission_names_its_problem(bench: Bench) -> None:
    problems, late = bench.problems(), bench.problem(7)
    driven = bench.open(problems)
    driven.go(2)
    driven.repack([2, 0], [late])
    driven.go(1)
    for owner, problem in zip(driven.pack.emit([2, 0, 1]).instances, (late, problems[2], problems[0]), strict=True):
        assert owner is problem, "an emission names the very problem whose state it is, after a repack too"
