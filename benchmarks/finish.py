"""Does another method finish deep lanes in fewer passes than momentum alone?

    python benchmarks/finish.py                         # generated problems
    python benchmarks/finish.py --data DIR --json OUT   # and real windows from the .npz files of a folder

Takes the problems of `families.py` that plain Sinkhorn does not bring to 1e-6 within 500 cycles, and counts passes
(sweeps over the n * m pairs; a Hessian product is two) from the zero start to a certified state: momentum alone, and
momentum down to a residual tau0 followed by truncated Newton-CG or by Anderson mixing, both guarded. Momentum carries f
only and g is always plain, so columns are exact at every row pass. Everything is NumPy in float64, and an auditor that
shares no code judges what is released.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from families import families, shape

import drainsinkhorn as ds
from drainsinkhorn.testing.auditor import cost_row, marginal_errors

STEP, OFFSET, FAST, GROW = 1.25, 2, 0.3, 4.0
"""Momentum: step length, age offset, contraction below which a lane stays plain, growth that is called bad."""
TOLS = (1e-6, 1e-8)
STARTS = (1e-2, 1e-3, 1e-4)
DEEP = 500
MEMORY = 5
REACH = 30.0
"""How far potentials may move from where the kernel was absorbed, in units of eps."""
FLOOR = 1e-6
"""Least share of a row's mass that its preconditioner may have."""


class Lane:
    """One problem in units of eps, `P = a b exp(u + v - M)`; counts its passes."""

    def __init__(self, problem: ds.Problem[Any]) -> None:
        n, m = shape(problem)
        self.problem = problem
        self.M = np.stack([cost_row(problem, i) for i in range(n)]) / problem.eps
        self.a, self.b = (np.full(k, 1 / k) if w is None else w / w.sum() for w, k in ((problem.a, n), (problem.b, m)))
        self.passes = 0
        self._base = (np.full(n, np.inf), np.full(m, np.inf))
        self._K = np.zeros((0, 0))

    def rows(self, u: Any, v: Any) -> Any:
        """Log of row marginal over a: one pass."""
        self.passes += 1
        return self._log_ratios(u, v, self.b, by_row=True)

    def columns(self, u: Any, v: Any) -> Any:
        """Log of column marginal over b: one pass."""
        self.passes += 1
        return self._log_ratios(u, v, self.a, by_row=False)

    def plan(self, u: Any, v: Any) -> Any:
        """The plan itself, for Hessian products; what they cost is counted where they are made."""
        return self.a[:, None] * self.b * np.exp(u[:, None] + v - self.M)

    def _log_ratios(self, u: Any, v: Any, weights: Any, *, by_row: bool) -> Any:
        U, V = self._base
        with np.errstate(all="ignore"):
            if not max(np.abs(u - U).max(), np.abs(v - V).max()) <= REACH:
                self._base = U, V = u.copy(), v.copy()
                self._K = np.exp(u[:, None] + v - self.M)
            sums = self._K @ (weights * np.exp(v - V)) if by_row else (weights * np.exp(u - U)) @ self._K
            if sums.min() > 1e-200 and sums.max() < 1e200:
                return np.log(sums) + (u - U if by_row else v - V)
            scores = u[:, None] + v - self.M + np.log(weights if by_row else weights[:, None])
            axis = 1 if by_row else 0
            top = scores.max(axis)
            return top + np.log(np.exp(scores - np.expand_dims(top, axis)).sum(axis))


@dataclass
class State:
    """Momentum on f of a lane, between cycles: columns exact, rows measured (L, R)."""

    u: Any
    v: Any
    previous: Any
    L: Any = None
    R: float = np.inf
    age: int = 0
    best: float = np.inf
    column: float = np.inf
    hold: int = 0
    strikes: int = 0
    rows_exact: bool = True
    pending: Any = None


@dataclass
class Budget:
    """Passes after which a run is called a failure."""

    lane: Lane
    limit: float = np.inf

    @property
    def spent(self) -> bool:
        return self.lane.passes > self.limit


