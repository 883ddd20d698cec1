"""Cycles and time that problems need: plain, with momentum, by default, and OTT-JAX with its own means.

    python benchmarks/depth.py                                    # our arms, generated problems
    python benchmarks/depth.py --data DIR --json depth.json       # and real windows from the .npz files of a folder
    python benchmarks/depth.py --arms plain momentum ott-plain ott-momentum ott-anderson --limit 2 --tols 1e-3

Every problem of `families.py` is solved alone, warm, to each tol. A cycle is one update of each side. Ratios are to the
plain arm. One float64 auditor with direct differences judges everybody. OTT-JAX runs its own iteration in log-sum-exp
mode from zero, on the dense cost, and is stopped at the first iteration at which both marginals pass; its time is that
of as many of its iterations, with its own error every ten. It updates columns first and we rows first, which alone can
change the cycles tenfold, so it is given the transposed problem.

An arm that reaches its limit of cycles enters the sums with that limit; ratios are over the problems that it solved
(where plain did not, they are upper estimates). In float32 a tol below about 1e-5 cannot be verified at these sizes.
Exits with 1 if what one of our arms released misses tol, or if one other than plain does not reach it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from families import GENERATED, REAL, Named, families, shape

import drainsinkhorn as ds
from drainsinkhorn.backends import load
from drainsinkhorn.testing import marginal_errors
from drainsinkhorn.testing.auditor import cost_row

OURS: dict[str, dict[str, Any]] = {
    "plain": {"accelerate": "none", "init": "zero"},
    "momentum": {"accelerate": "momentum", "init": "zero"},
    "default": {},
}
PEERS = ("ott-plain", "ott-momentum", "ott-anderson")
ROOM = 1.05
"""A problem is called slower if it takes this times plain's cycles, and one more."""


@dataclass
class Row:
    """One arm on one problem at one tol."""

    problem: str
    n: int
    m: int
    eps: float
    tol: float
    arm: str
    cycles: int
    seconds: float
    residual: float
    reached: bool
    note: str = ""

    @property
    def family(self) -> str:
        return self.problem.split("/")[0]

    @property
    def missed(self) -> bool:
        """Released as good, and is not."""
        return self.reached and not self.residual <= self.tol


Arm = Callable[[str, ds.Problem[Any], Sequence[float]], Iterable[Row]]


def audited(p: ds.Problem[Any], f: Any, g: Any) -> float:
    with np.errstate(all="ignore"):
        error = max(marginal_errors(p, ds.Potentials(np.asarray(f), np.asarray(g))))
    return error if np.isfinite(error) else float("inf")


# Our arms.


def ours(arm: str, backend: Any, max_depth: int, repeats: int) -> Arm:
    def run(name: str, p: ds.Problem[Any], tols: Sequence[float]) -> Iterable[Row]:
        for tol in tols:
            seconds, results = list[float](), list[Any]()
            for _ in range(repeats):
                begin = time.perf_counter()
                solution = ds.solve([p], tol=tol, backend=backend, max_depth=max_depth, rescue=False, **OURS[arm])
                seconds.append(time.perf_counter() - begin)
                results.append(solution[0])
            r = results[-1]
            residual = float("inf") if r.potentials is None else audited(p, *r.potentials)
            reached = r.status is ds.Status.CONVERGED
            note = r.arithmetic if reached else r.status.name
            yield Row(name, *shape(p), p.eps, tol, arm, r.depth, min(seconds), residual, reached, note)

    return run


# OTT-JAX.


