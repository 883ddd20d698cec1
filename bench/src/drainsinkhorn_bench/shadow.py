"""Shadow replay: lanes that the screen turned down are verified all the same, and nothing comes of it but a count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from drainsinkhorn.backends.wrapped import WrappedBackend, WrappedPack
from drainsinkhorn.core.protocol import Backend, Pack
from drainsinkhorn.model.instance import Instance
from drainsinkhorn.model.problem import Problem
from drainsinkhorn.model.result import Residuals
from drainsinkhorn.run.solve import solve
from drainsinkhorn_bench.arms import MAX_DEPTH, PAPER, PLAIN


class _Watched(WrappedPack):
    """Notes how far verify's row residual is from what the screen of the same state said, bands included."""

    def __init__(self, inner: Pack[Any], gaps: list[float]) -> None:
        super().__init__(inner)
        self._gaps, self._screened = gaps, dict[int, float]()

    def screen(self, lanes: Sequence[int]) -> Sequence[float]:
        """See Pack."""
        found = self.inner.screen(lanes)
        self._screened = dict(zip(lanes, found, strict=True))
        return found

    def verify(self, lanes: Sequence[int], *, exact: bool = False) -> Residuals:
        """See Pack."""
        residuals = self.inner.verify(lanes, exact=exact)
        for lane, row, band in zip(lanes, residuals.row, residuals.band, strict=True):
            if lane in self._screened:
                self._gaps.append(abs(self._screened[lane] - row - band))
        return residuals


@dataclass(frozen=True)
class _Watching(WrappedBackend):
    gaps: list[float] = field(default_factory=list[float], compare=False)

    def pack(self, instances: Sequence[Instance[Any]]) -> Pack[Any]:
        """See Backend."""
        return _Watched(self.inner.pack(instances), self.gaps)


def shadow(problems: Sequence[Problem[Any]], backend: Backend[Any], tol: float, width: int) -> dict[str, Any]:
    """Solve under the paper's audits, verify also the lanes that did not pass the screen, and return the counts.

    `events` are lanes that did not pass a screen, `missed_ready` those of them that verify would have passed.
    `largest_row_gap` is the largest difference between the row residuals of screen and verify in one state.
    """
    watching = _Watching(backend)
    solution = solve(
        list(problems), tol=tol, backend=watching, mode="compact", width=width, audit=replace(PAPER, shadow=True),
        max_depth=MAX_DEPTH, rescue=False, **PLAIN,
    )  # fmt: skip
    solution.raise_for_status()
    ledger = solution.ledger
    return {
        "events": ledger.shadowed,
        "missed_ready": ledger.shadow_ready,
        "largest_row_gap": max(watching.gaps),
        "verified": ledger.verified,
        "rejected": ledger.rejected,
    }
