"""All results of a solve, in the order of submission."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, overload

from drainsinkhorn.core.ledger import Ledger
from drainsinkhorn.model.brief import count_of, html_table, status_counts
from drainsinkhorn.model.errors import NotConverged, ProblemError
from drainsinkhorn.model.outcomes import Outcome, Outcomes
from drainsinkhorn.model.problem import A, Potentials
from drainsinkhorn.model.result import Result
from drainsinkhorn.model.status import Status
from drainsinkhorn.numerics.arrays import stack
from drainsinkhorn.run.frames import to_frame
from drainsinkhorn.run.saved import load_results, save_results

SHOWN = 10
"""Rows of the table that a notebook shows."""


class Solution(Sequence[Result[A]], Generic[A]):
    """Results in the order of submission, and the account of the run.

    Args:
        outcomes: One row for each problem, in any order.
        make_result: Makes the Result of an outcome. It is called when a Result is first accessed, possibly by several
            threads at once.
        ledger: The account of the run.

    Attributes:
        outcomes: How the problems ended, in columns, in the order in which they ended.
        ledger: Slots, legs, survival curve, width trace, timings, and what "auto" chose.
    """

    def __init__(self, outcomes: Outcomes, make_result: Callable[[Outcome], Result[A]], ledger: Ledger) -> None:
        self.outcomes = outcomes
        self.ledger = ledger
        self._make_result = make_result
        self._results: dict[int, Result[A]] = {}
        # Rows of the outcomes by ticket.
        self._rows = [0] * len(outcomes)
        for row, ticket in enumerate(outcomes.tickets):
            self._rows[ticket] = row

    @classmethod
    def from_results(cls, results: Iterable[Result[A]], ledger: Ledger) -> Solution[A]:
        """Return the solution that consists of these results, whose tickets are 0, 1, 2, ..., in any order."""
        by_ticket = {result.ticket: result for result in results}
        return cls(Outcomes.from_rows(map(_outcome_of, by_ticket.values())), lambda row: by_ticket[row.ticket], ledger)

    @overload
    def __getitem__(self, index: int) -> Result[A]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Result[A]]: ...
    def __getitem__(self, index: int | slice) -> Result[A] | Sequence[Result[A]]:
        """The Result of a problem by its ticket."""
        if isinstance(index, slice):
            return [self[ticket] for ticket in range(*index.indices(len(self)))]
        ticket = range(len(self))[index]
        result = self._results.get(ticket)
        if result is None:
            # Another thread may have made it in the meantime.
            result = self._results.setdefault(ticket, self._make_result(self.outcomes[self._rows[ticket]]))
        return result

    def __len__(self) -> int:
        """The number of problems."""
        return len(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all results as they are, without the function that makes them."""
        return _restore, (self.outcomes, list(self), self.ledger)

    @property
    def results(self) -> Sequence[Result[A]]:
        """One Result per problem, in the order of submission."""
        return self[:]

    @property
    def statuses(self) -> list[Status]:
        """How each problem ended, in the order of submission."""
        return [self.outcomes.statuses[row] for row in self._rows]

    @property
    def potentials(self) -> Potentials[A]:
        """Potentials stacked to (W, n) and (W, m); raises ProblemError where shapes differ or a problem is INVALID."""
        if not self._rows:
            raise ProblemError("there are no potentials to stack: the solution is empty")
        blocks = self.outcomes.f.whole(), self.outcomes.g.whole()
        if all(block is not None for block in blocks):
            return Potentials(*(block[self._rows] for block in blocks))
        pairs = [(self.outcomes.f[row], self.outcomes.g[row]) for row in self._rows]
        for ticket, (f, _) in enumerate(pairs):
            if f is None:
                return self[ticket].potentials
        shapes = {(tuple(f.shape), tuple(g.shape)) for f, g in pairs}
        if len(shapes) > 1:
            raise ProblemError(
                f"potentials have {len(shapes)} different shapes and cannot be stacked; take solution[i].potentials"
            )
        return Potentials(stack([f for f, _ in pairs]), stack([g for _, g in pairs]))

    @property
    def counts(self) -> dict[Status, int]:
        """How many problems ended in each status."""
        return dict(Counter(self.statuses))

    @property
    def converged(self) -> bool:
        """True if every problem converged."""
        return all(status is Status.CONVERGED for status in self.outcomes.statuses)

    def raise_for_status(self) -> None:
        """Raise NotConverged, naming the first few, unless every problem converged."""
        failed = [i for i, status in enumerate(self.statuses) if status is not Status.CONVERGED]
        if failed:
            named = "; ".join(f"problem {self[i].ticket}: {self[i].message}" for i in failed[:3])
            others = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
            raise NotConverged(f"{len(failed)} of {len(self)} problems did not converge: {named}{others}")

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row for each problem, in the order of submission; see `to_frame`."""
        return to_frame(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all results, their problems and the account of the run to an .npz file.

        `load` reads it, and `drain explain` prints it. Arrays of torch and JAX become NumPy arrays. Starts and chains
        are not written, since they change only how a result was reached. A problem with a cost of your own raises
        FileError.

        Examples:
            >>> import tempfile
            >>> import numpy as np
            >>> import drainsinkhorn as ds
            >>> x = np.random.default_rng(0).normal(size=(3, 20, 2))
            >>> solution = ds.solve(x, x + 1, eps=0.5)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     solution.save(f"{folder}/solution.npz")
            ...     again = ds.Solution.load(f"{folder}/solution.npz")
            >>> bool((again[1].barycentric_map() == solution[1].barycentric_map()).all())
            True
        """
        save_results(Path(path), self, self.ledger)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, read_limit: int | None = None) -> Solution[Any]:
        """Return the solution that `save` wrote, with NumPy arrays. Nothing pickled is read.

        Args:
            path: The file.
            read_limit: Bytes that its arrays may take. None: half of the available memory.
        """
        return cls.from_results(*load_results(Path(path), read_limit))

    def plot(self, path: str | None = None) -> Any:
        """Draw survival curve, width trace and removed area; returns the figure, saved to `path` if given."""
        from drainsinkhorn.plans.plots import plot_ledger

        return plot_ledger(self.ledger, path)

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {status.name}" for status, count in self.counts.items()) or "empty"
        ledger = self.ledger
        return f"Solution({counts}; slots={ledger.slots}, static={ledger.static_slots}, removed={ledger.removed_slots})"

    def _repr_html_(self) -> str:
        """The first problems that did not converge; if all did, the first problems."""
        failed = [ticket for ticket, status in enumerate(self.statuses) if status is not Status.CONVERGED]
        tickets = (failed or range(len(self)))[:SHOWN]
        rows: list[tuple[Any, ...]] = []
        for result in (self[ticket] for ticket in tickets):
            n, m = result.shape or (None, None)
            residual = result.residual
            notes = "; ".join([*result.flags, *([] if result.converged else [result.message])])
            rows.append((result.ticket, result.status.name, n, m, result.depth, residual.row, residual.col, notes))
        kind, total = (" that did not converge", len(failed)) if failed else ("", len(self))
        foot = f"{total - len(rows):,} more{kind}; " if total > len(rows) else ""
        ledger = self.ledger
        foot += f"{ledger.slots:,} slots executed, {ledger.removed_slots:,} removed"
        caption = f"{count_of(len(self), 'problem')}: {status_counts(self.statuses) or 'none'}"
        return html_table(caption, ("problem", "status", "n", "m", "depth", "row", "col", ""), rows, foot)


def _outcome_of(result: Result[Any]) -> Outcome:
    """Return the outcome from which a result was made."""
    values: dict[str, Any] = {name: getattr(result, name) for name in Outcome._fields if name != "potentials"}
    return Outcome(potentials=result.emitted, **values)


def _restore(outcomes: Outcomes, results: list[Result[A]], ledger: Ledger) -> Solution[A]:
    """Return a solution from results that were made before, for example in another process."""
    return Solution(outcomes, lambda outcome: results[outcome.ticket], ledger)