class Ott:
    """Its `Sinkhorn.one_iteration`, stepped from outside so that both marginals decide when to stop."""

    def __init__(self, arm: str, dtype: Any, limit: int) -> None:
        import jax
        from ott.solvers.linear import acceleration, sinkhorn

        jax.config.update("jax_enable_x64", dtype == np.float64)
        means: dict[str, Any] = {
            "ott-momentum": {"momentum": acceleration.Momentum(start=20, value=1.0)},
            "ott-anderson": {"anderson": acceleration.AndersonAcceleration()},
        }.get(arm, {})
        self.arm, self.dtype, self.limit = arm, dtype, limit
        self.solver = sinkhorn.Sinkhorn(
            lse_mode=True, threshold=-1.0, norm_error=1, inner_iterations=10, max_iterations=limit, **means
        )
        self.begin, self.until, self.repeat = jax.jit(self._begin), jax.jit(self._until), jax.jit(self._repeat)

    def _problem(self, cost: Any, a: Any, b: Any, eps: Any) -> Any:
        from ott.geometry import geometry
        from ott.problems.linear import linear_problem

        return linear_problem.LinearProblem(geometry.Geometry(cost_matrix=cost, epsilon=eps), a=a, b=b)

    def _begin(self, given: Any) -> Any:
        import jax.numpy as jnp

        _, a, b, _ = given
        f, g = (jnp.where(w > 0, 0.0, -jnp.inf).astype(w.dtype) for w in (a, b))
        return self.solver.init_state(self._problem(*given), (f, g))

    def _step(self, problem: Any, state: Any, i: Any) -> Any:
        return self.solver.one_iteration(problem, state, i, (i + 1) % 10 == 0)

    def _until(self, given: Any, state: Any, i: Any, tol: Any) -> Any:
        """Steps until both marginals are within tol."""
        import jax
        import jax.numpy as jnp

        _, a, b, _ = given
        problem = self._problem(*given)

        def error(state: Any) -> Any:
            rows, columns = (problem.geom.marginal_from_potentials(state.fu, state.gv, axis=axis) for axis in (1, 0))
            return jnp.maximum(jnp.abs(rows - a).sum(), jnp.abs(columns - b).sum())

        def step(carry: Any) -> Any:
            state, i, _ = carry
            state = self._step(problem, state, i)
            return state, i + 1, error(state)

        def goes_on(carry: Any) -> Any:
            _, i, e = carry
            return (i < self.limit) & (e > tol) & ((i == 0) | jnp.isfinite(e))

        return jax.lax.while_loop(goes_on, step, (state, i, jnp.where(i == 0, jnp.inf, error(state)).astype(a.dtype)))

    def _repeat(self, given: Any, count: Any) -> Any:
        """So many steps, without looking."""
        import jax

        problem = self._problem(*given)
        return jax.lax.fori_loop(0, count, lambda i, state: self._step(problem, state, i), self._begin(given))

    def __call__(self, name: str, p: ds.Problem[Any], tols: Sequence[float]) -> Iterable[Row]:
        import jax

        n, m = shape(p)
        a, b = (np.full(k, 1 / k) if w is None else w / w.sum() for w, k in ((p.a, n), (p.b, m)))
        cost = np.stack([cost_row(p, i) for i in range(n)])
        given = tuple(np.asarray(v, dtype=self.dtype) for v in (cost.T, b, a, p.eps))
        state, i = self.begin(given), np.int32(0)
        jax.block_until_ready(self.repeat(given, np.int32(1)))
        for tol in sorted(tols, reverse=True):
            state, i, residual = self._first_passage(p, given, state, i, tol)
            begin = time.perf_counter()
            jax.block_until_ready(self.repeat(given, i))
            seconds = time.perf_counter() - begin
            yield Row(name, n, m, p.eps, tol, self.arm, int(i), seconds, residual, residual <= tol)

    def _first_passage(self, p: ds.Problem[Any], given: Any, state: Any, i: Any, tol: float) -> tuple[Any, Any, float]:
        """Where the auditor agrees; rounding may make that a little later than its own marginals say."""
        _, b, a, eps = (np.asarray(v, dtype=float) for v in given)
        residual = float("inf")
        for target in tol * np.array([1.0, 0.9, 0.8, 0.5]):
            state, i, _ = self.until(given, state, i, self.dtype(target))
            with np.errstate(all="ignore"):
                f, g = (np.asarray(v, dtype=float) - eps * np.log(w) for v, w in ((state.gv, a), (state.fu, b)))
            residual = audited(p, f, g)
            if residual <= tol or int(i) >= self.limit:
                break
        return state, i, residual


# Tables.


def ratios(rows: list[Row], arm: str, tol: float) -> tuple[Any, Any]:
    """Cycles of an arm and of plain, on the problems that the arm solved (plain itself: on all)."""
    base = {r.problem: r.cycles for r in rows if r.arm == "plain" and r.tol == tol}
    mine = [r for r in rows if r.arm == arm and r.tol == tol and r.problem in base]
    both = [(r.cycles, base[r.problem]) for r in mine if r.reached or arm == "plain"]
    cycles, plain = np.array(both, dtype=float).reshape(-1, 2).T
    return cycles, plain


def summary(rows: list[Row], arm: str, tol: float) -> dict[str, Any]:
    """Sums and ratios of one arm at one tol."""
    mine = [r for r in rows if r.arm == arm and r.tol == tol]
    cycles, plain = ratios(rows, arm, tol)
    told: dict[str, Any] = {
        "problems": len(mine),
        "cycles": sum(r.cycles for r in mine),
        "seconds": sum(r.seconds for r in mine),
        "unreached": sum(not r.reached for r in mine),
        "missed": sum(r.missed for r in mine),
    }
    if len(plain):
        # One more on both sides: problems that need no cycle at all are there too.
        told["geo"] = float(np.exp(np.log((cycles + 1) / (plain + 1)).mean()))
        told["total"] = float(cycles.sum() / max(plain.sum(), 1))
        told["worst"] = float(((cycles + 1) / (plain + 1)).max())
        told["slower"] = int((cycles > ROOM * plain + 1).sum())
    return told