def start(lane: Lane) -> State:
    u, v = np.zeros(len(lane.a)), np.zeros(len(lane.b))
    u = u - lane.rows(u, v)
    return State(u, v, u.copy())


def measured(lane: Lane, s: State) -> None:
    """Row pass."""
    s.L = lane.rows(s.u, s.v)
    s.R = float(lane.a @ np.abs(np.expm1(s.L)))


def decide(lane: Lane, s: State, *, plain: bool = False) -> None:
    """Update f from the rows just measured."""
    opposed = -(lane.a @ (s.L * (s.u - s.previous))) < 0
    bad = s.age > 0 and not s.best * GROW >= s.R
    s.best = min(s.best, s.R)
    if bad:
        s.hold, s.strikes = 2**s.strikes, min(s.strikes + 1, 10)
    fast = s.rows_exact and FAST * s.column**2 > s.R**2
    if plain or bad or s.hold or fast or (s.age and opposed):
        s.u = s.u - s.L
        s.previous, s.age, s.rows_exact = s.u, 0, True
        s.hold = s.hold if bad else max(s.hold - 1, 0)
        return
    s.age += 1
    x = s.u - STEP * s.L
    s.u = x + s.age / (s.age + OFFSET) * (x - s.previous)
    s.previous, s.rows_exact = x, False


def momentum(lane: Lane, s: State, tol: float, budget: Budget, *, plain: bool = False) -> bool:
    """Run until certified; may be called again with a smaller tol."""
    while not budget.spent:
        if s.pending is None:
            if tol >= s.R:
                return True
            if s.L is not None:
                decide(lane, s, plain=plain)
            s.pending = lane.columns(s.u, s.v)
            if s.rows_exact:
                s.column = float(lane.b @ np.abs(np.expm1(s.pending)))
        if s.rows_exact and s.column <= tol:
            return True
        s.v, s.pending = s.v - s.pending, None
        measured(lane, s)
    return False


def settled(lane: Lane, s: State) -> None:
    """To the row pass of the running cycle, where the finishes begin."""
    if s.pending is not None:
        s.v, s.pending = s.v - s.pending, None
        measured(lane, s)


def moved(lane: Lane, s: State, u: Any) -> State:
    """A fresh state at u with columns made exact: one pass, rows not measured yet."""
    return State(u, s.v - lane.columns(u, s.v), u, best=s.best)


# Newton-CG on the semi-dual: gradient a (1 - r), Hessian diag(a r) - P diag(1/b) P'.


def conjugate_gradients(lane: Lane, s: State, forcing: float, diagonal: bool, budget: Budget) -> tuple[Any, float]:
    """A direction whose linear residual is at most `forcing` times the gradient in L1, and that residual."""
    P = lane.plan(s.u, s.v)
    mass = lane.a * np.exp(s.L)
    # The diagonal comes out of the row pass that measured L.
    weight = mass - (P * P) @ (1 / lane.b) if diagonal else mass
    weight = np.maximum(weight, FLOOR * mass)
    residual = -lane.a * np.expm1(s.L)
    d = np.zeros_like(residual)
    z = residual / weight
    p, rz = z.copy(), residual @ z
    for _ in range(min(len(d), 200)):
        Hp = mass * p - P @ ((p @ P) / lane.b)
        lane.passes += 2
        curvature = p @ Hp
        if not curvature > 0 or budget.spent:
            break
        d = d + rz / curvature * p
        residual = residual - rz / curvature * Hp
        if np.abs(residual).sum() <= forcing * s.R:
            break
        z = residual / weight
        rz, old = residual @ z, rz
        p = z + rz / old * p
    return d, float(np.abs(residual).sum())


def value(lane: Lane, s: State) -> float:
    return float(lane.a @ s.u + lane.b @ s.v)


def searched(lane: Lane, s: State, d: Any) -> State | None:
    """The first of four halvings that gains; a trial is one pass, two once its value is good."""
    gain = float(-lane.a * np.expm1(s.L) @ d)
    before = value(lane, s)
    visible = gain > 1e-10 * max(1.0, abs(before))
    for t in (1.0, 0.5, 0.25, 0.125):
        new = moved(lane, s, s.u + t * d)
        if visible and not value(lane, new) >= before + 1e-4 * t * gain:
            continue
        measured(lane, new)
        if np.isfinite(new.R) and (visible or new.R < s.R):
            return new
    return None


