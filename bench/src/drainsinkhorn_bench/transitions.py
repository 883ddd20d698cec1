"""The consumer of single-cell campaigns: mass between groups of cells, and how far it is from a tight reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from drainsinkhorn.core.protocol import Backend
from drainsinkhorn.model.problem import Potentials, Problem
from drainsinkhorn.numerics.arrays import to_numpy
from drainsinkhorn.run.couple import couple
from drainsinkhorn.run.solve import solve
from drainsinkhorn_bench.arms import answers_of, backend_of, on
from drainsinkhorn_bench.loaders import Array, Cells
from drainsinkhorn_bench.plan import Work

REFERENCE = 1e-6
"""The tol of reference tables."""


class Transitions(NamedTuple):
    """What the consumer needs of each problem.

    Attributes:
        rows: Group of every earlier cell.
        forward: One-hot group of every later cell, (cells, groups), on the device of the problem.
        tables: Transition tables of solutions to tol REFERENCE.
    """

    rows: list[Array]
    forward: list[Any]
    tables: list[Array]


def transitions(
    cells: Cells, pairs: Sequence[tuple[Array, Array]], problems: Sequence[Problem[Any]], device: str
) -> Transitions:
    """Groups of all pairs, and their reference tables, solved here to REFERENCE."""
    names, codes = np.unique(cells.groups, return_inverse=True)
    rows = [codes[early] for early, _ in pairs]
    forward = [on(device, np.eye(len(names), dtype=np.float32)[codes[late]]) for _, late in pairs]
    solution = solve(list(problems), tol=REFERENCE, backend=backend_of(device), max_depth=200_000)
    solution.raise_for_status()
    known = Transitions(rows, forward, [])
    made = tables(known, problems, backend_of(device), answers_of(solution))
    return known._replace(tables=[made[k] for k in range(len(problems))])


def tables(
    known: Transitions, problems: Sequence[Problem[Any]], backend: Backend[Any], answers: Mapping[int, Potentials[Any]]
) -> dict[int, Array]:
    """Return tables of the mass from group to group, by index of the problem; each table sums to one."""
    places = sorted(answers)
    plans = couple(backend, [problems[k] for k in places], [answers[k] for k in places])
    found = dict[int, Array]()
    for place, pushed in zip(places, plans.apply([known.forward[k] for k in places]), strict=True):
        width = pushed.shape[1]
        table = np.zeros((width, width))
        np.add.at(table, known.rows[place], to_numpy(pushed).astype(np.float64))
        found[place] = table / table.sum()
    return found


def deviation(known: Transitions, found: Mapping[int, Array]) -> float:
    """The largest total variation between a table and its reference."""
    return max(float(np.abs(table - known.tables[place]).sum() / 2) for place, table in found.items())


def consume(work: Work, backend: Backend[Any], answers: Mapping[int, Potentials[Any]]) -> dict[str, Any]:
    """Compute the transition tables of an arm; return their largest total variation from the reference tables."""
    return {"tv": deviation(work.extra, tables(work.extra, work.problems, backend, answers))}