def show(rows: list[Row], arms: Sequence[str], tols: Sequence[float]) -> None:
    for tol in tols:
        print(f"\ntol {tol:g}")
        for arm in arms:
            told = summary(rows, arm, tol)
            line = "  {:<14} {problems:>4} problems {cycles:>9} cycles {seconds:>9.2f} s".format(arm, **told)
            if "geo" in told:
                line += "   geo {geo:.3f}  total {total:.3f}  worst {worst:.2f}  slower {slower}".format(**told)
            print(line + "".join(f"  {key} {told[key]}" for key in ("unreached", "missed") if told[key]))


def by_family(rows: list[Row], arms: Sequence[str], tols: Sequence[float]) -> dict[str, Any]:
    names = dict.fromkeys(r.family for r in rows)
    parts = {name: [r for r in rows if r.family == name] for name in names}
    return {
        name: {f"{tol:g}": {arm: summary(part, arm, tol) for arm in arms} for tol in tols}
        for name, part in parts.items()
    }


def show_families(table: dict[str, Any], arms: Sequence[str], tols: Sequence[float]) -> None:
    """Sums of cycles."""
    for tol in tols:
        print(f"\ncycles at {tol:g}  " + "".join(f"{arm:>14}" for arm in arms))
        for name, told in table.items():
            print(f"  {name:<14}" + "".join(f"{told[f'{tol:g}'][arm]['cycles']:>14}" for arm in arms))


def spread(problems: list[Named], limit: int | None) -> list[Named]:
    """At most so many of each family, evenly taken."""
    if limit is None:
        return problems
    groups: dict[str, list[Named]] = {}
    for named in problems:
        groups.setdefault(named[0].split("/")[0], []).append(named)
    return [
        group[i]
        for group in groups.values()
        for i in np.unique(np.linspace(0, len(group) - 1, min(limit, len(group))).astype(int))
    ]


def cast(p: ds.Problem[Any], dtype: Any) -> ds.Problem[Any]:
    """The same problem, points in that precision."""
    return replace(p, x=np.asarray(p.x, dtype=dtype), y=np.asarray(p.y, dtype=dtype))


def arms_from(options: argparse.Namespace) -> dict[str, Arm]:
    dtype = np.float32 if options.precision == "float32" else np.float64
    backend: Any = load(options.backend)
    if options.precision != "auto":
        backend = replace(backend, precision=options.precision)
    made: dict[str, Arm] = {}
    for arm in options.arms:
        peer = arm in PEERS
        made[arm] = (
            Ott(arm, dtype, options.ott_cycles) if peer else ours(arm, backend, options.max_depth, options.repeats)
        )
    return made


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder with the .npz files of the real windows")
    parser.add_argument("--families", nargs="*", default=None, choices=[*GENERATED, *REAL])
    parser.add_argument("--tols", nargs="*", type=float, default=[1e-2, 1e-3, 1e-4, 1e-6])
    parser.add_argument("--arms", nargs="*", default=list(OURS), choices=[*OURS, *PEERS])
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "float64"])
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--limit", type=int, help="at most so many problems of a family")
    parser.add_argument("--max-depth", type=int, default=30_000)
    parser.add_argument("--ott-cycles", type=int, default=3_000, help="limit of the OTT-JAX arms")
    parser.add_argument("--repeats", type=int, default=1, help="times are the least of so many")
    parser.add_argument("--json", type=Path, help="where to write every row")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    arms = arms_from(options)
    problems = spread(families(options.seed, options.data, options.families), options.limit)
    if options.precision == "float32":
        problems = [(name, cast(p, np.float32)) for name, p in problems]
    for arm in arms.values():
        # Compiles.
        list(arm(*problems[-1], options.tols))
    rows: list[Row] = []
    for name, p in problems:
        for arm in arms.values():
            rows += arm(name, p, options.tols)
    table = by_family(rows, options.arms, options.tols)
    show_families(table, options.arms, options.tols)
    show(rows, options.arms, options.tols)
    bad = [r for r in rows if r.arm in OURS and (r.missed or (not r.reached and r.arm != "plain"))]
    for r in bad:
        print(f"FAILED {r.problem} at {r.tol:g}, {r.arm}: residual {r.residual:.3g} after {r.cycles} cycles, {r.note}")
    if options.json:
        machine = {"python": sys.version.split()[0], "platform": platform.platform(), "cores": os.cpu_count()}
        report = {"command": " ".join(["python", *sys.argv]), "machine": machine, "families": table}
        total = {f"{tol:g}": {arm: summary(rows, arm, tol) for arm in arms} for tol in options.tols}
        report |= {"total": total, "rows": [asdict(r) for r in rows]}
        options.json.write_text(json.dumps(report, indent=1))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