def newton(forcing: str, *, diagonal: bool) -> Finish:
    """Newton steps; where one gains nothing, momentum takes over until the residual has halved."""

    def run(lane: Lane, s: State, tol: float, budget: Budget) -> State:
        eta = START
        while tol < s.R and not budget.spent:
            d, left = conjugate_gradients(lane, s, max(eta, 0.5 * tol / s.R), diagonal, budget)
            new = searched(lane, s, d)
            if new is not None:
                eta = FORCING[forcing](new.R, abs(new.R - left) / s.R)
                s = new
                continue
            eta = START
            s = State(s.u, s.v, s.u, s.L, s.R, best=s.R)
            momentum(lane, s, max(tol, s.R / 2), budget)
            if s.pending is not None and s.column <= tol:
                return s
            settled(lane, s)
        return s

    return run


START = 0.25
FORCING: dict[str, Callable[[float, float], float]] = {
    "loose": lambda _, __: 0.5,
    "tenth": lambda _, __: 0.1,
    "root": lambda R, _: min(0.25, R**0.5),
    "agreement": lambda _, gap: min(0.5, max(0.01, gap)),
}
"""How far the linear system is solved: from the new residual, and from how far it was from the linear prediction."""


# Anderson mixing of the map f -> f - log r, weighted by a.


def mixed(lane: Lane, points: list[Any], steps: list[Any]) -> Any:
    """The mixture of the last points whose step is least."""
    u, L = points[-1], steps[-1]
    if len(points) == 1:
        return u - L
    du, dL = (np.array(kept)[1:] - np.array(kept)[:-1] for kept in (points, steps))
    gram = (dL * lane.a) @ dL.T
    gram = gram + 1e-10 * np.trace(gram) * np.eye(len(gram))
    gamma = np.linalg.solve(gram, (dL * lane.a) @ L)
    return u - L - gamma @ (du - dL)


def anderson(lane: Lane, s: State, tol: float, budget: Budget) -> State:
    """Growth beyond twice the best clears the memory and goes back to the best."""
    points, steps, best = [s.u], [s.L], s
    while tol < s.R and not budget.spent:
        s = moved(lane, s, mixed(lane, points, steps))
        measured(lane, s)
        if not s.R <= 2 * best.R:
            s, points, steps = best, [], []
        best = s if s.R <= best.R else best
        points, steps = [*points, s.u][-MEMORY - 1 :], [*steps, s.L][-MEMORY - 1 :]
    return s


# The study.

Finish = Callable[[Lane, State, float, Budget], State]


def finishes(every: bool) -> dict[str, Finish]:
    """By name; `every` adds the variants that were tried and left."""
    named: dict[str, Finish] = {
        "newton": newton("agreement", diagonal=False),
        "newton-diagonal": newton("agreement", diagonal=True),
        "anderson": anderson,
    }
    if every:
        named |= {f"newton-{forcing}": newton(forcing, diagonal=False) for forcing in ("loose", "tenth", "root")}
        named |= {f"newton-diagonal-{name}": newton(name, diagonal=True) for name in ("loose", "tenth", "root")}
    return named


@dataclass
class Outcome:
    """Passes of every arm on one problem at one tol; 0 is a failure."""

    name: str
    tol: float
    passes: dict[str, int] = field(default_factory=dict[str, int])
    residual: dict[str, float] = field(default_factory=dict[str, float])


def audited(lane: Lane, s: State) -> float:
    eps = lane.problem.eps
    return max(marginal_errors(lane.problem, ds.Potentials(eps * s.u, eps * s.v)))


def is_deep(problem: ds.Problem[Any]) -> bool:
    """Plain Sinkhorn needs more than 500 cycles for 1e-6."""
    lane = Lane(problem)
    return not momentum(lane, start(lane), TOLS[0], Budget(lane, 2 * DEEP), plain=True)


