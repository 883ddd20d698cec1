"""What `same_bits.py` does with the library beside solving drawn problems: one function for each feature.

Every function is given a Run and returns what must be equal in both states, in any nesting of lists, tuples and dicts.
Only the public surface of the library is used.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bit_problems import AUDITS, Draw, Scope, as_array

import drainsinkhorn as ds


@dataclass(slots=True, kw_only=True)
class Run:
    """What a case is given.

    Attributes:
        backend: Name of the backend.
        draw: Where its random numbers come from.
        scope: What its backend can take.
        folder: An empty folder for files.
        events: What its observer has seen.
        options: Backend object (None: by name), acceleration and observer, as keywords of `solve`.
    """

    backend: str
    draw: Draw
    scope: Scope
    folder: Path
    events: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def clouds(self, count: int, n: int = 12, m: int = 16, d: int = 3) -> tuple[Any, Any]:
        """Stacked clouds (count, n, d) and (count, m, d) in float32; sizes are as small as the backend wants them."""
        if self.backend == "ott":
            n, m = 16, 16
        rng = self.draw.rng
        x, y = (rng.normal(size=(count, size, d)).astype(np.float32) for size in (n, m))
        return x, y

    def few(self, count: int) -> int:
        """The count, or as many problems as the backend can solve many times."""
        return min(count, self.scope.few)

    def problems(self, count: int = 6, **columns: Any) -> list[ds.Problem[Any]]:
        """Ragged problems of growing eps."""
        x, y = self.clouds(count)
        cut = 0 if self.backend == "ott" else 1
        return [
            ds.Problem(**({"x": x[k][cut * (k % 5) :], "y": y[k], "eps": self.scope.eps + 0.2 * k} | columns))
            for k in range(count)
        ]


# Forms of input.


def stacked(run: Run) -> Any:
    x, y = run.clouds(run.few(7))
    return (
        ds.solve(x, y, eps=run.scope.eps, **run.options),
        ds.solve(x.astype("float64"), y, eps=np.linspace(run.scope.eps, 4, len(x)), **run.options),
    )


def shared_points(run: Run) -> Any:
    x, y = run.clouds(1)
    a = run.draw.rng.dirichlet(np.ones(x.shape[1]), size=run.few(5))
    return (
        ds.solve(x[0], y[0], a=a, eps=run.scope.eps, **run.options),
        ds.solve(x[0], y[0], eps=[run.scope.eps, 0.9, 1.2], **run.options),
        ds.solve(x[0], np.concatenate([y, y + 1]), eps=run.scope.eps, init="gaussian", **run.options),
    )


def ragged_lists(run: Run) -> Any:
    x, y = run.clouds(5)
    cut = 0 if run.backend == "ott" else 2
    return ds.solve(
        [p[cut * k :] for k, p in enumerate(x)],
        list(y),
        eps=run.scope.eps,
        tol=[1e-3, 1e-2, 1e-4, 1e-3, 1e-5],
        **run.options,
    )


def single(run: Run) -> Any:
    x, y = run.clouds(1)
    return ds.solve(x[0], y[0], eps=run.scope.eps, **run.options), ds.solve(run.problems(1)[0], **run.options)


def libraries(run: Run) -> Any:
    x, y = run.clouds(run.few(3))
    kinds = ("torch float32", "torch float64", "jax float32", "numpy float16")
    return [
        ds.solve(*(as_array(p, kind, run.scope.device) for p in (x, y)), eps=run.scope.eps, **run.options)
        for kind in kinds
    ]


def nested_lists(run: Run) -> Any:
    x, y = run.clouds(2)
    return ds.solve(x.tolist(), y.tolist(), eps=run.scope.eps, **run.options)


def dense_costs(run: Run) -> Any:
    rng = run.draw.rng
    cost, n = rng.random((3, 16, 16)), 16
    a = rng.dirichlet(np.ones(n), size=4)
    return (
        ds.solve(cost=cost, eps=0.2, **run.options),
        ds.solve(cost=cost[0].astype("float32"), a=a, eps=[0.1, 0.2, 0.3, 0.4], **run.options),
        ds.solve(
            cost=list(cost), eps=0.2, accelerate="none", **{k: v for k, v in run.options.items() if k != "accelerate"}
        ),
    )


def starts(run: Run) -> Any:
    x, y = run.clouds(run.few(3))
    first = ds.solve(x, y, eps=run.scope.eps, tol=1e-2, **run.options)
    f, g = (np.stack([np.asarray(r.potentials[k]) for r in first]) for k in (0, 1))
    again = [
        ds.solve(x, y, eps=run.scope.eps, init=(f + shift, g - shift), **run.options)
        for shift in (0.0, 1e3, 1e12, 1e300)
    ]
    return (
        first,
        again,
        [ds.solve(x, y, eps=run.scope.eps, init=name, **run.options) for name in ("auto", "zero", "gaussian")],
    )


def modes(run: Run) -> Any:
    problems = run.problems(run.few(7))
    return {name: ds.solve(problems, mode=name, width=run.few(4) - 1, **run.options) for name in ds.MODES}


def audits(run: Run) -> Any:
    problems = run.problems(run.few(5))
    return [ds.solve(problems, mode="compact", audit=audit, **run.options) for audit in AUDITS]


def certificates(run: Run) -> Any:
    problems = run.problems(run.few(5), tol=1e-5)
    return [ds.solve(problems, certify="always", recheck=check, **run.options) for check in ("all", "none", "sampled")]


def profiles(run: Run) -> Any:
    problems = run.problems(run.few(5))
    known = (ds.Profile(depths=[9, 10]), ds.Profile(depths=[3, 90], min_shrink=2))
    return [ds.solve(problems, profile=profile, **run.options) for profile in known]


# Runs.


def chains(run: Run) -> Any:
    x, y = run.clouds(6)
    chain = ["a", "a", "b", "a", "b", None]
    moved = x[0] + 0.05 * np.arange(6, dtype="float32")[:, None, None]
    return ds.solve(moved, y[0] + 0 * moved[:, :1], eps=run.scope.eps, chain=chain, **run.options), ds.solve(
        x, y, eps=run.scope.eps, chain="all", **run.options
    )


def streams(run: Run) -> Any:
    problems = run.problems(run.few(9))
    listed = []
    for lookahead in (1, 3):
        stream = ds.stream(iter(problems), lookahead=lookahead, width=2, **run.options)
        listed.append((list(stream), stream.ledger))
    return listed


def feeds(run: Run) -> Any:
    feed = ds.Feed(clock=lambda: 0.0)
    for problem in run.problems(5):
        feed.push(problem)
    feed.close()
    stream = ds.stream(feed, width=2, **run.options)
    return list(stream), stream.ledger


def journals(run: Run) -> Any:
    path, problems = run.folder / "journal", run.problems(6)
    problems[1] = ds.Problem(x=problems[1].x, y=problems[1].y, eps=-1.0)
    part = ds.solve(problems[:3], journal=path, **run.options)
    whole = ds.solve(problems, journal=path, **run.options)
    again = list(ds.stream(iter(problems), journal=path, **run.options))
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT * FROM ended ORDER BY ticket").fetchall()
    database.close()
    return part, whole, sorted(again, key=lambda result: result.ticket), rows


def failures(run: Run) -> Any:
    problems = run.problems(6, tol=1e-9)
    x = problems[0].x
    problems[2] = ds.Problem(x=x * 1e30, y=x * 1e30 + 1e30, eps=1e-30, tol=1e-3)
    problems[4] = ds.Problem(x=np.full_like(x, np.nan), y=x, eps=1.0)
    return [
        ds.solve(problems, max_depth=depth, rescue=rescue, **run.options)
        for depth in (1, 7, min(25, run.scope.depths[-1]))
        for rescue in (True, False)
    ]


def strict(run: Run) -> Any:
    problems = run.problems(4)
    problems[2] = ds.Problem(x=problems[2].x, y=problems[2].y, eps=0.0)
    return ds.solve(problems, strict=True, **run.options)


def consumers(run: Run) -> Any:
    solution = ds.solve(run.problems(4), tol=1e-4, **run.options)
    rng = run.draw.rng
    values = [rng.normal(size=(len(r.problem.y), 2)) for r in solution]
    rows = [np.arange(0, len(r.problem.x), 3) for r in solution]
    return {
        "apply": ds.apply(solution, values),
        "map": [ds.barycentric_map(solution, side) for side in ("row", "col")],
        "match": ds.top_match(solution),
        "sample": ds.sample(solution, 9, seed=5),
        "partners": ds.partners(solution, rows, seed=5),
        "cost": ds.transport_cost(solution),
        "plan": ds.plan(solution),
        "one": (ds.plan(solution[1]), ds.apply(solution[1], values[1]), ds.sample(solution[1], 4, seed=1)),
    }


def divergences(run: Run) -> Any:
    x, y = run.clouds(run.few(3))
    listed = [
        ds.divergence(x, y, eps=run.scope.eps, **run.options),
        ds.divergence(x[0], y, eps=run.scope.eps, cost="euclidean", **run.options),
    ]
    return [(each.values, each.solution, each.within) for each in listed]


def extensions(run: Run) -> Any:
    first, second = run.problems(2)
    result = ds.solve(first, **run.options)[0]
    return ds.extend(first, result.potentials, second), ds.extend(result.problem, result.potentials, first)


def formulas(run: Run) -> Any:
    problems = run.problems(4, cost=ds.Formula("SqDist(x, y) + Sum(x)"))
    return (
        ds.solve(problems, **run.options),
        ds.solve(problems),
        ds.solve(run.problems(2, cost=ds.Cost(ds.Formula("Norm2(x - y)"), 0.5)), **run.options),
    )


def cost_functions(run: Run) -> Any:
    from ott.geometry import costs

    own = run.problems(4, cost=costs.PNormP(1.5))
    return (
        ds.solve(own, **run.options),
        ds.solve(own),
        ds.solve(run.problems(2, cost=ds.Cost(costs.Euclidean(), 0.5)), **run.options),
    )


FEATURES: tuple[Callable[[Run], Any], ...] = (
    stacked, shared_points, ragged_lists, single, libraries, nested_lists, dense_costs, starts, modes, audits,
    certificates, profiles, chains, streams, feeds, journals, failures, strict, consumers, divergences, extensions,
)  # fmt: skip
OWN = {"keops": (formulas,), "ott": (cost_functions,)}
"""Features that one backend alone has."""


def automatic(run: Run) -> Any:
    x, y = run.clouds(4)
    many = [ds.Problem(x=x[k % 4], y=y[k % 4], eps=0.2 + 0.01 * k) for k in range(40)]
    return (
        ds.solve(x, y, eps=run.scope.eps),
        ds.solve(many, observe=run.events.append),
        ds.solve(many, width=8, tol=1e-6),
    )


def wrong_calls(x: Any, y: Any) -> dict[str, Callable[[], Any]]:
    """Calls that raise, by name."""
    good = ds.Problem(x=x, y=y, eps=0.5)
    return {
        "no eps": lambda: ds.solve(x, y),
        "no y": lambda: ds.solve(x, eps=0.5),
        "eps of zero": lambda: ds.solve(x, y, eps=0.0),
        "eps as text": lambda: ds.solve(x, y, eps="auto"),
        "tol of zero": lambda: ds.solve(x, y, eps=0.5, tol=0.0),
        "unknown cost": lambda: ds.solve(x, y, eps=0.5, cost="manhattan"),
        "unknown backend": lambda: ds.solve(x, y, eps=0.5, backend="abacus"),
        "backend class": lambda: ds.solve(x, y, eps=0.5, backend=dict),  # type: ignore[arg-type]
        "unknown option": lambda: ds.solve(x, y, eps=0.5, widht=3),  # type: ignore[call-arg]
        "unknown mode": lambda: ds.solve(x, y, eps=0.5, mode="fast"),
        "unknown start": lambda: ds.solve(x, y, eps=0.5, init="middle"),
        "unknown acceleration": lambda: ds.solve(x, y, eps=0.5, accelerate="warp"),
        "unknown recheck": lambda: ds.solve(x, y, eps=0.5, recheck="some"),  # type: ignore[arg-type]
        "unknown order": lambda: ds.solve(x, y, eps=0.5, order="random"),
        "no audit": lambda: ds.solve(x, y, eps=0.5, audit=8),  # type: ignore[arg-type]
        "no options": lambda: ds.solve(x, y, eps=0.5, options={}),  # type: ignore[arg-type]
        "no width": lambda: ds.solve(x, y, eps=0.5, width=0),
        "other dimensions": lambda: ds.solve(x, y[:, :1], eps=0.5),
        "other counts": lambda: ds.solve(x[None], y[None][[0, 0]], eps=0.5),
        "one axis": lambda: ds.solve(x[:, 0], y, eps=0.5),
        "weights of another size": lambda: ds.solve(x, y, eps=0.5, a=np.ones(len(x) + 1)),
        "start of one side": lambda: ds.solve(x, y, eps=0.5, init=(x[:, 0],)),
        "eps beside problems": lambda: ds.solve([good], eps=0.5),
        "gaussian start of another cost": lambda: ds.solve(x, y, eps=0.5, cost="euclidean", init="gaussian"),
        "geometric audit that refills": lambda: ds.solve([good], mode="stream", audit=ds.Audit(every=ds.Geometric())),
        "margin above one": lambda: ds.Audit(margin=1.5),
        "mode that refills together": lambda: ds.Mode(name="none", together=True, refill=1),
        "profile of no depths": lambda: ds.Profile(depths=[0]),
        "formula with a call": lambda: ds.Formula("__import__('os')"),
        "formula on the cpu": lambda: ds.solve(x, y, eps=0.5, cost=ds.Formula("SqDist(x, y)"), backend="cpu"),
        "journal in no folder": lambda: ds.solve([good], journal="/nowhere/journal"),
        "dense divergence": lambda: ds.divergence(x, y, eps=0.5, cost=np.ones((len(x), len(y)))),
        "unknown side": lambda: ds.apply(ds.solve([good])[0], np.ones(len(y)), side="left"),
        "too large a plan": lambda: ds.plan(ds.solve([good]), max_pairs=2),
        "values for fewer results": lambda: ds.apply(ds.solve([good, good]), [np.ones(len(y))]),
        "plan of an invalid problem": lambda: ds.plan(ds.solve([ds.Problem(x=x, y=y, eps=-1.0)])),
        "solve of a feed": lambda: ds.solve(ds.Feed()),
    }
