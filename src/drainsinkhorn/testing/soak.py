"""Solve hostile problems with a backend and judge every result: `python -m drainsinkhorn.testing.soak --backend cpu`.

A finding is one of

- "false": a result is CONVERGED, and its emitted potentials miss tol (see `auditor.judge`);
- "edge": the same, for a problem that was solved again with a tol below its true residual (see below);
- "exception": `solve` raised;
- "missing": a problem has no result, or another problem's;
- "refused": a problem is INVALID only because NumPy was set to raise floating-point errors;
- "not finite": a problem that is not INVALID has potentials that are not finite, or none, or of another shape;
- "unequal bits": another mode gave other bits on a bitwise backend.

If residual plus band of a result, converged or not, is below its true residual, the result would be false for a tol
between the two. Such a problem is solved again with residual plus band as tol, and the new result is judged too.

Only NumPy is needed, and what the backend itself needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from drainsinkhorn.backends import load
from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.solve import solve
from drainsinkhorn.testing.auditor import judge
from drainsinkhorn.testing.findings import SoakFinding, Tally
from drainsinkhorn.testing.hostile import LARGEST_TOL, SMALLEST_TOL, block_of, problem
from drainsinkhorn.testing.settings import SCOPES, Scope, Setting, available, other_mode, setting


def scope_of(backend: str) -> Scope:
    """Return the scope of a backend on this machine; without a CUDA device Triton runs in its interpreter."""
    name = backend
    if backend == "triton":
        import torch

        if not torch.cuda.is_available():
            name = "interpreter"
            # Triton looks at its environment once, when it is imported.
            os.environ["TRITON_INTERPRET"] = "1"
    return available(SCOPES[name])


def soak(
    backend: str,
    problems: int,
    seed: int,
    *,
    scope: Scope | None = None,
    batches: Sequence[int] | None = None,
    report: Callable[[SoakFinding | Tally], None] = lambda _: None,
    seconds: float = math.inf,
    frugal: bool = False,
) -> Tally:
    """Solve hostile problems in batches, each in a way of its own, and judge every result.

    Args:
        backend: Name of the backend.
        problems: How many; batches are solved whole, so there may be some more.
        seed: Seed of the generator.
        scope: What to draw from. None: what suits the backend.
        batches: Numbers of the batches to solve, in place of `problems`.
        report: Called with every finding as it comes, and with the tally after every batch.
        seconds: No batch begins after so many seconds.
        frugal: Whether every lane has its most frugal representation (`Backend.frugal`), which small problems never
            have otherwise: streaming on the CPU.
    """
    scope = scope_of(backend) if scope is None else scope
    tally, loaded, begun = Tally(backend, seed), _load(backend, frugal=frugal), time.perf_counter()
    for batch in range(-(-problems // scope.batch)) if batches is None else batches:
        if time.perf_counter() - begun > seconds:
            break
        for finding in _Batch(tally, loaded, scope, batch, frugal=frugal).findings():
            tally.findings.append(finding)
            report(finding)
        tally.seconds[1] = time.perf_counter() - begun
        report(tally)
    return tally


def soak_one(
    backend: str,
    index: int,
    seed: int,
    *,
    tol: float | None = None,
    scope: Scope | None = None,
    frugal: bool = False,
) -> Tally:
    """Solve one problem and those before it in its chain, as its batch would, and judge the results.

    Args:
        backend: Name of the backend.
        index: Number of the problem.
        seed: Seed of the generator.
        tol: A tol in place of the problem's own, with a margin of 1. None: its own.
        scope: What to draw from. None: what suits the backend.
        frugal: As for `soak`.
    """
    scope = scope_of(backend) if scope is None else scope
    tally = Tally(backend, seed)
    batch = _Batch(tally, _load(backend, frugal=frugal), scope, index // scope.batch, frugal=frugal)
    if tol is None:
        tally.findings.extend(batch.findings(_chain_of(index, seed, scope)))
    else:
        tally.findings.extend(batch.at_edge(index, tol))
        tally.problems += 1
    return tally


def _load(backend: str, *, frugal: bool) -> Backend[Any]:
    return load(backend).frugal() if frugal else load(backend)


def _chain_of(index: int, seed: int, scope: Scope) -> list[int]:
    """The problem, and those that its chain has before it."""
    if problem(seed, index, scope).chain is None:
        return [index]
    return [other for other in block_of(index) if other <= index]


class _Batch:
    """Some consecutive problems and how they are solved.

    Args:
        tally: What counts them.
        backend: What solves them.
        scope: What they are drawn from.
        number: Which batch of the seed.
        frugal: Whether lanes have their most frugal representation.
    """

    def __init__(self, tally: Tally, backend: Backend[Any], scope: Scope, number: int, *, frugal: bool = False) -> None:
        self.tally, self.backend, self.scope, self.number, self.frugal = tally, backend, scope, number, frugal
        self.setting = setting(tally.seed, number, scope)
        self.edges: dict[int, float] = {}

    def findings(self, indices: Sequence[int] | None = None) -> Iterator[SoakFinding]:
        """Solve the problems, all of the batch by default, count them and yield what is wrong."""
        tally, is_whole = self.tally, indices is None
        if indices is None:
            indices = range(self.number * self.scope.batch, (self.number + 1) * self.scope.batch)
        wrong = self._wrong(indices, tally)
        tally.problems += len(indices)
        edges, self.edges = self.edges, {}
        for index, tol in edges.items():
            tally.understated += 1
            yield from self.at_edge(index, tol)
        for index, (kind, detail) in wrong.items():
            alone = not is_whole or kind in {k for k, _ in self._wrong(self._chain(index), None).values()}
            yield self._finding(kind, index, alone, detail)

    def at_edge(self, index: int, tol: float) -> Iterator[SoakFinding]:
        """Solve a problem and those before it in its chain with another tol, and yield what is wrong with it."""
        problems = [problem(self.tally.seed, k, self.scope) for k in self._chain(index)]
        problems[-1] = replace(problems[-1], tol=tol)
        options = {**self.setting.options, "audit": replace(self.setting.options["audit"], margin=1.0)}
        try:
            result = self._solve(problems, self.setting._replace(options=options))[-1]
            fault = _check(len(problems) - 1, problems[-1], result, None)
        except Exception as error:  # noqa: BLE001
            kind, detail = "exception", _describe(error)
        else:
            if fault is None:
                return
            kind = "edge" if fault[0] == "false" else fault[0]
            detail = f"{fault[1]}; {self._describe(problems[-1], result)}"
        yield self._finding(kind, index, True, detail, tol)

    def _finding(self, kind: str, index: int, alone: bool, detail: str, tol: float | None = None) -> SoakFinding:
        costs = () if self.scope.costs == Scope().costs else self.scope.costs
        usual = SCOPES[self.backend.name].soft if self.backend.name in SCOPES else 0.0
        soft = None if self.scope.soft == usual else self.scope.soft
        return SoakFinding(
            kind, self.backend.name, self.tally.seed, index, self.number, alone, detail, tol, self.frugal, costs, soft
        )

    def _chain(self, index: int) -> list[int]:
        return _chain_of(index, self.tally.seed, self.scope)

    def _wrong(self, indices: Sequence[int], tally: Tally | None) -> dict[int, tuple[str, str]]:
        """What is wrong, by index of the problem: kind and detail."""
        problems = [problem(self.tally.seed, index, self.scope) for index in indices]
        begun = time.perf_counter()
        try:
            results = self._solve(problems, self.setting)
        except Exception as error:  # noqa: BLE001  whatever escapes is a finding
            return self._culprits(indices, error)
        finally:
            self.tally.seconds[0] += time.perf_counter() - begun
        if len(results) != len(problems):
            return {indices[0]: ("missing", f"{len(problems)} problems gave {len(results)} results")}
        wrong: dict[int, tuple[str, str]] = {}
        for place, (index, asked, result) in enumerate(zip(indices, problems, results, strict=True)):
            fault = _check(place, asked, result, tally)
            if fault is not None:
                wrong[index] = (fault[0], f"{fault[1]}; {self._describe(asked, result)}")
            elif tally is not None and _is_understated(asked, result):
                self.edges[index] = result.residual.worst
        if self.backend.bitwise:
            wrong = {**self._unequal(indices, problems, results, tally), **wrong}
        return wrong

    def _solve(self, problems: list[Problem[Any]], chosen: Setting) -> list[Result[Any]]:
        with warnings.catch_warnings(), np.errstate(all="raise") if chosen.raises else contextlib.nullcontext():
            warnings.simplefilter("ignore")
            return list(solve(problems, backend=self.backend, **chosen.options))

    def _culprits(self, indices: Sequence[int], error: Exception) -> dict[int, tuple[str, str]]:
        """Return problems that raise when solved alone, with their exceptions; if none does, the last of the batch."""
        wrong: dict[int, tuple[str, str]] = {}
        for index in indices if len(indices) > 1 else ():
            try:
                self._solve([problem(self.tally.seed, k, self.scope) for k in self._chain(index)], self.setting)
            except Exception as own:  # noqa: BLE001
                wrong[index] = ("exception", _describe(own))
        return wrong or {indices[-1]: ("exception", _describe(error))}

    def _unequal(
        self, indices: Sequence[int], problems: list[Problem[Any]], first: list[Result[Any]], tally: Tally | None
    ) -> dict[int, tuple[str, str]]:
        other = other_mode(self.tally.seed, self.number, self.setting)
        if other is None:
            return {}
        try:
            second = self._solve(problems, other)
        except Exception as error:  # noqa: BLE001
            return {indices[0]: ("exception", f"in mode {other.options['mode']}: {_describe(error)}")}
        if tally is not None:
            tally.compared += len(problems)
        modes = [chosen.options["mode"] for chosen in (self.setting, other)]
        return {
            index: ("unequal bits", f"{one!r} in mode {modes[0]}, {two!r} in {modes[1]}; {self._describe(asked, one)}")
            for index, asked, one, two in zip(indices, problems, first, second, strict=True)
            if _bits(one) != _bits(two)
        }

    def _describe(self, asked: Problem[Any], result: Result[Any]) -> str:
        sizes = [len(p) for p in result.emitted] if result.emitted is not None else []
        like = asked.x if asked.x is not None else asked.cost
        options = ", ".join(f"{name}={value!r}" for name, value in self.setting.options.items())
        largest = max((float(np.abs(to_numpy(p)).max()) for p in result.emitted or ()), default=math.nan)
        return (
            f"{result.status.name}, claims {result.residual.worst:.3g} (band {result.residual.band:.2g}), "
            f"tol {asked.tol}, eps {asked.eps}, rho {asked.rho}, sizes {sizes}, cost {_name(asked.cost)}, "
            f"{type(like).__module__} {getattr(like, 'dtype', '')}, largest potential {largest:.3g}, "
            f"{result.arithmetic}, rescued {result.rescued}; {options}{', raises' if self.setting.raises else ''}"
        )


def _check(place: int, asked: Problem[Any], result: Result[Any], tally: Tally | None) -> tuple[str, str] | None:
    """What is wrong with a result, as kind and detail; None: nothing."""
    if tally is not None:
        tally.statuses[result.status.name] += 1
        if result.status is Status.INVALID:
            tally.refusals[" ".join(result.detail.split()[:6])] += 1
    if result.ticket != place or result.problem is not asked:
        return "missing", f"place {place} holds the result of problem {result.ticket}"
    if result.status is Status.INVALID:
        return ("refused", result.detail) if "FloatingPointError" in result.detail else None
    if result.emitted is None:
        return "not finite", "there are no potentials"
    wanted = asked.cost.shape if asked.x is None else (len(asked.x), len(asked.y))  # type: ignore[union-attr,arg-type]
    potentials = [to_numpy(p) for p in result.emitted]
    if tuple(p.shape for p in potentials) != tuple((size,) for size in wanted):
        return "not finite", f"potentials have shapes {[p.shape for p in potentials]}"
    if not all(np.isfinite(p).all() for p in potentials):
        return "not finite", f"{[int((~np.isfinite(p)).sum()) for p in potentials]} potentials are not finite"
    if not result.converged:
        return None
    assert asked.tol is not None
    judgement = judge(asked, result.emitted, asked.tol)
    if tally is not None:
        tally.judged += 1
        tally.arithmetic[judgement.arithmetic] += 1
    if judgement.refutes(asked.tol) or not result.residual.worst <= asked.tol:
        excess = f"tol and {judgement.worst - asked.tol:.2g} more"
        return "false", f"the residual is {judgement.worst:.6g}, {excess} (in {judgement.arithmetic})"
    return None


def _is_understated(asked: Problem[Any], result: Result[Any]) -> bool:
    """Whether the true residual is above what the result says, band included, and a tol could lie between them."""
    worst = result.residual.worst
    if result.emitted is None or not SMALLEST_TOL <= worst <= LARGEST_TOL:
        return False
    return judge(asked, result.emitted, worst).refutes(worst)


def _bits(result: Result[Any]) -> Any:
    potentials = None if result.emitted is None else [to_numpy(p).tobytes() for p in result.emitted]
    return result.status, result.depth, potentials


def _name(cost: Any) -> str:
    return "dense" if hasattr(cost, "shape") else str(cost)


def _describe(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    ours = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in frames if "drainsinkhorn" in f.filename]
    return f"{type(error).__name__}: {str(error)[:200]} at {where} from {ours[-1] if ours else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m drainsinkhorn.testing.soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--backend", default="cpu", choices=sorted(set(SCOPES) - {"interpreter"}))
    parser.add_argument("--problems", type=int, default=1000, help="how many problems (default 1000)")
    parser.add_argument("--seed", type=int, help="seed of the generator; a random one by default, which is printed")
    parser.add_argument("--cost", action="append", metavar="NAME", help="only these costs; may be repeated")
    parser.add_argument("--batch", type=int, help="solve this batch alone")
    parser.add_argument("--only", type=int, metavar="INDEX", help="solve this problem alone, and its chain")
    parser.add_argument("--tol", type=float, help="with --only: solve it with this tol, at the edge")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no batch after so many seconds")
    parser.add_argument("--frugal", action="store_true", help="every lane in its most frugal representation")
    parser.add_argument("--soft", type=float, metavar="SHARE", help="share of problems with a soft marginal")
    parser.add_argument("--report", metavar="FILE", help="write the findings there, as JSON")
    chosen = parser.parse_args(arguments)
    seed = secrets.randbelow(2**31) if chosen.seed is None else chosen.seed

    def report(news: SoakFinding | Tally) -> None:
        if isinstance(news, SoakFinding):
            sys.stdout.write(f"{news}\n")
            sys.stdout.flush()

    scope = scope_of(chosen.backend)
    if chosen.cost:
        scope = replace(scope, costs=tuple(chosen.cost), dense=0.0)
    if chosen.soft is not None:
        scope = replace(scope, soft=chosen.soft)
    sys.stdout.write(f"backend {chosen.backend}, seed {seed}\n")
    if chosen.only is not None:
        tally = soak_one(chosen.backend, chosen.only, seed, tol=chosen.tol, scope=scope, frugal=chosen.frugal)
        for finding in tally.findings:
            report(finding)
    else:
        batches = None if chosen.batch is None else [chosen.batch]
        tally = soak(
            chosen.backend,
            chosen.problems,
            seed,
            scope=scope,
            batches=batches,
            report=report,
            seconds=chosen.seconds,
            frugal=chosen.frugal,
        )
    sys.stdout.write(f"{tally}\n")
    for words, count in tally.refusals.most_common(20):
        sys.stdout.write(f"    INVALID {count}: {words}\n")
    if chosen.report:
        with open(chosen.report, "w", encoding="utf-8") as file:
            json.dump([asdict(finding) for finding in tally.findings], file, indent=1)
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