def study(name: str, problem: ds.Problem[Any], arms: dict[str, Finish]) -> list[Outcome]:
    """Every arm on one problem; the momentum part of all is one run."""
    lane = Lane(problem)
    s = start(lane)
    at: dict[float, tuple[State, int]] = {}
    for tol in (*STARTS, *TOLS):
        momentum(lane, s, tol, Budget(lane, 1e5))
        at[tol] = copy.copy(s), lane.passes
    outcomes: list[Outcome] = []
    for tol in TOLS:
        state, alone = at[tol]
        out = Outcome(name, tol, {"momentum": alone}, {"momentum": audited(lane, state)})
        for (arm, finish), tau in ((pair, tau) for pair in arms.items() for tau in STARTS):
            begin, lane.passes = copy.copy(at[tau][0]), at[tau][1]
            settled(lane, begin)
            end = finish(lane, begin, tol, Budget(lane, 2 * alone + 200))
            label = f"{arm} from {tau:g}"
            out.residual[label] = audited(lane, end)
            out.passes[label] = lane.passes if out.residual[label] <= 1.0001 * tol else 0
        outcomes.append(out)
    return outcomes


def summary(outcomes: list[Outcome]) -> dict[str, dict[str, dict[str, float]]]:
    """Per tol and arm, against momentum alone; a failure counts the passes it was allowed."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for tol in TOLS:
        rows = [o for o in outcomes if o.tol == tol]
        alone = np.array([o.passes["momentum"] for o in rows], dtype=float)
        table[f"{tol:g}"] = {}
        for arm in rows[0].passes:
            passes = np.array([o.passes[arm] or 2 * o.passes["momentum"] + 200 for o in rows], dtype=float)
            ratio = passes / alone
            table[f"{tol:g}"][arm] = {
                "geo": float(np.exp(np.log(ratio).mean())),
                "total": float(passes.sum() / alone.sum()),
                "worst": float(ratio.max()),
                "slower": int((ratio > 1.05).sum()),
                "fails": sum(not o.passes[arm] for o in rows),
                "passes": int(passes.sum()),
            }
    return table


def show(table: dict[str, dict[str, dict[str, float]]]) -> None:
    for tol, arms in table.items():
        print(f"\ntol {tol:<32} geo   total  worst  >5 %  fails   passes")
        for arm, row in arms.items():
            shape = "  {:<34} {geo:.3f}  {total:.3f}  {worst:5.2f}  {slower:>4}  {fails:>5}  {passes:>7}"
            print(shape.format(arm, **row))


def adopted(table: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Arms that save a quarter at the first tol, are never 5 % slower, and never fail."""
    rows = table[f"{TOLS[0]:g}"]
    return [arm for arm, r in rows.items() if r["total"] <= 0.75 and r["worst"] <= 1.05 and not r["fails"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1], help="their problems are pooled")
    parser.add_argument("--data", type=Path, help="folder with the .npz files of the real windows")
    parser.add_argument("--families", nargs="*", default=None, help="only these")
    parser.add_argument("--limit", type=int, default=None, help="at most so many deep problems")
    parser.add_argument("--every", action="store_true", help="also the variants of Newton-CG that were left")
    parser.add_argument("--json", type=Path, help="where to write every count")
    options = parser.parse_args()
    made = [named for seed in options.seeds for named in families(seed, options.data, options.families)]
    deep = [named for named in made if is_deep(named[1])][: options.limit]
    print(f"{len(deep)} problems need more than {DEEP} plain cycles for {TOLS[0]:g}", flush=True)
    outcomes: list[Outcome] = []
    for name, problem in deep:
        outcomes += study(name, problem, finishes(options.every))
        print(f"  {name:<44} {outcomes[-2].passes['momentum']:>6} {outcomes[-1].passes['momentum']:>6}", flush=True)
    if not outcomes:
        sys.exit("no deep problem among these")
    table = summary(outcomes)
    show(table)
    print(f"\nto be adopted: {', '.join(adopted(table)) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps({"table": table, "outcomes": [vars(o) for o in outcomes]}, indent=1))


if __name__ == "__main__":
    main()
